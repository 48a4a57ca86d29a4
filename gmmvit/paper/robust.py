"""How accurate the arms of the comparison of priors are on images unlike those they were trained on.

What was measured of a run is in its arrays (gmmvit.analysis.axes): nothing is trained for it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..analysis import drawn
from . import charts
from .priors import PLAIN, whole
from .runs import DONE, scores
from .tables import Column, Table

AXES = {  # in the order of the figure
    "resolution": "side of the images (pixels)",
    "corruption": "severity, mean of the kinds of corruption",
    "occlusion": "share of the patches that are hidden",
    "shuffle": "tiles in a row that change places",
}
SHOWN = {("occlusion", 0.0): "as they are", ("corruption", 0.0): "corrupted, mean of all"}  # columns of the table
SHOWN |= {("occlusion", 0.5): "half hidden", ("shuffle", 4.0): "16 tiles shuffled"}
SHOWN |= {("resolution", size): f"{size:.0f} px" for size in (24.0, 40.0, 48.0, 64.0)}
PAPERS, MOST = (PLAIN, "GMM", "GAB", "GMB"), 7  # lines of the figure: these, and the most accurate of the others


def measured(rows: pd.DataFrame) -> pd.DataFrame:
    """The runs of whole data, a line for each axis and place on it: arm, seed, axis, place, top1.

    Corruption is the mean over its kinds, by severity from 1 on; at place 0 it is that over all severities too.
    """
    found = []
    for run in whole(rows[rows.state == DONE]).to_dict("records") if "folder" in rows else ():
        arrays = drawn.arrays(run["folder"])
        for axis in AXES:
            if axis in arrays:
                found += [run | {"axis": axis, "place": place, "top1": top1} for place, top1 in _along(axis, arrays)]
    return pd.DataFrame(found, columns=None if found else [*dict.fromkeys((*rows, "axis", "place"))])


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
            lines = lines.merge(found, on="arm", how="left")
            columns.append(Column(f"at{number}", title, ".1f"))
    return Table(columns, lines)


def figure(points: pd.DataFrame) -> charts.Figure | None:
    """Accuracy along each axis of the papers' masks and of the other arms that are the most accurate."""
    if points.empty:
        return None
    means = points[(points.axis == "occlusion") & (points.place == 0)].groupby("arm").top1.mean()
    others = means.drop(labels=[arm for arm in PAPERS if arm in means]).sort_values(ascending=False).index
    arms = [*(arm for arm in PAPERS if (points.arm == arm).any()), *others][:MOST]
    shown = points[points.arm.isin(arms) & ~((points.axis == "corruption") & (points.place == 0))]
    return charts.by_axis(shown.assign(order=shown.arm.map(arms.index)).sort_values("order", kind="stable"), AXES)
