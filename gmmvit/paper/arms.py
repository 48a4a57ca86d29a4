"""A profile's grid written out: a row for every combination of the lists in an arm.

arms:
  default: {dataset: cifar10, model: vit, mask: gmm, recipe: short, seed: [0, 1, 2]}
  kernels: {kernels: [1, 3, 10]}  # nine rows; what an arm does not name is the default's
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
from ..train.checks import ROW_HINTS, bad_row, well_typed
from ..train.rows import Row, row_name

FIELDS = tuple(name for name in ROW_HINTS if name != "set")  # all other keys of an arm are settings
MOST = 20_000  # rows


def written_out(grid: Mapping) -> dict:
    """The content of a params.yaml: the grid's rows by name, their data sets, and its other keys."""
    rows = [row for name, arm in _arms(grid["arms"]).items() for row in _rows(name, arm)]
    places: dict[str, dict[str, Row]] = {"rows": {}, "dense_rows": {}}
    for name, row in zip(_names(str(grid.get("profile")), rows), rows, strict=True):
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


def _arms(given: object) -> dict[str, dict]:
    """The arms by name, each with what it takes from the default."""
    if not isinstance(given, dict) or not all(isinstance(arm, dict) for arm in given.values()):
        raise ValueError(f"arms: expected settings by name in each arm, got {shown(given)}")
    default = given.get("default", {})
    arms = {str(name): arm for name, arm in given.items() if name != "default"}
    return {name: arm | {key: default[key] for key in default if key not in arm} for name, arm in arms.items()}


def _rows(name: str, arm: dict) -> Iterator[Row]:
    """Every combination of an arm's lists: the first key changes slowest, the default's keys fastest."""
    lists = [value if isinstance(value, list) else [value] for value in arm.values()]
    if math.prod(map(len, lists)) > MOST:
        raise ValueError(f"arms: expected at most {MOST:,} rows in {name}, got {math.prod(map(len, lists)):,}")
    for values in itertools.product(*lists):
        chosen = dict(zip(arm, values, strict=True))
        row = {key: chosen[key] for key in FIELDS if key in chosen}
        row["set"] = {key: value for key, value in chosen.items() if key not in FIELDS}
        fields, wrong = well_typed(row)
        if wrong:
            raise bad_row(f"arms: {name}", wrong)
        yield Row(**fields)


def _names(profile: str, rows: list[Row]) -> Iterator[str]:
    """A name for each row: its profile and contents, without the recipe and settings that all on its data set share."""
    shared: dict[str, dict] = {}
    recipes: dict[str, set[str]] = {}
    for row in rows:
        alike = shared.setdefault(row.dataset, row.set)
        shared[row.dataset] = {key: value for key, value in alike.items() if key in row.set and row.set[key] == value}
        recipes.setdefault(row.dataset, set()).add(row.recipe)
    for row in rows:
        own = {key: value for key, value in row.set.items() if key not in shared[row.dataset]}
        recipe = row.recipe if len(recipes[row.dataset]) > 1 else "short"  # which a name leaves out
        name = f"{profile}-{row_name(row.dataset, row.model, row.mask, row.seed, own, recipe)}"
        yield re.sub(r"(?<=\d)\.(?=\d)", "p", name).replace(".", "_")  # to DVC a dot is a step into the file


def _fields(row: Row) -> dict:
    """A row as it stands in the file."""
    fields = {key: getattr(row, key) for key in FIELDS}
    return fields | {"set": dict(row.set)} if row.set else fields
