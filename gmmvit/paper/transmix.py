"""The TransMix paper: arms that differ in mixing alone, its gains, the published numbers, shares of images."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..train.recipes import MIXING
from ..train.rows import Row
from .names import DATASETS, MASKS, MODELS, readable
from .published import table as published_table
from .runs import DONE, NOT_RUN, gains, history, scores, where
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
ARM = ("dataset", "model", "mask", "recipe", "arm")
INDEX = ("dataset", "model", "mask", Column("recipe", "recipe of all arms"))


def arm_of(row: Row) -> str | None:
    """The arm whose mixing the row has; None where it is another."""
    recipe = row.recipe_settings
    return next((arm for arm, mixing in ARMS.items() if all(getattr(recipe, k) == v for k, v in mixing.items())), None)


def comparisons(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that TransMix is compared in: with their "arm", and "recipe" without its mixing."""
    rows = where(frame[frame.kind == "classification"], lambda row: arm_of(row) is not None)
    rows = rows.assign(arm=rows.row.map(arm_of), recipe=rows.row.map(_recipe))
    rows = rows[(rows.arm == "TransMix").groupby([rows[key] for key in ARM[:-1]]).transform("any").astype(bool)]
    first = rows.groupby(list(ARM[:-1]), sort=False).ngroup()
    return rows.assign(place=first).sort_values(["place", "arm"], key=_order, kind="stable").drop(columns="place")


def _order(column: pd.Series) -> pd.Series:
    return column.map(list(ARMS).index) if column.name == "arm" else column


def _recipe(row: Row) -> str:
    """The recipe and the row's own settings, but for those of mixing."""
    return ", ".join([row.recipe, *(f"{key} {value}" for key, value in sorted(row.set.items()) if key not in MIXING)])


def setting(keys: Mapping) -> str:
    """The model and its mask in words."""
    words = MODELS.get(keys["model"], keys["model"])
    return words if keys["mask"] == "none" else f"{words}, {MASKS.get(keys['mask'], keys['mask'])}"


def arms_table(rows: pd.DataFrame) -> Table:
    """A line for each recipe and model, a column for each arm: mean ± sd (n)."""
    lines = readable(scores(rows, ARM))
    return pivot(lines.sort_values("arm", key=_order, kind="stable"), "arm", [Column("ours", "")], INDEX)


def gain_points(rows: pd.DataFrame) -> pd.DataFrame:
    """What TransMix gains over Mixup + CutMix and over CutMix (gmmvit.paper.runs.gains), with "base" and "label"."""
    found = [gains(rows, {"arm": base}, ARM[:-1]).assign(base=base) for base in ("Mixup + CutMix", "CutMix")]
    points = pd.concat(found).query("arm == 'TransMix'")
    return points.assign(label=[f"{setting(keys)}, over {keys['base']}" for keys in points.to_dict("records")])


def mixing_points(rows: pd.DataFrame) -> pd.DataFrame:
    """What each way of mixing gains over none (gmmvit.paper.runs.gains), with "label"."""
    points = gains(rows, {"arm": "no mixing"}, ARM[:-1])
    return points.assign(label=[f"{setting(keys)}, {keys['arm']}" for keys in points.to_dict("records")])


def gains_table(points: pd.DataFrame) -> Table:
    """The gains with their 95 % intervals."""
    columns = [Column("base", "TransMix over"), Column("gain", "gain [95 % interval] (n)")]
    return Table([*INDEX, *columns], readable(points))


def imagenet_table(rows: pd.DataFrame) -> Table:
    """published | ours on ImageNet; the published base is of another recipe (erratum T5), ours of TransMix's."""
    rows = rows[rows.dataset == "imagenet"]
    lines = pd.DataFrame(published_table("transmix_imagenet")["rows"])
    lines = lines.assign(timm=lines.model.map(TIMM).fillna("not in timm"), published_gain=lines.transmix - lines.base)
    for arm, name in (("Mixup + CutMix", "our_base"), ("TransMix", "ours")):
        ours = scores(rows[rows.arm == arm], ["model"], **{name: "top1"}).rename(columns={"model": "timm"})
        lines = lines.merge(ours, on="timm", how="left").fillna({f"{name}_n": 0, f"{name}_state": NOT_RUN})
    ours = gains(rows, {"arm": "Mixup + CutMix"}, ["model"])
    ours = ours[(ours.arm == "TransMix") & (ours.gain_n > 0)].drop(columns=["arm", "verdict"])
    ours = ours.rename(columns=lambda key: "timm" if key == "model" else f"our_{key}")
    lines = lines.merge(ours, on="timm", how="left").rename(columns={"published_gain": "gain"})
    columns = ["model", Column("timm", "timm's model"), Column("parameters_M", "parameters (M)", "d")]
    columns += [Column("base", "published: base", ".1f"), Column("transmix", "published: TransMix", ".1f")]
    columns += [Column("gain", "published gain", "+.1f"), Column("our_base", "ours: Mixup + CutMix")]
    columns += [Column("ours", "ours: TransMix"), Column("our_gain", "our gain", "+.2f")]
    return Table(columns, lines, shown=True)


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


def shares_table(lines: list[dict]) -> Table:
    """Area, attention and both definitions of lambda beside each other."""
    titles = {"area": "area of the box", "inside": "attention in the box", "code": "lambda, code"}
    titles |= {"paper": "lambda, paper"}
    return Table([Column("name", ""), *(Column(key, title, ".3f") for key, title in titles.items())], lines)


def shifts(rows: pd.DataFrame) -> dict[str, list[dict]]:
    """{setting: the histories of its seeds} of TransMix's runs, for gmmvit.paper.charts.shifts."""
    found: dict[str, list[dict]] = {}
    trained = rows[(rows.arm == "TransMix") & (rows.state == DONE)]
    for _, alike in trained.groupby(list(ARM), sort=False):
        keys, curves = alike.iloc[0], [history(folder) for folder in alike.folder]
        curves = [curve for curve in curves if "shift_q50" in curve]
        name = f"{setting(keys)}: {DATASETS.get(keys['dataset'], keys['dataset'])}"
        if curves:
            found[f"{name}, {keys['recipe']}" if name in found else name] = curves
    return found
