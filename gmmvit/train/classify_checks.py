"""What is wrong with a row of classification, all at once: gmmvit.train.tasks leads here."""

from __future__ import annotations

import difflib
import math
from functools import cache

import timm
import torch

from ..core.errors import first_line, shown, unknown
from ..core.masks import MASKS
from ..data import SETS, augmentation
from ..data.subset import size
from ..models import BACKBONES
from . import tasks
from .checks import wrong_settings
from .recipes import RECIPES
from .rows import MODEL_OPTIONS, Row, split_counts
from .start import fresh_model, position_parameters, unmasked_model


def problems(row: Row, processes: int = 1) -> list[str]:
    """The sentences about a row of classification; of one with an unknown recipe, too."""
    wrong = _unknown_names(row)
    unset, row = wrong_settings(row)
    wrong += unset
    if row.recipe in RECIPES:
        wrong += _misfits(row, processes)
    return wrong + _unbuildable(row)


def _unknown_names(row: Row) -> list[str]:
    wrong = [unknown("data set", row.dataset, SETS)] if row.dataset and row.dataset not in SETS else []
    if row.model and row.model not in _models():
        near = difflib.get_close_matches(row.model, _models(), n=1, cutoff=0.4)
        hint = f"the nearest is {near[0]!r}; " if near else ""
        ours = ", ".join(BACKBONES)
        wrong.append(f"unknown model {row.model!r}: {hint}expected {ours} or a name of timm.list_models()")
    if row.mask != "none" and row.mask not in MASKS:
        wrong.append(unknown("mask", row.mask, ["none", *MASKS]))
    return wrong + ([unknown("recipe", row.recipe, tasks.recipes())] if row.recipe not in RECIPES else [])


def _misfits(row: Row, processes: int) -> list[str]:
    """How the settings of a recipe fail to fit each other, the data set or the processes."""
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
        elif recipe.batch > (left := size(images["train"], recipe.fraction)):
            told = f"so that a batch of {recipe.batch:,} is there of the {images['train']:,} training images"
            least = math.ceil(1e4 * recipe.batch / images["train"]) / 1e4
            wrong.append(f"fraction: expected at least {least:g}, {told}, got {recipe.fraction:g} ({left:,} images)")
        if recipe.select == "validation" and "val" not in images:
            wrong.append(f"select: expected 'last', for {dataset.name} has no validation split, got 'validation'")
        try:
            augmentation(recipe.augmentation, dataset, train=True)
        except ValueError as error:
            wrong.append(str(error))
    return wrong


def _unbuildable(row: Row) -> list[str]:
    """What the mask and the model themselves object to: the mask on a small grid, the model without memory."""
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
    options, wrong = row.start_options, []
    loaded = options.get("pretrained") or options.get("pretrained_file")
    if options.get("pretrained") and not options.get("pretrained_file"):
        if row.model in BACKBONES or not timm.is_model_pretrained(row.model):
            wrong.append(f"pretrained: there are no pretrained weights of {row.model}; expected pretrained_file")
    if options.get("reset_positions") and not loaded:
        wrong.append("reset_positions: expected pretrained or pretrained_file too: other positions are fresh anyway")
    elif options.get("reset_positions") and not _has_positions(row.dataset, row.model):
        wrong.append(f"reset_positions: {row.model} has no position embedding or relative bias to draw anew")
    if name := options.get("init_weights"):
        wrong += ["init_weights: expected no pretrained weights, which would take their place"] if loaded else []
        wrong += _wrong_init(row.dataset, row.model, name)
    return wrong


@cache
def _wrong_init(dataset: str, model: str, name: str) -> list[str]:
    """What an initialisation objects to in a model."""
    try:
        fresh_model(Row(dataset, model, set={"init_weights": name}))
    except ValueError as error:
        return [f"init_weights: {error}"]
    return []


@cache
def _has_positions(dataset: str, model: str) -> bool:
    """Whether the model has positions of its own."""
    with torch.device("meta"):
        return bool(position_parameters(unmasked_model(Row(dataset, model))))


@cache
def _model_problem(dataset: str, model: str, recipe: str, settings: tuple[tuple[str, object], ...]) -> str:
    """What the model's constructor objects to; tried once for the rows that differ in nothing it sees."""
    try:
        with torch.device("meta"):
            unmasked_model(Row(dataset, model, recipe=recipe, set=dict(settings)))
    except (ValueError, TypeError, AssertionError) as error:
        return f"{model} cannot be built for {dataset}: {error}"
    return ""


def _readout_problem(row: Row) -> str:
    """Only gmmvit's ViTs have a choice; CaiT and PiT would ignore it."""
    readout, name = row.model_options.get("readout"), row.model.removeprefix("gmmvit_")
    if readout is None or name in BACKBONES and not (name in ("cait", "pit") and readout == "mean"):
        return ""
    kind = "always reads its class token" if name in ("cait", "pit") else "reads out as timm has it"
    return f"readout is a choice of gmmvit's ViTs: {row.model} {kind}, got {readout!r}"


@cache
def _models() -> list[str]:
    return [*BACKBONES, *timm.list_models()]
