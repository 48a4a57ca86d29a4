"""The table of data sets of detection and segmentation: classes, images, sizes."""

from __future__ import annotations

from typing import NamedTuple

from ..core.errors import unknown

ANCHORS = (32, 64, 128, 256, 512)  # side in pixels, of a stride each: 4, 8, 16, 32, 64
SMALL_ANCHORS = (8, 16, 32, 64, 128)
SHAPES = ("disc", "square", "triangle")  # what gmmvit.fetch.shapes draws
DRAWN, SIDE = {"train": 200, "test": 40}, 96  # so many images, of so many pixels


class DenseSet(NamedTuple):
    """What is known of a data set before a file of it is read."""

    name: str
    kind: str  # detection or segmentation
    homes: tuple[str, ...]  # where its official files may lie, under data/downloads/ or data/
    images: dict[str, int]  # of each split, in training those with objects
    classes: int
    size: int  # the shorter side of an image, to which the recipe's sizes are scaled (coco: 800, ade20k: 512)
    anchors: tuple[int, ...] = ANCHORS


_ALL = (
    DenseSet("coco", "detection", ("coco", "coco2017"), {"train": 117_266, "test": 5_000}, 80, 800),
    DenseSet("ade20k", "segmentation", ("ADEChallengeData2016", "ade20k"), {"train": 20_210, "test": 2_000}, 150, 512),
    DenseSet("coco-shapes", "detection", ("coco-shapes",), DRAWN, len(SHAPES), SIDE, SMALL_ANCHORS),
    DenseSet("ade20k-shapes", "segmentation", ("ade20k-shapes",), DRAWN, 1 + len(SHAPES), SIDE),  # and the ground
)
SETS = {each.name: each for each in _ALL}


def find(name: str) -> DenseSet:
    """The row of a data set; a ValueError names the nearest one."""
    if name not in SETS:
        raise ValueError(unknown("data set of detection and segmentation", name, SETS))
    return SETS[name]
