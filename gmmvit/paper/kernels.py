"""The GMM paper's number of kernels, of the mixture as a mask (GMM) and as a bias (GMB): published and ours."""

from __future__ import annotations

import pandas as pd

from .ablation import PAPERS, panels_of, places, usual_decay
from .gmm import COLUMNS
from .names import MASKS
from .published import table as published_table
from .runs import DONE, beside, gains, numbers
from .tables import Column, Table, cell

KERNELS = (1, 2, 3, 4, 5, 8, 10)
COUNTS = {"kernels": {0: {"mask": "none"}} | {count: {"kernels": count} for count in KERNELS}}
ADDED = {"kernels": {count: {"mask": "gmb", "kernels": count} for count in KERNELS}}  # the mixture as a bias


def arms(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the number of kernels, of GMM and of GMB (a series); 0 is the model without a mask.

    That was published as a mask of one kernel.
    """
    theirs = numbers(published_table("gmm_kernels")["rows"])
    theirs = theirs.assign(label=theirs.kernels.where(theirs["mask"] != "none", 0), model=PAPERS, series="")
    rows = usual_decay(frame)
    rows = pd.concat([panels_of(rows, COUNTS), panels_of(rows, ADDED).assign(series=MASKS["gmb"])])
    return beside(rows, theirs, ["dataset", "model", "label", "series"])


def published_numbers() -> Table:
    """The published numbers of kernels, the point at 1 as what it is: the model without a mask."""
    lines = [row | {"mask": MASKS[row["mask"]]} for row in published_table("gmm_kernels")["rows"]]
    return Table(["kernels", Column("mask", "what it is"), *COLUMNS], lines)


def gains_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Gains over no mask by the number of kernels (label), on data sets and models with two numbers or more.

    The spread is what all numbers tell together: of each there are two or three seeds.
    """
    same = ["dataset", "model"]
    if rows.empty:
        return rows.assign(gain=[])
    gained = gains(rows, {"label": 0, "series": ""}, same, pooled=same)
    gained = gained[gained.gain_n > 0].sort_values(["series", "label"], kind="stable")
    gained = gained[gained.groupby([*same, "series"]).label.transform("size") > 1]
    return gained.assign(series=gained.series.where(gained.series != "", MASKS["gmm"]))


def found(rows: pd.DataFrame) -> str:
    """A sentence on the numbers of kernels with the highest and the lowest gain of each series."""
    named, told = dict(zip(rows.dataset + rows.model, places(rows), strict=True)), []
    for (dataset, model, series), curve in gains_of(rows).groupby(["dataset", "model", "series"], sort=False):
        ends = [curve.loc[index].to_dict() for index in (curve.gain.idxmax(), curve.gain.idxmin())]
        high, low = (f"with {_kernels(end['label'])}: {cell(end, 'gain', '+.2f')}" for end in ends)
        told.append(f"{series} on {named[dataset + model]} gains most {high}, and least {low}")
    return f"Ours: {'; '.join(told)}." if told else ""


def published_gains() -> pd.DataFrame:
    """The published gains over no mask: dataset, kernels, gain."""
    theirs = numbers(published_table("gmm_kernels")["rows"])
    plain = theirs[theirs["mask"] == "none"].set_index("dataset").published
    return theirs.assign(gain=theirs.published - theirs.dataset.map(plain))[theirs["mask"] != "none"]


def no_curve(rows: pd.DataFrame) -> str:
    """A line on the data sets and models that gains_of leaves out although masks were run on them."""
    drawn = gains_of(rows)
    run = rows[rows.state == DONE].assign(place=places(rows))
    run = run[~(run.dataset + run.model).isin(drawn.dataset + drawn.model)]
    words = [
        f"on {place} there is " + " and ".join(map(_kernels, sorted(counts.unique())))
        for place, counts in run.groupby("place", sort=False).label
    ]
    return f"Not drawn, as a curve needs no mask and two numbers of kernels: {'; '.join(words)}." if words else ""


def _kernels(count: int) -> str:
    return "no mask" if not count else f"{count} kernel{'s' * (count > 1)}"
