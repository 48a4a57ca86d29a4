"""How accurate the arms of the comparison of priors are on images unlike those they were trained on.

What was measured of a run is in its arrays (gmmvit.analysis.axes): nothing is trained for it.
"""

from __future__ import annotations

import textwrap

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from ..analysis import drawn
from .charts import PAGE, Figure, panels, styled
from .priors import PLAIN, whole
from .runs import DONE, NOT_RUN, scores
from .tables import Column, Table

AXES = {
    "corruption": "severity (0: none), mean of the kinds of corruption",
    "occlusion": "share of the patches that are hidden",
    "shuffle": "tiles in a row that change places (1: none)",
    "resolution": "side of the images (pixels)",
}
SHOWN = {("occlusion", 0.0): "as they are", ("corruption", 0.0): "corrupted, mean of all"}  # columns of the table
SHOWN |= {("occlusion", 0.5): "half hidden", ("shuffle", 4.0): "16 tiles shuffled"}
SHOWN |= {("resolution", size): f"{size:.0f} px" for size in (24.0, 40.0, 48.0, 64.0)}
ACROSS, LETTERS = 5, 20  # panels, and those of a line of their titles


def measured(rows: pd.DataFrame) -> pd.DataFrame:
    """The runs of whole data, a line for each axis and place on it: arm, seed, axis, images, place, top1.

    Corruption is the mean over its kinds, by severity from 1 on; at place 0 it is that over all severities too.
    """
    found = []
    for run in whole(rows[rows.state == DONE]).to_dict("records") if "folder" in rows else ():
        arrays = drawn.arrays(run["folder"])
        for axis in AXES:
            if axis in arrays:
                seen = run | {"axis": axis, "images": int(arrays["axes_images"])}
                found += [seen | {"place": place, "top1": top1} for place, top1 in _along(axis, arrays)]
    return pd.DataFrame(found, columns=None if found else [*dict.fromkeys((*rows, "axis", "images", "place"))])


def _along(axis: str, arrays: dict[str, np.ndarray]) -> list[tuple[float, float]]:
    values = arrays[axis].astype(float)
    if axis != "corruption":
        return list(zip(arrays[f"{axis}_axis"].astype(float), values, strict=True))
    return list(enumerate([values.mean(), *values.mean(0)]))


def table(points: pd.DataFrame) -> Table:
    """Accuracy of each arm on images as they are, corrupted, hidden, shuffled and of other sizes."""
    lines, columns = points[["arm"]].drop_duplicates(), [Column("arm", "prior")]
    for number, ((axis, place), title) in enumerate(SHOWN.items()):
        alike = points[(points.axis == axis) & (points.place == place)]
        if len(alike):
            found = scores(alike, ["arm"], **{f"at{number}": "top1"})
            found = found.drop(columns=f"at{number}_note") if number else found  # said once in a line
            found = found.replace({f"at{number}_state": NOT_RUN}, "")  # the model cannot
            lines = lines.merge(found, on="arm", how="left")
            columns.append(Column(f"at{number}", title, ".1f"))
    return Table(columns, lines)


def told(points: pd.DataFrame) -> str:
    """A sentence on how well the accuracies are known; empty where there are none."""
    if points.empty:
        return ""
    images = points.images.min()
    error = 100 * (0.6 * 0.4 / images) ** 0.5
    return (
        f"On {images:,} test images an accuracy of 60 % has a standard error of {error:.1f} points; all arms see the "
        "same images, corrupted, hidden and shuffled alike."
    )


@styled
def figure(points: pd.DataFrame, axis: str) -> Figure | None:
    """A panel for each arm: its mean over seeds and their range as a band, the plain model dashed, the others in grey.

    None where nothing was measured along this axis.
    """
    there = points[points.axis == axis]
    if there.empty:
        return None
    if axis == "corruption":  # its place 0 is the mean of all; here, the images as they are
        clean = points[(points.axis == "occlusion") & (points.place == 0)]
        there = pd.concat([clean, there[there.place > 0]])
    names = list(there.arm.unique())
    top1 = there.pivot_table(index="place", columns="arm", values="top1", aggfunc=["mean", "min", "max"], dropna=False)
    shown = [name for name in names if name != PLAIN] or names
    across = min(len(shown), ACROSS)
    down = -(-len(shown) // across)
    width = max(PAGE * across / ACROSS, PAGE / 2)
    made, grid = panels(width, 0.8 + 1.2 * down, down, across, len(shown), sharex=True, sharey=True)
    for axes, name in zip(grid.flat, shown, strict=False):
        for other in names:
            axes.plot(top1["mean", other], color="#DDDDDD", linewidth=0.6, zorder=1)
        if PLAIN in names:
            axes.plot(top1["mean", PLAIN], color="#444444", linestyle="--", linewidth=1, zorder=2, label=PLAIN)
        line = top1["mean", name]
        axes.fill_between(line.index, top1["min", name], top1["max", name], color="C0", alpha=0.25, linewidth=0)
        axes.plot(line, "o-", color="C0", markersize=2.5, zorder=3, label="the prior: mean and range of the seeds")
        axes.set_title(textwrap.fill(name, LETTERS))
        if axis == "shuffle":  # each grid twice as fine as the last
            axes.set_xscale("log", base=2)
            axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(line.index, [f"{place:g}" for place in line.index])
    for column in range(across):
        lowest = max(range(column, len(shown), across))
        grid.flat[lowest].tick_params(labelbottom=True)
    if len(shown) > 1:
        axes.plot([], [], color="#DDDDDD", label="the others")
    made.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3 if across > 2 else 1)
    made.supxlabel(AXES[axis])
    made.supylabel("test top-1 accuracy (%)")
    return made
