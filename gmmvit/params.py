"""The only reader of params.yaml.

params = read()
row = check(find_row(params, "cifar10-vit-gmm-s0"))
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from .checks import bad_row, unsafe, well_typed
from .errors import unknown
from .rows import Row

PLACES = ("rows", "dense_rows")  # of rows in the file: of classification, of detection and segmentation


@dataclass(frozen=True)
class Params:
    """A params.yaml: the rows of a profile by name, those below `dense_rows` too, and its other top-level keys."""

    profile: str
    rows: dict[str, Row]
    rest: dict


class _Loader(yaml.SafeLoader):
    """Safe YAML whose numbers are those of YAML 1.2 (1e-3 is one), and where a key stands once."""

    def compose_mapping_node(self, anchor):
        node, lines = super().compose_mapping_node(anchor), {}
        for key, _ in node.value:
            line, text = key.start_mark.line + 1, str(key.value)
            if text in lines:
                raise yaml.YAMLError(f"the key {text!r} stands twice, in lines {lines[text]} and {line}; expected once")
            lines[text] = line
        return node


_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def parse(text: str) -> object:
    """The value a piece of YAML means: `1e-3` is a number, `mean` a text, `[10, 0]` a list."""
    return yaml.load(text, Loader=_Loader)


def read(path: str | Path = "params.yaml") -> Params:
    """The file's profile and rows; of a row, only keys and types are looked at here, the rest is `check`'s."""
    try:
        content = parse(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path} is not there: expected a file with a profile and rows") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path}: expected a mapping with a profile and rows, got {content or 'nothing'!r}")
    if not isinstance(content.get("dense_rows") or {}, dict):
        raise ValueError(f"{path}: dense_rows: expected rows by name, got {content['dense_rows']!r}")
    for key, kind, words in (("profile", str, "a name"), ("rows", dict, "rows by name")):
        if not isinstance(content.get(key), kind) or not content[key]:
            near = difflib.get_close_matches(key, map(str, content), n=1) if key not in content else []
            hint = f"; the nearest key is {near[0]!r}" if near else ""
            raise ValueError(f"{path}: {key}: expected {words}, got {content.get(key)!r}{hint}")
    rows, wrong = {}, unsafe("profile", content["profile"])
    for place in PLACES:
        for name, given in (content.get(place) or {}).items():
            fields, problems = well_typed(given)
            problems += _unfit(name, rows)
            problems += [] if problems else _misplaced(place, Row(**fields))
            wrong += [f"row {name}: {problem}" for problem in problems]
            if not problems:
                rows[name] = Row(**fields, name=name)
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


def find_row(params: Params, name: str) -> Row:
    """The row of this name; a ValueError names the nearest one."""
    if name not in params.rows:
        raise ValueError(unknown(f"row of the profile {params.profile!r}", name, params.rows))
    return params.rows[name]
