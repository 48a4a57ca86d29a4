"""Where trained models look and what position biases they learned: of a profile's runs, or of any model by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..analysis import drawn
from ..analysis.axes import MODELS as COMPARED
from ..analysis.look import Kernels, beside, by_layer, look_at
from ..analysis.masks import relative_kernel
from ..analysis.samples import of_an_arm
from ..train import learned
from ..train.rows import Row
from .names import MASKS, MODELS
from .runs import DONE
from .starts import cell_of, usual

LAST, RESET = "trained", "positions\nre-initialised"  # lines of a figure
LOOKED = "looked at"


class View(NamedTuple):
    """What is known of where one trained model looks, and of its position biases."""

    model: str
    dataset: str  # of the images; the weights are those of its training, or published ones
    arm: str
    row: Row | None  # None: published weights
    features: str = ""  # "last" or "before the norm"
    fields: Mapping[str, np.ndarray] = {}  # trained, and with positions drawn anew, (H, W)
    biases: Kernels = {}  # without the Gaussian
    gaussians: Kernels = {}

    @property
    def label(self) -> str:
        return f"{MODELS.get(self.model, self.model)}, {self.arm}"


def views(rows: pd.DataFrame) -> list[View]:
    """A view of each model and arm: of its first data set and seed that were run; arms of ablations are left out.

    So are masks that begin elsewhere than most, and the model of the comparison of priors, of which there are a dozen
    and which has a notebook of its own.
    """
    found, cells = {}, usual(rows)
    rows = rows[(rows.state == DONE) & (rows.kind == "classification") & (rows.model != COMPARED[0])]
    for each in rows.itertuples():
        arm = _arm(each.row)
        if arm and cell_of(each.row) == cells[each.row.mask] and (each.model, arm) not in found:
            view = _view(each.row, arm, each.folder)
            if view.fields or view.biases:
                found[each.model, arm] = view
    return list(found.values())


def _arm(row: Row) -> str:
    """The arm of a row in words; none of a row with settings of another question."""
    if not of_an_arm(row):
        return ""
    words = MASKS.get(row.mask, row.mask)
    shared = row.set.get("share_heads")
    words += "" if shared is None else " shared" if shared else " head-wise"
    start = row.start_options
    pretrained = start.get("pretrained") or start.get("pretrained_file")
    return words + (" on intact positions" if pretrained and not start.get("reset_positions") else "")


def _view(row: Row, arm: str, run: Path) -> View:
    arrays = drawn.arrays(run)
    fields = {line: arrays[key] for line, key in ((LAST, "erf"), (RESET, "erf_reset")) if key in arrays}
    biases = by_layer(arrays.get("position_bias", ()))
    gaussians = [relative_kernel(mask.weight().mean(0), mask.grid) for mask in learned.read(run) if mask.kind == "gab"]
    return View(
        row.model, row.dataset, arm, row, str(arrays.get("erf_features", "")), fields, biases, beside(biases, gaussians)
    )


def look(model: str, weights: str, images: int, dataset: str) -> View:
    """The view of a timm model with its published weights or those of a file, or of a weights.pt that a run left."""
    seen = look_at(model, weights, images, dataset)
    return View(model, seen.dataset, LOOKED, seen.row, "last", {LAST: seen.field}, seen.biases, seen.gaussians)


def with_biases(found: Iterable[View]) -> list[View]:
    """The views of the GAB paper's kind of model, whose bias spans the image, and of one looked at with such biases."""
    return [view for view in found if view.biases and ("relpos" in view.model or view.arm == LOOKED)]


def summed(found: Iterable[View]) -> dict[str, Kernels]:
    """The bias of each view, and beside a Gaussian also what the two add up to: {words: {layer: kernel}}."""
    lines = {}
    for view in found:
        lines[view.label + (", bias alone" if view.gaussians else "")] = view.biases
        if view.gaussians:
            lines[f"{view.label}, bias + Gaussian"] = {
                layer: kernel + view.gaussians[layer] for layer, kernel in view.biases.items()
            }
    return lines
