"""The only reader of params.yaml.

params = read()
row = check(find_row(params, "cifar10-vit-gmm-s0"))
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from ..core.errors import shown, unknown
from ..train.checks import bad_row, unsafe, well_typed
from ..train.rows import Row
from .arms import written_out

PLACES = ("rows", "dense_rows")  # of rows in the file: of classification, of detection and segmentation
SETS_OF = {"datasets": "rows", "dense_datasets": "dense_rows"}  # lists of the data sets that the rows train on
SOME_ROWS = "report_pages", "shared_weights"  # lists of rows: those with a page, those whose weights are put into git
DEEPEST, MOST_REPEATED = 30, 20_000  # levels of a file, and values that its aliases repeat


@dataclass(frozen=True)
class Params:
    """A params.yaml: the rows of a profile by name, those below `dense_rows` too, and its other top-level keys."""

    profile: str
    rows: dict[str, Row]
    rest: dict

    @property
    def datasets(self) -> list[str]:
        """The data sets of its rows, in their order."""
        return list(dict.fromkeys(row.dataset for row in self.rows.values()))

    @property
    def threads(self) -> int:
        """Threads of a row's arithmetic, of which its last digits are a function."""
        return self.rest.get("threads", 1)


def parse(text: str) -> object:
    """The value a piece of YAML means, to DVC too: `1e-3` is a number, `010` is ten, `1:30` and `mean` are texts."""
    yaml = YAML(typ="safe", pure=True)
    try:
        node = yaml.compose(text)
        problem = _misshapen(node) if node else ""
        value = None if problem or not node else yaml.constructor.construct_document(node)
    except YAMLError as error:
        raise ValueError(f"cannot be read as YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ValueError(f"cannot be read as YAML: expected at most {DEEPEST} levels, got far more") from error
    if problem:
        raise ValueError(f"cannot be read as YAML: {problem}")
    return value


def _misshapen(root: Node) -> str:
    """A sentence about a key that stands twice, too many levels, or aliases that multiply; "" if all is well."""
    sizes: dict[int, int] = {}  # of each node with all that it holds, aliases written out
    todo = [(root, 1, False)]
    while todo:
        node, level, opened = todo.pop()
        inside = [each for pair in node.value for each in pair] if isinstance(node, MappingNode) else node.value
        inside = inside if isinstance(node, (MappingNode, SequenceNode)) else []
        if opened:
            sizes[id(node)] = 1 + sum(sizes.get(id(each), MOST_REPEATED) for each in inside)  # not yet: it holds itself
        elif id(node) not in sizes:
            if level > DEEPEST:
                return f"expected at most {DEEPEST} levels, got more in line {node.start_mark.line + 1}"
            if isinstance(node, MappingNode) and (twice := _standing_twice(node)):
                return twice
            todo += [(node, level, True), *((each, level + 1, False) for each in reversed(inside))]
    repeated = sizes[id(root)] - len(sizes)
    return f"expected aliases that repeat at most {MOST_REPEATED:,} values" if repeated > MOST_REPEATED else ""


def _standing_twice(mapping: MappingNode) -> str:
    lines: dict[str, int] = {}
    for key, _ in mapping.value:
        line, text = key.start_mark.line + 1, str(key.value)
        if text in lines:
            return f"the key {text!r} stands twice, in lines {lines[text]} and {line}; expected once"
        lines[text] = line
    return ""


def read(path: str | Path = "params.yaml") -> Params:
    """The file's profile and rows; of a row, only keys and types are looked at here, the rest is `check`'s."""
    try:
        content = parse(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path} is not there: expected a file with a profile and rows") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read as YAML: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path} {error}") from error
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path}: expected a mapping with a profile and rows, got {shown(content or 'nothing')}")
    if "arms" in content:
        try:
            content = written_out(content)
        except ValueError as error:
            raise type(error)(f"{path}: {error}") from error
    if not isinstance(content.get("dense_rows") or {}, dict):
        raise ValueError(f"{path}: dense_rows: expected rows by name, got {shown(content['dense_rows'])}")
    for key, kind, words in (("profile", str, "a name"), ("rows", dict, "rows by name")):
        if not isinstance(content.get(key), kind) or not content[key]:
            near = difflib.get_close_matches(key, map(str, content), n=1) if key not in content else []
            hint = f"; the nearest key is {near[0]!r}" if near else ""
            raise ValueError(f"{path}: {key}: expected {words}, got {shown(content.get(key))}{hint}")
    rows, wrong = {}, unsafe("profile", content["profile"])
    for place in PLACES:
        for name, given in (content.get(place) or {}).items():
            fields, problems = well_typed(given)
            problems += _unfit(name, rows)
            problems += [] if problems else _misplaced(place, Row(**fields))
            wrong += [f"row {name}: {problem}" for problem in problems]
            if not problems:
                rows[name] = Row(**fields, name=name)
    wrong += _wrong_lists(content, rows)
    if wrong:
        raise bad_row(str(path), wrong)
    rest = {key: content[key] for key in content if key not in ("profile", *PLACES)}
    return Params(content["profile"], rows, rest)


def _unfit(name: object, rows: dict[str, Row]) -> list[str]:
    """Sentences about a name that cannot be a row's key in this file."""
    if name in rows:
        return ["expected a name of its own, got that of another row"]
    if isinstance(name, str) and "." in name:
        near = name.replace(".", "_")
        return [f"name: expected no '.', in which DVC sees a step into the file; the nearest is {near!r}"]
    return unsafe("name", name)


def _misplaced(place: str, row: Row) -> list[str]:
    """A sentence where a row stands below the wrong key: DVC runs the rows of each with dependencies of their own."""
    right = PLACES[row.kind != "classification"]
    return [f"{row.recipe} is a recipe of {right}: expected the row there, got it in {place}"] if right != place else []


def _wrong_lists(content: dict, rows: dict[str, Row]) -> list[str]:
    """Sentences about the other keys that the pipeline reads: its data sets, the rows with a page, threads."""
    wrong = []
    for key in (*SETS_OF, *SOME_ROWS):
        given = content.get(key)
        if not isinstance(given, list | None):
            wrong.append(f"{key}: expected a list of names, got {shown(given)}")
            continue
        for name in given or ():
            wrong += unsafe(key, name)
        if key in SETS_OF and given is not None and not wrong:
            kind = [row for row in rows.values() if PLACES[row.kind != "classification"] == SETS_OF[key]]
            absent = dict.fromkeys(row.dataset for row in kind if row.dataset not in given)
            wrong += [f"{key}: expected {name!r} too, on which there are rows" for name in absent]
    if not wrong:
        some = [(key, name) for key in SOME_ROWS for name in content.get(key) or ()]
        wrong += [unknown(f"row in {key}", name, rows) for key, name in some if name not in rows]
    threads = content.get("threads", 1)
    if type(threads) is not int or threads < 1:
        wrong.append(f"threads: expected a whole number of at least 1, got {shown(threads)}")
    return wrong


def find_row(params: Params, name: str) -> Row:
    """The row of this name; a ValueError names the nearest one."""
    if name not in params.rows:
        raise ValueError(unknown(f"row of the profile {params.profile!r}", name, params.rows))
    return params.rows[name]
