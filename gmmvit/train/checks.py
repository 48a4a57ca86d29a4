"""What is wrong with a row, all at once.

row = check({"dataset": "cifar10", "model": "vit", "mask": "gmm"})
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

from ..core.errors import first_line, shown, unknown
from . import tasks
from .recipes import RANGES, RECIPES
from .rows import MODEL_OPTIONS, START_OPTIONS, Row, fits, mask_hints, recipe_hints, split_counts
from .start import position_parameters, unmasked_model

SAFE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"  # a file name, and the key of a DVC stage
ROW_HINTS = {name: hint for name, hint in get_type_hints(Row).items() if name != "name"}
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", dict: "settings by name"}


class BadRow(ValueError):
    """A row that cannot be run: one problem in each line after the first."""


def check(row: Mapping | Row, processes: int = 1) -> Row:
    """The row, if it can be run here by this many processes; else a BadRow that lists all its problems."""
    from ..data.places import folder_of, record_of
    from ..data.sets import SETS

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


def classification_problems(row: Row, processes: int = 1) -> list[str]:
    """The sentences about a row of classification; of one with an unknown recipe, too."""
    wrong = _unknown_names(row)
    unset, row = wrong_settings(row)
    wrong += unset
    if row.recipe in RECIPES:
        wrong += _misfits(row, processes)
    return wrong + _unbuildable(row)


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


def _unknown_names(row: Row) -> list[str]:
    from ..core.masks import MASKS
    from ..data.sets import SETS

    wrong = [unknown("data set", row.dataset, SETS)] if row.dataset and row.dataset not in SETS else []
    if row.model and row.model not in _models():
        near = difflib.get_close_matches(row.model, _models(), n=1, cutoff=0.4)
        hint = f"the nearest is {near[0]!r}; " if near else ""
        ours = ", ".join(_backbones())
        wrong.append(f"unknown model {row.model!r}: {hint}expected {ours} or a name of timm.list_models()")
    if row.mask != "none" and row.mask not in MASKS:
        wrong.append(unknown("mask", row.mask, ["none", *MASKS]))
    return wrong + ([unknown("recipe", row.recipe, tasks.recipes())] if row.recipe not in RECIPES else [])


def wrong_settings(row: Row) -> tuple[list[str], Row]:
    """Sentences about overrides that do not exist or fit, and the row without them."""
    from ..core.masks import MASKS
    from ..data.sets import SETS

    options = {mask: mask_hints(mask) for mask in MASKS}
    own = options.get(row.mask, {})
    valid = {**recipe_hints(row.recipe), **own, **START_OPTIONS, **dict.fromkeys(MODEL_OPTIONS, str)}
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
    return wrong, dataclasses.replace(row, set=kept)


def _misfits(row: Row, processes: int) -> list[str]:
    """How the settings of a recipe fail to fit each other, the data set or the processes."""
    from ..data import SETS, augmentation

    recipe, dataset = row.recipe_settings, SETS.get(row.dataset)
    wrong, parts = [], processes * recipe.accumulate * (2 if recipe.mixes else 1)
    if recipe.batch % parts:
        near = max(1, round(recipe.batch / parts)) * parts
        factors = f"{processes} (processes) x {recipe.accumulate} (accumulate)"
        factors += " x 2, for pairs are mixed" if recipe.mixes else ""
        wrong.append(f"batch: expected a multiple of {parts} = {factors}, got {recipe.batch}; the nearest is {near}")
    if recipe.warmup_epochs >= recipe.epochs:
        wrong.append(f"warmup_epochs: expected fewer than the {recipe.epochs} epochs, got {recipe.warmup_epochs:g}")
    if not recipe.per_step and recipe.warmup_epochs % 1:
        wrong.append(f"warmup_epochs: expected whole epochs where per_step is false, got {recipe.warmup_epochs:g}")
    if dataset:
        images = split_counts(dataset)
        if recipe.batch > images["train"]:
            told = f"the training images of {dataset.name}"
            wrong.append(f"batch: expected at most {images['train']:,}, {told}, got {recipe.batch:,}")
        if recipe.select == "validation" and "val" not in images:
            wrong.append(f"select: expected 'last', for {dataset.name} has no validation split, got 'validation'")
        try:
            augmentation(recipe.augmentation, dataset, train=True)
        except ValueError as error:
            wrong.append(str(error))
    return wrong


def _unbuildable(row: Row) -> list[str]:
    """What the mask and the model themselves object to: the mask on a small grid, the model without memory."""
    from ..core.masks import MASKS
    from ..data.sets import SETS

    wrong = []
    for option, value in row.mask_options.items():
        try:
            MASKS[row.mask]((2, 2), 1, **{option: value})
        except (ValueError, TypeError) as error:
            wrong.append(str(error))
        except (RuntimeError, OverflowError, MemoryError) as error:  # of torch, for numbers it cannot hold
            wrong.append(f"{option}: {shown(value)} is too large ({first_line(error)})")
    if row.model in _models() and row.dataset in SETS and row.recipe in RECIPES:
        settings = tuple((name, row.set[name]) for name in ("drop_path", *MODEL_OPTIONS) if name in row.set)
        problem = _readout_problem(row) or _model_problem(row.dataset, row.model, row.recipe, settings)
        wrong += [problem] if problem else _wrong_start(row)
    return wrong


def _wrong_start(row: Row) -> list[str]:
    """What is wrong with where the weights begin."""
    import timm

    options, wrong = row.start_options, []
    loaded = options.get("pretrained") or options.get("pretrained_file")
    if options.get("pretrained") and not options.get("pretrained_file"):
        if row.model in _backbones() or not timm.is_model_pretrained(row.model):
            wrong.append(f"pretrained: there are no pretrained weights of {row.model}; expected pretrained_file")
    if options.get("reset_positions") and not loaded:
        wrong.append("reset_positions: expected pretrained or pretrained_file too: other positions are fresh anyway")
    elif options.get("reset_positions") and not _has_positions(row.dataset, row.model):
        wrong.append(f"reset_positions: {row.model} has no position embedding or relative bias to draw anew")
    return wrong


@cache
def _has_positions(dataset: str, model: str) -> bool:
    """Whether the model has positions of its own."""
    import torch

    with torch.device("meta"):
        return bool(position_parameters(unmasked_model(Row(dataset, model))))


@cache
def _model_problem(dataset: str, model: str, recipe: str, settings: tuple[tuple[str, object], ...]) -> str:
    """What the model's constructor objects to; tried once for the rows that differ in nothing it sees."""
    import torch

    try:
        with torch.device("meta"):
            unmasked_model(Row(dataset, model, recipe=recipe, set=dict(settings)))
    except (ValueError, TypeError, AssertionError) as error:
        return f"{model} cannot be built for {dataset}: {error}"
    return ""


def _readout_problem(row: Row) -> str:
    """Only gmmvit's ViTs have a choice; CaiT and PiT would ignore it."""
    readout, name = row.model_options.get("readout"), row.model.removeprefix("gmmvit_")
    if readout is None or name in _backbones() and not (name in ("cait", "pit") and readout == "mean"):
        return ""
    kind = "always reads its class token" if name in ("cait", "pit") else "reads out as timm has it"
    return f"readout is a choice of gmmvit's ViTs: {row.model} {kind}, got {readout!r}"


def _words(hint: object) -> str:
    return f"{len(get_args(hint))} numbers" if get_origin(hint) is tuple else WORDS[hint]


def unsafe(what: str, name: object) -> list[str]:
    """The sentence about a name that is no file name and no key of a DVC stage; [] for a good one."""
    if isinstance(name, str) and re.fullmatch(SAFE_NAME, name):
        return []
    return [f"{what}: expected letters, digits, '-', '_' and '.', beginning with a letter or digit, got {shown(name)}"]


def _backbones() -> Iterable[str]:
    from ..models import BACKBONES

    return BACKBONES


@cache
def _models() -> list[str]:
    import timm

    return [*_backbones(), *timm.list_models()]
