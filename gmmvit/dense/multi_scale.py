"""Training images of a detector as in DETR (arXiv 2005.12872): resized or cropped to many sizes, with their targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from .coco import Coco
from .transforms import (
    COLUMN,
    CROPPED,
    FIRST,
    FLIP,
    HEIGHT,
    ROW,
    SHORT,
    WIDTH,
    Bytes,
    Movable,
    as_bytes,
    as_tensor,
    drawn,
    fitted,
    scaled,
)

Target = dict[str, torch.Tensor]  # boxes (N, 4), labels (N,), masks (N, H, W)


class Sizes(NamedTuple):
    """The sides of training images, in pixels."""

    short: tuple[int, ...] = tuple(range(480, 801, 32))  # one of these at the end
    long: int = 1333
    first: tuple[int, ...] = (400, 500, 600)  # one of these before a crop
    crop: tuple[int, int] = (384, 600)  # the least and the most of a crop's sides

    def times(self, factor: float) -> Sizes:
        """The same for smaller images."""
        sides = (tuple(round(side * factor) for side in (v if isinstance(v, tuple) else (v,))) for v in self)
        short, (long,), first, crop = sides
        return Sizes(short, long, first, crop)


def for_detection(source: Coco, samples: Sequence, seeds: np.ndarray, sizes: Sizes | None) -> tuple[Movable, Movable]:
    """Images (3, H, W) in [0, 1] and targets; without sizes, for evaluation, images as they are, still uint8."""
    if not sizes:
        return Bytes(as_bytes(image) for image, _ in samples), Movable()
    images, targets = Movable(), Movable()
    for (image, objects), u in zip(samples, drawn(seeds), strict=True):
        pixels = as_tensor(image)
        target = source.target(objects, tuple(pixels.shape[-2:]))
        pixels, target = multi_scale(pixels, target, u, sizes)
        images.append(pixels)
        targets.append(target)
    return images, targets


def multi_scale(image: torch.Tensor, target: Target, u: np.ndarray, sizes: Sizes) -> tuple[torch.Tensor, Target]:
    """A flip in half of all cases; in half of all cases a crop of a resized image; one of eleven sizes."""
    if u[FLIP] < 0.5:
        image, target = flipped(image, target)
    if u[CROPPED] < 0.5:
        image, target = resized(image, target, pick(sizes.first, u[FIRST]), sizes.long)
        (top, height), (left, width) = (
            _span(side, sizes.crop, u[length], u[place])
            for side, length, place in zip(image.shape[-2:], (HEIGHT, WIDTH), (ROW, COLUMN), strict=True)
        )
        image, target = cropped(image, target, (top, left, height, width))
    return resized(image, target, pick(sizes.short, u[SHORT]), sizes.long)


def _span(side: int, limits: tuple[int, int], length: float, place: float) -> tuple[int, int]:
    """Start and length of a crop along one side, both drawn; a side shorter than the least stays whole."""
    least, most = (min(side, limit) for limit in limits)
    long = least + int(length * (most - least + 1))
    return int(place * (side - long + 1)), long


def flipped(image: torch.Tensor, target: Target) -> tuple[torch.Tensor, Target]:
    """Left to right."""
    left, top, right, bottom = target["boxes"].unbind(1)
    width = image.shape[-1]
    boxes = torch.stack([width - right, top, width - left, bottom], 1)
    return image.flip(-1), target | {"boxes": boxes, "masks": target["masks"].flip(-1)}


def resized(image: torch.Tensor, target: Target, short: int, long: int) -> tuple[torch.Tensor, Target]:
    """With the sides' proportion kept: the shorter one is `short` unless the longer one would be above `long`."""
    size = fitted(image.shape[-2:], short, long)
    factors = torch.tensor([new / old for new, old in zip(size, image.shape[-2:], strict=True)]).flip(0)
    masks = F.interpolate(target["masks"][None], size, mode="nearest")[0] if len(target["masks"]) else None
    masks = target["masks"].new_zeros(0, *size) if masks is None else masks
    return scaled(image, size), target | {"boxes": target["boxes"] * factors.repeat(2), "masks": masks}


def cropped(image: torch.Tensor, target: Target, box: tuple[int, int, int, int]) -> tuple[torch.Tensor, Target]:
    """A part (top, left, height, width) with the objects that reach into it."""
    top, left, height, width = box
    rows, columns = slice(top, top + height), slice(left, left + width)
    corner, far = torch.tensor([left, top] * 2), torch.tensor([width, height] * 2)
    boxes = torch.minimum((target["boxes"] - corner).clamp(min=0), far.float())
    inside = (boxes[:, 2:] > boxes[:, :2]).all(1)
    kept = {"boxes": boxes[inside], "labels": target["labels"][inside], "masks": target["masks"][inside]}
    return image[:, rows, columns], kept | {"masks": kept["masks"][:, rows, columns]}


def pick(values: Sequence, u: float):
    """One of the values, all alike likely."""
    return values[int(u * len(values))]
