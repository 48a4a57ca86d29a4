"""TransMix's tables: arms that differ in mixing alone, what TransMix gains, the published numbers, shares of images."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from ..train.recipes import MIXING
from ..train.rows import Row
from .names import DATASETS, MASKS, MODELS, named
from .published import table as published_table
from .runs import Group, Score, gains, group, history
from .seeds import paired_gain
from .tables import Column, Table, pivot

BOTH = {"mixup": 0.8, "cutmix": 1.0, "mix_prob": 1.0, "switch_prob": 0.8}
ARMS = {
    "no mixing": {"mixup": 0.0, "cutmix": 0.0, "transmix": False},
    "Mixup": {"mixup": 0.8, "cutmix": 0.0, "mix_prob": 1.0, "transmix": False},
    "CutMix": {"mixup": 0.0, "cutmix": 1.0, "mix_prob": 1.0, "transmix": False},
    "Mixup + CutMix": BOTH | {"transmix": False},
    "TransMix": BOTH | {"transmix": True},
}
TIMM = {  # the published models that timm has; it has no PVT of the first kind
    "DeiT-S": "deit_small_patch16_224",
    "DeiT-B": "deit_base_patch16_224",
    "XCiT-S": "xcit_small_12_p16_224",
    "XCiT-M": "xcit_medium_24_p16_224",
    "XCiT-L": "xcit_large_24_p16_224",
}
NOT_RUN = Score(None, None, 0, 0, 0)


def arm_of(row: Row) -> str | None:
    """The arm whose mixing the row has; None where it is another."""
    recipe = row.recipe_settings
    return next((arm for arm, mixing in ARMS.items() if all(getattr(recipe, k) == v for k, v in mixing.items())), None)


def comparisons(rows: Mapping[str, Row], runs: Iterable[dict], failed: Collection[str] = ()) -> list[Group]:
    """The rows that TransMix is compared in, grouped over seeds: keys with "arm", and "recipe" without its mixing."""
    runs, found = list(runs), {}
    for name, row in rows.items():
        if arm := arm_of(row):
            rest = row.dataset, row.model, row.mask, _recipe(row)
            found.setdefault(rest, {each: {} for each in ARMS})[arm][name] = row
    return [
        replace(each, keys=each.keys | {"recipe": recipe, "arm": arm})
        for (*_, recipe), arms in found.items()
        for arm, alike in arms.items()
        for each in group(alike, runs, failed, dataset=None, model=None, mask="none")
        if arms["TransMix"]
    ]


def _recipe(row: Row) -> str:
    """The recipe and the row's own settings, but for those of mixing."""
    return ", ".join([row.recipe, *(f"{key} {value}" for key, value in sorted(row.set.items()) if key not in MIXING)])


def setting(keys: Mapping) -> str:
    """The model and its mask in words."""
    words = MODELS.get(keys["model"], keys["model"])
    return words if keys["mask"] == "none" else f"{words}, {MASKS.get(keys['mask'], keys['mask'])}"


INDEX = (
    Column("dataset", "data set"),
    Column("model", "model"),
    Column("mask", "mask"),
    Column("recipe", "recipe of all arms"),
)


def arms_table(groups: Iterable[Group]) -> Table:
    """A line for each recipe and model, a column for each arm: mean ± sd (n)."""
    lines = [each.keys | _read(each.keys) | {"ours": each.score()} for each in groups]
    lines.sort(key=lambda line: list(ARMS).index(line["arm"]))  # the order of columns; the sort is stable
    return pivot(lines, "arm", [Column("ours", "")], INDEX)


def gain_points(groups: Iterable[Group]) -> list[dict]:
    """What TransMix gains over Mixup + CutMix and over CutMix, paired over seeds: points for plots.gains."""
    groups, points = list(groups), []
    for base in ("Mixup + CutMix", "CutMix"):
        for line in gains(groups, {"arm": base}, [column.key for column in INDEX]):
            if line["arm"] == "TransMix":
                points.append(line | {"base": base, "label": f"{setting(line)}, over {base}"})
    return points


def gains_table(points: Iterable[Mapping]) -> Table:
    """The gains with their 95 % intervals."""
    columns = [Column("base", "TransMix over"), Column("gain", "gain [95 % interval] (n)", "+.2f")]
    return Table([*INDEX, *columns], [point | _read(point) for point in points])


def _read(keys: Mapping) -> dict[str, str]:
    """Data set, model and mask as readers know them."""
    return named(keys) | {"mask": MASKS.get(keys["mask"], keys["mask"])}


