"""The one trapdoor: each kind of task has a module, looked up by name, so that rows of classification need no other.

Each such module offers RECIPES and four functions: problems(row, processes) is a sentence for each thing that is wrong
with a row, task(row, world, workers) what the loop trains, images(row) the images of each split, macs(row) the full
MACs of one image.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .recipes import Recipe

MODULES = {"classification": "gmmvit.train.classification", "detection": "gmmvit.dense", "segmentation": "gmmvit.dense"}


def of(kind: str) -> ModuleType:
    """The module of a kind of task."""
    return importlib.import_module(MODULES[kind])


def recipes() -> dict[str, Recipe]:
    """All recipes by name, of every kind."""
    return {name: recipe for kind in MODULES for name, recipe in of(kind).RECIPES.items()}
