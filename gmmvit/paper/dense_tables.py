"""Detection and segmentation without and with GAB: the paper's Table 4 beside ours, scores by epoch, predictions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from ..analysis import drawn
from ..dense import recipes
from ..dense.sets import SETS
from ..train.rows import Row
from . import deviations, names
from .gab_arms import the_group
from .names import DATASETS
from .published import table as published_table
from .runs import Group, group, history
from .seeds import paired_gain
from .tables import ABSENT, NOT_RUN, Column, Table

ARMS = {"none": "no GAB", "gab": "GAB"}
SCORES = {
    "detection": {score: names.SCORES[score] for score in ("box_AP", "box_AP50", "mask_AP", "mask_AP50")},
    "segmentation": {score: names.SCORES[score] for score in ("mIoU", "aAcc")},
}
TABLE_4 = {"coco": {"box_AP": "ap_box", "mask_AP": "ap_mask"}, "ade20k": {"mIoU": "miou", "aAcc": "aacc"}}
CURVES = ("box_AP", "mask_AP", "mIoU")
AS_PUBLISHED = {"pretrained", "pretrained_file", "batch", "accumulate", "precision"}  # settings of a row of Table 4
SAME = ("dataset", "model", "recipe")  # of both arms


def dense_groups(rows: Mapping[str, Row], runs: Iterable[dict], failed: Collection[str] = ()) -> list[Group]:
    """The rows of detection and segmentation over seeds; "recipe" is the recipe with the row's own settings."""
    arms = {name: _fields(row) for name, row in rows.items() if row.dataset in SETS and row.mask in ARMS}
    return group(arms, runs, failed, **dict.fromkeys((*SAME, "mask", "as_published")))


def _fields(row: Row) -> dict:
    words = ", ".join([row.recipe, *(f"{key} {value}" for key, value in sorted(row.set.items()))])
    loaded = bool(row.set.get("pretrained") or row.set.get("pretrained_file"))
    as_published = loaded and row.set.keys() <= AS_PUBLISHED and row.recipe in ("coco-3x", "ade20k-160k")
    return vars(row) | {"recipe": words, "as_published": as_published}


def kind(each: Group) -> str:
    """detection or segmentation."""
    return SETS[each.keys["dataset"]].kind


def table_4(groups: Iterable[Group]) -> Table:
    """Swin-S without and with GAB and the gain, each published | ours, of COCO and ADE20K from ImageNet-1K weights."""
    groups, lines = list(groups), []
    plain, masked = published_table("gab_dense")["rows"]
    for dataset, scores in TABLE_4.items():
        own = [each for each in groups if _untagged(each) == plain["model"]]
        arms = [the_group(own, {"dataset": dataset, "mask": mask, "as_published": True}) for mask in ARMS]
        for metric, key in scores.items():
            line = {"score": f"{DATASETS[dataset]}, {SCORES[SETS[dataset].kind][metric]}"}
            for name, row, each in zip(("without", "with"), (plain, masked), arms, strict=True):
                line |= {f"{name}_published": row[key], name: each.score(metric) if each else ABSENT}
            line |= {"gain_published": masked[key] - plain[key], "gain": _gain(*arms, metric)}
            lines.append(line)
    columns = [
        Column("score", "Swin-S"),
        Column("without_published", "without GAB: published"),
        Column("without", "without GAB: ours, mean ± sd (n)"),
        Column("with_published", "with GAB: published"),
        Column("with", "with GAB: ours, mean ± sd (n)"),
        Column("gain_published", "gain: published", "+.2f"),
        Column("gain", "gain: ours [95 % interval] (n)", "+.2f"),
    ]
    return Table(columns, lines)


def _gain(plain: Group | None, masked: Group | None, metric: str):
    """What GAB gains, paired over seeds, or a word."""
    if not (plain and masked):
        return ABSENT
    gain = paired_gain(masked.by_seed(metric), plain.by_seed(metric))
    return gain if gain.n else NOT_RUN


def scores_table(groups: Iterable[Group], which: str) -> Table:
    """The scores of the last epoch of a profile's rows of detection or of segmentation."""
    lines = [
        named(each) | {metric: each.score(metric) for metric in SCORES[which]} for each in groups if kind(each) == which
    ]
    columns = [Column(key, title) for key, title in (("dataset", "data set"), ("model", "model"), ("recipe", "recipe"))]
    return Table([*columns, Column("arm", "arm"), *(Column(*score) for score in SCORES[which].items())], lines)


def named(each: Group) -> dict[str, str]:
    """A group's keys as a reader knows them."""
    found = names.named(each.keys | {"model": _untagged(each)})
    return found | {"recipe": each.keys["recipe"], "arm": ARMS[each.keys["mask"]]}


def _untagged(each: Group) -> str:
    """The name of the model without that of its weights."""
    return each.keys["model"].partition(".")[0]


def curves(groups: Iterable[Group]) -> list[dict]:
    """A panel for each score that is followed over the epochs: title, score, arms {arm: [(epochs, values) by run]}."""
    panels: dict[tuple, dict] = {}
    for each in groups:
        names, histories = named(each), [history(run["folder"]) for run in each.runs]
        for metric in CURVES if histories else ():
            if metric in SCORES[kind(each)]:
                place = *(each.keys[key] for key in SAME), metric
                empty = {"title": f"{names['dataset']}, {names['model']}", "score": SCORES[kind(each)][metric]}
                arms = panels.setdefault(place, empty | {"arms": {}})["arms"]
                arms[names["arm"]] = [(found["epoch"], found[metric]) for found in histories]
    return list(panels.values())


def pictures(groups: Iterable[Group], which: str) -> dict[str, dict[str, np.ndarray]]:
    """{arm: the arrays of its first run} (gmmvit.analysis.pictured), of the first rows of this kind that kept some."""
    found: dict[str, dict[str, np.ndarray]] = {}
    of = None
    for each in groups:
        place = [each.keys[key] for key in SAME]
        if kind(each) == which and each.runs and of in (None, place):
            arrays = drawn.arrays(each.runs[0]["folder"])
            if "dense_images" in arrays:
                of, found[ARMS[each.keys["mask"]]] = place, arrays
    return found


def deviations_table() -> Table:
    """What is not as in the paper, or is not stated there."""
    found = deviations.deviations(*recipes.RECIPES)
    lines = [{"recipe": "both" if len(of) > 1 else of[0], "deviation": text} for of, text in found]
    return Table([Column("recipe", "recipe"), Column("deviation", "what is not as published, or not stated")], lines)


def cost_table(record: Mapping) -> Table:
    """A step and inference without and with GAB, of `gmmvit bench dense`."""
    names = {"step": "a training step", "inference": "inference, GAB folded"}
    lines = [
        {"what": names[kind]} | found | {"time": record["time"][kind]} for kind, found in record["seconds"].items()
    ]
    columns = [
        Column("what", "Mask R-CNN, one image"),
        Column("plain", "without GAB (s)", ".4f"),
        Column("gab", "with GAB (s)", ".4f"),
        Column("time", "time with GAB", "+.1%"),
    ]
    return Table(columns, lines)
