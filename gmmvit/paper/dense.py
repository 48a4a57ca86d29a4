"""Detection and segmentation without and with GAB: the paper's Table 4 beside ours, scores by epoch, predictions."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..analysis import drawn
from ..dense import recipes
from ..dense.sets import SETS
from ..train.rows import Row
from . import deviations
from .names import DATASETS, readable
from .names import SCORES as TITLES
from .published import table as published_table
from .runs import DONE, gains, history, scores, where
from .tables import ABSENT, GAIN, MEAN, Column, Table

ARMS = {"none": "no GAB", "gab": "GAB"}
SCORES = {"detection": ("box_AP", "box_AP50", "mask_AP", "mask_AP50"), "segmentation": ("mIoU", "aAcc")}
TABLE_4 = {"coco": {"box_AP": "ap_box", "mask_AP": "ap_mask"}, "ade20k": {"mIoU": "miou", "aAcc": "aacc"}}
CURVES = ("box_AP", "mask_AP", "mIoU")
AS_PUBLISHED = {"pretrained", "pretrained_file", "batch", "accumulate", "precision"}  # settings of a row of Table 4
SAME = ("dataset", "model", "recipe")  # of both arms
ARM = (*SAME, "mask", "arm", "kind")


def arms(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of detection and segmentation; "recipe" is the recipe with the row's own settings, "arm" in words."""
    rows = where(frame, lambda row: row.dataset in SETS and row.mask in ARMS)
    return rows.assign(recipe=rows.row.map(_recipe), arm=rows["mask"].map(ARMS))


def _recipe(row: Row) -> str:
    return ", ".join([row.recipe, *(f"{key} {value}" for key, value in sorted(row.set.items()))])


def _as_published(row: Row) -> bool:
    if row.model.partition(".")[0] != published_table("gab_dense")["rows"][0]["model"]:
        return False
    loaded = bool(row.set.get("pretrained") or row.set.get("pretrained_file"))
    return loaded and row.set.keys() <= AS_PUBLISHED and row.recipe in ("coco-3x", "ade20k-160k")


def table_4(rows: pd.DataFrame) -> Table:
    """Swin-S without and with GAB and the gain, each published | ours, of COCO and ADE20K from ImageNet-1K weights."""
    rows, lines = where(rows, _as_published), []
    for dataset, metrics in TABLE_4.items():
        own = rows[rows.dataset == dataset]
        for metric, key in metrics.items():
            line = {"score": f"{DATASETS[dataset]}, {TITLES[metric]}"}
            for name, theirs in zip(("without", "with"), published_table("gab_dense")["rows"], strict=True):
                ours = scores(own[own["mask"] == theirs["mask"]], ARM, **{name: metric})
                line |= {f"{name}_published": theirs[key]} | _first(ours, name)
            line["gain_published"] = line["with_published"] - line["without_published"]
            lines.append(line | _first(gains(own, {"mask": "none"}, SAME, metric), "gain"))
    columns = [Column("score", "Swin-S")]
    for name in ("without", "with"):
        columns += [Column(f"{name}_published", f"{name} GAB: published"), Column(name, f"{name} GAB: {MEAN}")]
    columns += [Column("gain_published", "gain: published", "+.2f"), Column("gain", GAIN)]
    return Table(columns, lines, shown=True)


def _first(ours: pd.DataFrame, name: str) -> dict:
    """The numbers of the first arm."""
    return ours.filter(regex=f"^{name}").iloc[0].to_dict() if len(ours) else {f"{name}_state": ABSENT}


def scores_table(rows: pd.DataFrame, kind: str) -> Table:
    """The scores of the last epoch of a profile's rows of detection or of segmentation."""
    lines = scores(rows[rows.kind == kind], ARM, **{metric: metric for metric in SCORES[kind]})
    return Table(["dataset", "model", "recipe", "arm", *SCORES[kind]], readable(_untagged(lines)))


def _untagged(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the name of the model without that of its weights."""
    return rows.assign(model=rows.model.str.partition(".")[0] if len(rows) else rows.model)


def curves(rows: pd.DataFrame) -> list[dict]:
    """A panel for each score that is followed over the epochs: title, score, arms {arm: histories of its runs}."""
    panels: dict[tuple, dict] = {}
    for (*place, _, arm, kind), alike in rows[rows.state == DONE].groupby(list(ARM), sort=False):
        names = readable(_untagged(alike)).iloc[0]
        for score in (score for score in CURVES if score in SCORES[kind]):
            empty = {"title": f"{names.dataset}, {names.model}", "score": score, "arms": {}}
            panels.setdefault((*place, score), empty)["arms"][arm] = [history(folder) for folder in alike.folder]
    return list(panels.values())


def pictures(rows: pd.DataFrame, kind: str) -> dict[str, dict[str, np.ndarray]]:
    """{arm: the arrays of its first run} (gmmvit.analysis.pictured), of the first rows of this kind that kept some."""
    for _, alike in rows[(rows.state == DONE) & (rows.kind == kind)].groupby(list(SAME), sort=False):
        first = alike.drop_duplicates("arm")
        arrays = zip(first.arm, map(drawn.arrays, first.folder), strict=True)
        found = {arm: each for arm, each in arrays if "dense_images" in each}
        if found:
            return found
    return {}


def deviations_table() -> Table:
    """What is not as in the paper, or is not stated there."""
    found = deviations.deviations(*recipes.RECIPES)
    lines = [{"recipe": "both" if len(of) > 1 else of[0], "deviation": text} for of, text in found]
    return Table([Column("recipe", "recipe"), Column("deviation", "what is not as published, or not stated")], lines)
