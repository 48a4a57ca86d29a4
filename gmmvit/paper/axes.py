"""Accuracy on images unlike those of the training, arm by arm: what `gmmvit analyse` measured (gmmvit.analysis.axes).

Rows are those of gmmvit.paper.priors.arms, or any with an "arm", a "seed" and the "folder" of their run.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from ..analysis import drawn
from .charts import PAGE, Figure, panels, styled
from .runs import DONE, scores
from .tables import Column, Table

AXES = {  # how each is called, and whether its values double
    "corruption": ("severity of the corruption (0: none), mean of 15 kinds", False),
    "occlusion": ("patches that are hidden (%)", False),
    "shuffle": ("tiles that change places, in a row (1: none)", True),
    "resolution": ("side of the image (px)", False),
}
SUMMED = {  # of the table: what a column is called, and its number of a run's arrays
    "own": ("as they are", lambda arrays: arrays["occlusion"][0]),
    "corrupted": ("corrupted, mean of all", lambda arrays: arrays["corruption"].mean()),
    "hidden": ("half of it hidden", lambda arrays: _at(arrays, "occlusion", 0.5)),
    "shuffled": ("shuffled, 4 × 4", lambda arrays: _at(arrays, "shuffle", 4)),
    "large": ("at 64 px", lambda arrays: _at(arrays, "resolution", 64)),
}
ACROSS = 5
PLAIN = "plain"  # the arm that the others are seen beside


def measured(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[dict[str, np.ndarray]]]:
    """The rows whose axes were measured, and the arrays of each."""
    rows = rows[rows.state == DONE]
    arrays = [drawn.arrays(run) for run in rows.get("folder", ())]
    known = ["corruption" in each for each in arrays]
    return rows[known], [each for each, there in zip(arrays, known, strict=True) if there]


def curves(rows: pd.DataFrame, axis: str) -> pd.DataFrame:
    """A line for each run and place on an axis: arm, seed, at, top1 (%); corruption is the mean of its kinds."""
    found = []
    there, known = measured(rows)
    for row, arrays in zip(there.itertuples(), known, strict=True):
        at, top1 = arrays[f"{axis}_axis"], arrays[axis]
        if axis == "corruption":
            at, top1 = np.arange(1 + top1.shape[1]), [arrays["occlusion"][0], *top1.mean(0)]
        at = 100 * at if axis == "occlusion" else at
        found += [{"arm": row.arm, "seed": row.seed, "at": x, "top1": y} for x, y in zip(at, top1, strict=True)]
    return pd.DataFrame(found, columns=["arm", "seed", "at", "top1"])


def images(rows: pd.DataFrame) -> int:
    """How many test images the accuracies are of; 0 where none was measured."""
    return min((int(arrays["axes_images"]) for arrays in measured(rows)[1]), default=0)


@styled
def figure(rows: pd.DataFrame, axis: str) -> Figure | None:
    """A panel for each arm: its mean over seeds and their range as a band, the plain model dashed, the others in grey.

    None where nothing was measured along this axis.
    """
    found = curves(rows, axis)
    if found.empty:
        return None
    (label, doubles), names = AXES[axis], list(found.arm.unique())
    means = found.pivot_table(index="at", columns="arm", values="top1", aggfunc=["mean", "min", "max"], dropna=False)
    shown = [name for name in names if name != PLAIN] or names
    across = min(len(shown), ACROSS)
    down = -(-len(shown) // across)
    width = max(PAGE * across / ACROSS, PAGE / 2)
    made, grid = panels(width, 0.8 + 1.2 * down, down, across, len(shown), sharex=True, sharey=True)
    for axes, name in zip(grid.flat, shown, strict=False):
        for other in names:
            axes.plot(means["mean", other], color="#DDDDDD", linewidth=0.6, zorder=1)
        if PLAIN in names:
            axes.plot(means["mean", PLAIN], color="#444444", linestyle="--", linewidth=1, zorder=2, label=PLAIN)
        line = means["mean", name]
        axes.fill_between(line.index, means["min", name], means["max", name], color="C0", alpha=0.25, linewidth=0)
        axes.plot(line, "o-", color="C0", markersize=2.5, zorder=3, label="the prior: mean and range of the seeds")
        axes.set_title(name)
        if doubles:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(line.index, [f"{x:g}" for x in line.index])
    for column in range(across):
        lowest = max(i for i in range(column, len(shown), across))
        grid.flat[lowest].tick_params(labelbottom=True)
    if len(shown) > 1:
        axes.plot([], [], color="#DDDDDD", label="the others")
    made.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3 if across > 2 else 1)
    made.supxlabel(label)
    made.supylabel("test top-1 accuracy (%)")
    return made


def table(rows: pd.DataFrame) -> Table:
    """Each arm on the images as they are, corrupted, hidden by half, shuffled, and at another size."""
    there, known = measured(rows)
    columns = [Column("arm", "prior"), *(Column(name, words) for name, (words, _) in SUMMED.items())]
    if there.empty:
        return Table(columns, [])
    there = there.assign(**{name: [value(arrays) for arrays in known] for name, (_, value) in SUMMED.items()})
    return Table(columns, scores(there, ["arm"], **{name: name for name in SUMMED}))


def _at(arrays: Mapping[str, np.ndarray], axis: str, at: float) -> float:
    return float(arrays[axis][arrays[f"{axis}_axis"].tolist().index(at)])
