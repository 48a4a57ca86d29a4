"""A row, one training: its name, and its settings by the name of whom they are for.

row = Row("cifar10", "vit", "gmm", set={"kernels": 3})
row.mask_options  # {"kernels": 3}
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal, get_args, get_origin, get_type_hints

from . import known, tasks
from .recipes import RECIPES, Recipe, find

if TYPE_CHECKING:
    from ..data import DataSet

LENGTH = (
    "epochs",
    "warmup_epochs",
    "batch",
    "accumulate",
    "precision",
    "mask_lr",
)  # settings that leave a row in its arm
MODEL_OPTIONS = ("readout",)
START_OPTIONS = {  # of gmmvit.train.start
    "pretrained": bool,
    "pretrained_file": str,
    "reset_positions": bool,
    "init_weights": Literal["mimetic", "impulse"],
}
LEAST, UNLEARNED = 0.01, "did not learn"  # what is said of masks that moved less than this share of their spread
MASK_STARTS = {"start": Literal["paper", "neutral"]}


@dataclass(frozen=True)
class Row:
    """One training: `set` overrides settings of the recipe, options of the mask and of the model, by name."""

    dataset: str
    model: str
    mask: str = "none"
    recipe: str = "short"
    seed: int = 0
    set: dict = field(default_factory=dict)
    name: str = ""  # made of the rest where none is given

    def __post_init__(self):
        if not self.name:
            made = row_name(self.dataset, self.model, self.mask, self.seed, self.set, self.recipe)
            object.__setattr__(self, "name", made)

    @property
    def recipe_settings(self) -> Recipe:
        """The recipe with the row's own settings in it."""
        return dataclasses.replace(find(self.recipe), **self._chosen(recipe_hints(self.recipe)))

    @property
    def kind(self) -> str:
        """classification, detection or segmentation, as the recipe is; of an unknown recipe, classification."""
        return _recipe(self.recipe).kind

    @property
    def mask_options(self) -> dict:
        return self._chosen(mask_hints(self.mask))

    @property
    def attached(self) -> dict:
        """The options of `attach`: as the paper starts the mask unless the row says another, and its own."""
        return {"start": "paper"} | self._chosen(MASK_STARTS) | self.mask_options

    @property
    def model_options(self) -> dict:
        return self._chosen(dict.fromkeys(MODEL_OPTIONS, str))

    @property
    def start_options(self) -> dict:
        return self._chosen(START_OPTIONS)

    def _chosen(self, hints: Mapping[str, object]) -> dict:
        return {name: _converted(value, hints[name]) for name, value in self.set.items() if name in hints}


def row_name(
    dataset: str, model: str, mask: str = "none", seed: int = 0, set: Mapping | None = None, recipe: str = "short"
) -> str:
    """cifar10-vit-gmm-s0, cifar10-vit-gmm-kernels3-s0, cifar10-vit-gmm-gmm-s0 (mask gmm, recipe gmm)."""
    settings = [setting_name(*setting) for setting in sorted((set or {}).items())]
    parts = [dataset, model, mask, *([recipe] if recipe != "short" else []), *settings, f"s{seed}"]
    return re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(parts)).lstrip("._-")


def setting_name(key: str, value: object) -> str:
    """kernels3, share_heads, no_transmix, sigma_init10_0: a setting in a row's name."""
    if isinstance(value, bool):
        return key if value else f"no_{key}"
    if isinstance(value, (list, tuple)):
        return key + "_".join(map(_number_name, value))
    return f"{key}_{value}" if isinstance(value, str) else key + _number_name(value)


def _number_name(value: object) -> str:
    short = f"{value:g}" if isinstance(value, (int, float)) else str(value)
    return short if isinstance(value, (int, float)) and float(short) == value else str(value)


def split_counts(dataset: DataSet) -> dict[str, int]:
    """Images of each split, after the 70/15/15 split of pooled sets."""
    from ..data.sets import SHARES

    if not dataset.pooled:
        return dataset.counts
    return {split: int(sum(dataset.counts.values()) * share) for split, share in SHARES.items()}


def recipe_hints(recipe: str) -> dict[str, object]:
    """{setting: its type} of a recipe; of an unknown one, those of classification."""
    found = _recipe(recipe)
    return _hints(found if isinstance(found, type) else type(found))


def _recipe(name: str) -> Recipe | type[Recipe]:
    """The recipe of this name; of an unknown one, the class of classification's."""
    return RECIPES.get(name) or tasks.recipes().get(name, Recipe)


@cache
def _hints(recipe: type[Recipe]) -> dict[str, object]:
    hints = get_type_hints(recipe)
    return {each.name: hints[each.name] for each in dataclasses.fields(recipe) if each.name not in recipe.fixed}


def mask_hints(mask: str) -> dict[str, object]:
    """{option: its type} of a mask; of "none", {}."""
    found = known.masks().get(mask)
    return found.options if found else {}


def fits(value: object, hint: object) -> bool:
    """Whether a value is of a type: a bool is no number, a whole number is a float, a list may be a tuple."""
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)
    if get_origin(hint) is tuple:
        hints = _of_items(hint, value)
        return isinstance(value, (list, tuple)) and len(value) == len(hints) and all(map(fits, value, hints))
    return type(value) is hint if get_origin(hint) is not Literal else value in get_args(hint)


def _of_items(hint: object, value: object) -> tuple:
    """The type of each item of a tuple; tuple[int, ...] takes any number."""
    hints = get_args(hint)
    return (hints[0],) * len(value) if hints[1:] == (...,) and isinstance(value, (list, tuple)) else hints


def _converted(value: object, hint: object) -> object:
    if get_origin(hint) is tuple:
        return tuple(map(_converted, value, _of_items(hint, value)))
    return float(value) if hint is float else value