def imagenet_table(groups: Iterable[Group]) -> Table:
    """published | ours on ImageNet; the published base is of another recipe (erratum T5), ours of TransMix's."""
    lines = []
    there = {(each.keys["model"], each.keys["arm"]): each for each in groups if each.keys["dataset"] == "imagenet"}
    for row in published_table("transmix_imagenet")["rows"]:
        name = TIMM.get(row["model"], "not in timm")
        base, ours = (there.get((name, arm)) for arm in ("Mixup + CutMix", "TransMix"))
        line = row | {"timm": name, "gain": row["transmix"] - row["base"]}
        line |= {"our_base": base.score() if base else NOT_RUN, "ours": ours.score() if ours else NOT_RUN}
        both = base and ours and base.runs and ours.runs
        lines.append(line | {"our_gain": paired_gain(ours.by_seed(), base.by_seed()) if both else None})
    columns = [
        Column("model", "model"),
        Column("timm", "timm's model"),
        Column("parameters_M", "parameters (M)", "d"),
        Column("base", "published: base", ".1f"),
        Column("transmix", "published: TransMix", ".1f"),
        Column("gain", "published gain", "+.1f"),
        Column("our_base", "ours: Mixup + CutMix"),
        Column("ours", "ours: TransMix"),
        Column("our_gain", "our gain", "+.2f"),
    ]
    return Table(columns, lines)


# ---- what it does on images -----------------------------------------------------------------------------------------


def mixed_images(arrays: Mapping[str, np.ndarray]) -> list[dict]:
    """Of a run's arrays, a line for each mixed image: its parts, and the pasted one's share by area and by attention.

    own, pasted, mixed (H, W, 3), box, attention (rows, columns); shares: area, inside (of the attention to patches,
    what the box has), code and paper (lambda of both definitions), trained (the share that the run itself computed).
    """
    if "mix_images" not in arrays:
        return []
    images, boxes = arrays["mix_images"], np.atleast_2d(arrays["mix_box"])
    count = len(images) // len(boxes)  # of images under one box, mixed with themselves reversed
    lines = []
    for number, own in enumerate(images):
        part, place = divmod(number, count)
        top, bottom, left, right = np.round(boxes[part]).astype(int)
        pasted, mixed = images[part * count + count - 1 - place], own.copy()
        mixed[top:bottom, left:right] = pasted[top:bottom, left:right]
        looks = {"name": f"image {number + 1}", "own": own, "pasted": pasted, "mixed": mixed, "box": boxes[part]}
        attention, (area, trained) = arrays["mix_attention"][number].astype(float), arrays["mix_share"][number]
        paper = attention[_patches(boxes[part], own.shape[:2], attention.shape)].sum()
        inside = paper / attention.sum()
        shares = {"area": area, "inside": inside, "code": (area + inside) / 2, "paper": paper, "trained": trained}
        lines.append(looks | {"attention": attention} | {name: float(share) for name, share in shares.items()})
    return lines


def _patches(box: np.ndarray, size: tuple[int, int], grid: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """The patches whose top left pixel is in the box: rows and columns as an index."""
    edges = (np.arange(count) * pixels / count for count, pixels in zip(grid, size, strict=True))
    rounding = 1e-3  # a box in the pixels of a smaller picture is no whole number
    sides = zip(edges, box.reshape(2, 2) - rounding, strict=True)
    return np.ix_(*((low <= edge) & (edge < high) for edge, (low, high) in sides))


def shares_table(lines: Iterable[Mapping]) -> Table:
    """Area, attention and both definitions of lambda beside each other."""
    columns = [
        Column("name", ""),
        Column("area", "area of the box", ".3f"),
        Column("inside", "attention in the box", ".3f"),
        Column("code", "lambda, code", ".3f"),
        Column("paper", "lambda, paper", ".3f"),
    ]
    return Table(columns, list(lines))


def shifts(groups: Iterable[Group]) -> dict[str, list[dict]]:
    """{setting: the histories of its seeds} of TransMix's runs, for gmmvit.paper.transmix_plots.shifts."""
    found = {}
    for each in groups:
        curves = [history(run["folder"]) for run in each.runs] if each.keys["arm"] == "TransMix" else []
        curves = [curve for curve in curves if "shift_q50" in curve]
        name = f"{setting(each.keys)}: {DATASETS.get(each.keys['dataset'], each.keys['dataset'])}"
        if curves:
            found[f"{name}, {each.keys['recipe']}" if name in found else name] = curves
    return found
