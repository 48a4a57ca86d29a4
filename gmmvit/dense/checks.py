"""What is wrong with a row of detection or segmentation, all at once: gmmvit.train.tasks leads here."""

from __future__ import annotations

import torch

from ..core.errors import unknown
from ..core.masks import MASKS
from ..train.checks import wrong_settings
from ..train.rows import Row
from . import backbone, sets


def problems(row: Row, processes: int = 1) -> list[str]:
    """A sentence for each problem; the data need not be there."""
    wrong = []
    if row.dataset not in sets.SETS:
        wrong.append(unknown(f"data set of the recipe {row.recipe}", row.dataset, sets.SETS))
    if row.mask not in ("none", *MASKS):
        wrong.append(unknown("mask", row.mask, ["none", *MASKS]))
    unset, row = wrong_settings(row)
    wrong += unset
    for option in ("readout", "reset_positions", "init_weights"):
        if option in row.set:
            wrong.append(f"{option}: expected no such setting in a row of {row.recipe_settings.kind}")
    recipe = row.recipe_settings
    if row.dataset in sets.SETS and sets.SETS[row.dataset].kind != recipe.kind:
        kind = sets.SETS[row.dataset].kind
        wrong.append(f"{row.recipe} is a recipe of {recipe.kind}, {row.dataset} a set of {kind}")
    least = 2 if recipe.kind == "segmentation" else 1  # UPerNet normalises over the images of a part
    parts = processes * recipe.accumulate
    if recipe.batch % parts or recipe.batch < least * parts:
        near = max(least, round(recipe.batch / parts)) * parts
        factors = f"{processes} (processes) x {recipe.accumulate} (accumulate)"
        words = f"a multiple of {parts} = {factors}" + (", with 2 images in each part" if least > 1 else "")
        wrong.append(f"batch: expected {words}, got {recipe.batch}; the nearest is {near}")
    try:
        with torch.device("meta"):
            backbone.pyramid(row.model)
    except Exception as error:  # of timm: an unknown name, a model without maps
        wrong.append(f"{row.model} cannot be a pyramid: {' '.join(str(error).split())}")
    return wrong
