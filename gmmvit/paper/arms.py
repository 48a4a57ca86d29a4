"""A profile's grid written out: a row for every combination of the lists in an arm.

arms:
  default: {dataset: cifar10, model: vit, mask: gmm, recipe: short, seed: [0, 1, 2], mask_lr: 60}
  kernels: {kernels: [1, 3, 10]}  # nine rows; what an arm does not name is the default's
  plain: {mask: none}  # without a mask_lr: what the default says of masks is said of those that can have it
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from io import StringIO

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from ..core.errors import shown
from ..train import known
from ..train.checks import OF_MASKS, ROW_HINTS, bad_row, well_typed
from ..train.rows import MASK_STARTS, Row, row_name

FIELDS = tuple(name for name in ROW_HINTS if name != "set")  # all other keys of an arm are settings
MOST = 20_000  # rows


def written_out(grid: Mapping) -> dict:
    """The content of a params.yaml: the grid's rows by name, their data sets, and its other keys."""
    arms, default = _arms(grid["arms"])
    rows = [row for name, arm in arms.items() for row in _rows(name, arm, default)]
    places: dict[str, dict[str, Row]] = {"rows": {}, "dense_rows": {}}
    for name, row in zip(_names(str(grid.get("profile")), rows, default), rows, strict=True):
        if any(name in place for place in places.values()):
            raise ValueError(f"arms: expected each row once, got {name} twice")
        places["rows" if row.kind == "classification" else "dense_rows"][name] = row
    content = {key: value for key, value in grid.items() if key != "arms"}
    for sets, place in (("datasets", "rows"), ("dense_datasets", "dense_rows")):
        content[sets] = list(dict.fromkeys(row.dataset for row in places[place].values()))
        content[place] = {name: _fields(row) for name, row in places[place].items()}
    return content


def text(content: Mapping) -> str:
    """A params.yaml, each row in a line."""
    places = {
        place: CommentedMap({name: CommentedMap(row) for name, row in content[place].items()})
        for place in ("rows", "dense_rows")
    }
    for row in (row for rows in places.values() for row in rows.values()):
        row.fa.set_flow_style()
    yaml, stream = YAML(), StringIO()
    yaml.width = 10_000
    yaml.dump({**content, **places}, stream)
    return stream.getvalue()


def _arms(given: object) -> tuple[dict[str, dict], dict]:
    """The arms by name, and what those that do not name it take from the default."""
    if not isinstance(given, dict) or not all(isinstance(arm, dict) for arm in given.values()):
        raise ValueError(f"arms: expected settings by name in each arm, got {shown(given)}")
    return {str(name): arm for name, arm in given.items() if name != "default"}, given.get("default", {})


def _rows(name: str, own: dict, default: dict) -> Iterator[Row]:
    """Every combination of an arm's lists: the first key changes slowest, the default's keys fastest."""
    arm = own | {key: default[key] for key in default if key not in own}
    lists = [value if isinstance(value, list) else [value] for value in arm.values()]
    if math.prod(map(len, lists)) > MOST:
        raise ValueError(f"arms: expected at most {MOST:,} rows in {name}, got {math.prod(map(len, lists)):,}")
    options = _options()
    for values in itertools.product(*lists):
        chosen = dict(zip(arm, values, strict=True))
        mask = str(chosen.get("mask", "none"))
        unfit = options.keys() - own.keys() - {key for key in options if mask in options[key]}
        chosen = {key: value for key, value in chosen.items() if key not in unfit}
        row = {key: chosen[key] for key in FIELDS if key in chosen}
        row["set"] = {key: value for key, value in chosen.items() if key not in FIELDS}
        fields, wrong = well_typed(row)
        if wrong:
            raise bad_row(f"arms: {name}", wrong)
        yield Row(**fields)


def _options() -> dict[str, set[str]]:
    """The settings that are said of masks, each with the masks that have it."""
    masks = known.masks()
    found: dict[str, set[str]] = {key: set(masks) for key in (*OF_MASKS, *MASK_STARTS)}
    for mask, said in masks.items():
        for key in said.options:
            found.setdefault(key, set()).add(mask)
    return found


def _names(profile: str, rows: list[Row], default: dict) -> Iterator[str]:
    """A name for each row: its profile and contents, without what is common to all on its data set.

    That is the recipe, the settings that all share, and what the default says of masks.
    """
    of_masks = {key: default[key] for key in default if key in _options()}
    usual = {key: value[0] if isinstance(value, list) and len(value) == 1 else value for key, value in of_masks.items()}
    shared: dict[str, dict] = {}
    recipes: dict[str, set[str]] = {}
    for row in rows:
        alike = shared.setdefault(row.dataset, row.set)
        shared[row.dataset] = {key: value for key, value in alike.items() if key in row.set and row.set[key] == value}
        recipes.setdefault(row.dataset, set()).add(row.recipe)
    for row in rows:
        common = usual | shared[row.dataset]
        own = {key: value for key, value in row.set.items() if key not in common or common[key] != value}
        recipe = row.recipe if len(recipes[row.dataset]) > 1 else "short"  # which a name leaves out
        name = f"{profile}-{row_name(row.dataset, row.model, row.mask, row.seed, own, recipe)}"
        yield re.sub(r"(?<=\d)\.(?=\d)", "p", name).replace(".", "_")  # to DVC a dot is a step into the file


def _fields(row: Row) -> dict:
    """A row as it stands in the file."""
    fields = {key: getattr(row, key) for key in FIELDS}
    return fields | {"set": dict(row.set)} if row.set else fields
