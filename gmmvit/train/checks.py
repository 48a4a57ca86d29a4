"""What is wrong with a row, all at once.

row = check({"dataset": "cifar10", "model": "vit", "mask": "gmm"})
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

from ..core.errors import shown, unknown
from ..data.places import folder_of, record_of
from ..data.sets import SETS
from . import known, tasks
from .recipes import RANGES
from .rows import MASK_STARTS, MODEL_OPTIONS, START_OPTIONS, Row, fits, recipe_hints

SAFE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"  # a file name, and the key of a DVC stage
ROW_HINTS = {name: hint for name, hint in get_type_hints(Row).items() if name != "name"}
OF_MASKS = {"mask_lr": 1.0, "freeze_masks": False}  # settings of a recipe that do nothing without a mask
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", dict: "settings by name"}


class BadRow(ValueError):
    """A row that cannot be run: one problem in each line after the first."""


def check(row: Mapping | Row, processes: int = 1) -> Row:
    """The row, if it can be run here by this many processes; else a BadRow that lists all its problems."""
    wrong = problems(row, processes)
    given = _fields(row)
    dataset = given.get("dataset")
    if isinstance(dataset, str) and dataset in SETS and record_of(folder_of(dataset)) is None:
        wrong.append(f"{dataset} is not in {folder_of(dataset)}: fetch it with `gmmvit data {dataset}`")
    settings = given.get("set")
    weights = settings.get("pretrained_file") if isinstance(settings, dict) else None
    if isinstance(weights, str) and not Path(weights).is_file():
        wrong.append(f"pretrained_file: expected a file of weights, got {weights}, which is not there")
    if wrong:
        raise bad_row(str(given.get("name") or "the row"), wrong)
    return row if isinstance(row, Row) else Row(**row)


def problems(row: Mapping | Row, processes: int = 1) -> list[str]:
    """What is wrong with a row wherever it may run: a sentence for each problem; the data need not be there."""
    fields, wrong = well_typed(_fields(row), named=True)
    row = Row(**{"dataset": "", "model": "", **fields})
    return wrong + tasks.of(row.kind).problems(row, processes)


def _fields(row: Mapping | Row) -> dict:
    return dict(vars(row)) if isinstance(row, Row) else dict(row)


def bad_row(what: str, problems: list[str]) -> BadRow:
    return BadRow(f"{what} has {len(problems)} problem{'s' * (len(problems) > 1)}:\n" + "\n".join(problems))


def well_typed(given: object, named: bool = False) -> tuple[dict, list[str]]:
    """The fields of a row that are of their type, and sentences about the others."""
    if not isinstance(given, dict):
        return {}, [f"expected {', '.join(ROW_HINTS)} by name, got {shown(given)}"]
    hints = ROW_HINTS | ({"name": str} if named else {})
    missing = [key for key in ("dataset", "model") if given.get(key) in (None, "")]
    wrong = [f"{key}: expected a name, got nothing" for key in missing]
    wrong += [unknown("key", key, hints) for key in given if key not in hints]
    wrong += [
        f"{key}: expected {_words(hint)}, got {shown(given[key])}"
        for key, hint in hints.items()
        if key in given and key not in missing and not fits(given[key], hint)
    ]
    fields = {key: value for key, value in given.items() if key in hints and fits(value, hints[key])}
    wrong += [f"set: expected names of settings, got {key!r}" for key in fields.get("set", {}) if type(key) is not str]
    if "set" in fields:
        fields["set"] = {key: value for key, value in fields["set"].items() if type(key) is str}
    if not 0 <= (seed := fields.get("seed", 0)) < 2**64:
        wrong.append(
            f"seed: expected a whole number {'of at least 0' if seed < 0 else 'below 2**64'}, got {shown(seed)}"
        )
    return fields, wrong + (unsafe("name", fields["name"]) if "name" in fields else [])


def wrong_settings(row: Row) -> tuple[list[str], Row]:
    """Sentences about overrides that do not exist or fit, and the row without them."""
    options = {mask: said.options for mask, said in known.masks().items()}
    own = options.get(row.mask, {})
    valid = {**recipe_hints(row.recipe), **own, **START_OPTIONS, **MASK_STARTS, **dict.fromkeys(MODEL_OPTIONS, str)}
    within = {name: (words, test) for words, (test, names) in RANGES.items() for name in names}
    wrong, kept = [], {}
    for key, value in row.set.items():
        masks = [mask for mask in options if key in options[mask]]
        if key == "img_size":
            wrong.append(f"img_size: expected no such setting, for the data set gives the size, got {value!r}")
        elif key == "num_classes":
            if row.dataset in SETS and value != SETS[row.dataset].classes:
                wrong.append(f"num_classes: expected {SETS[row.dataset].classes} as {row.dataset} has, got {value!r}")
        elif key not in valid and masks:
            wrong.append(f"{key} is an option of the mask {' and '.join(masks)}, but the mask of the row is {row.mask}")
        elif key not in valid:
            wrong.append(unknown("setting", key, valid))
        elif get_origin(valid[key]) is Literal and value not in get_args(valid[key]):
            wrong.append(unknown(key, value, get_args(valid[key])))
        elif not fits(value, valid[key]):
            wrong.append(f"{key}: expected {_words(valid[key])}, got {value!r}")
        elif key in within and not within[key][1](value):
            wrong.append(f"{key}: expected a number {within[key][0]}, got {value!r}")
        else:
            kept[key] = value
    row = dataclasses.replace(row, set=kept)
    return wrong + _unmasked(row), row


def _unmasked(row: Row) -> list[str]:
    """Sentences about what is said of a mask where there is none, or none that can do it."""
    unfit = [key for key, plain in (*OF_MASKS.items(), ("start", None)) if row.set.get(key, plain) != plain]
    if row.mask == "none":
        return [f"{key}: expected a mask that it is said of, got {row.set[key]!r} and the mask none" for key in unfit]
    said = known.masks().get(row.mask)
    if said and row.set.get("start") == "neutral" and not said.neutral:
        return [f"start: expected 'paper', for the mask {row.mask} has no neutral start, got 'neutral'"]
    return []


def _words(hint: object) -> str:
    return f"{len(get_args(hint))} numbers" if get_origin(hint) is tuple else WORDS[hint]


def unsafe(what: str, name: object) -> list[str]:
    """The sentence about a name that is no file name and no key of a DVC stage; [] for a good one."""
    if isinstance(name, str) and re.fullmatch(SAFE_NAME, name):
        return []
    return [f"{what}: expected letters, digits, '-', '_' and '.', beginning with a letter or digit, got {shown(name)}"]
