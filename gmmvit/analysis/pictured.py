"""What a trained detector or segmenter makes of the first test images, small enough to be kept in git."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image

from ..core.products import at_rest
from ..data.draws import sample_seeds
from ..dense.ade import IGNORED
from ..dense.evaluate import whole

if TYPE_CHECKING:
    from ..dense.tasks import Dense, Detection, Segmentation

IMAGES, SIDE, SCORE = 3, 128, 0.5  # so many, their longer side at most, the least score of a detection
WHITE = 255
Size = tuple[int, int]  # rows, columns


def pictured(task: Dense, model: nn.Module) -> dict[str, np.ndarray]:
    """`dense_images` (k, H, W, 3) uint8, each at the top left, and what is in them.

    Of detection, for each image i: `dense_boxes_<i>` (n, 6) of x0, y0, x1, y1, score, class from 1; `dense_masks_<i>`
    (n, H, W); the truth as `dense_true_boxes_<i>` (n, 5) without scores and `dense_true_masks_<i>`. Of segmentation:
    `dense_labels` and `dense_true` (k, H, W) uint8, 255 where nothing has a class; images are seen at once.
    """
    source = task.sources["test"]
    places = np.arange(min(IMAGES, len(source)))
    samples = source.read(places)
    sizes = [_small(image.size[::-1]) for image, _ in samples]
    shown = [np.asarray(image.resize(size[::-1])) for (image, _), size in zip(samples, sizes, strict=True)]
    canvas = tuple(np.max(sizes, 0).tolist())
    arrays = {"dense_images": np.stack([_laid(each, canvas, WHITE) for each in shown])}
    images, _ = task.augmentation(train=False)(samples, sample_seeds(0, places))
    with at_rest(model):
        made = _objects if task.dataset.kind == "detection" else _classes
        return arrays | made(task, model, images.to(task.world.device), samples, sizes, canvas)


def _objects(
    task: Detection, model: nn.Module, images: list, samples: Sequence, sizes: Sequence[Size], canvas: Size
) -> dict[str, np.ndarray]:
    arrays, source = {}, task.sources["test"]
    for i, (output, (image, listed), size) in enumerate(zip(model(images), samples, sizes, strict=True)):
        sure = output["scores"] >= SCORE
        found = {key: values[sure].float().cpu() for key, values in output.items()}
        truth = source.target(listed, image.size[::-1])
        factors = torch.tensor([new / old for new, old in zip(size, image.size[::-1], strict=True)]).flip(0).repeat(2)
        parts = {"": (found, found["masks"], ["scores", "labels"])}
        parts["true_"] = truth, truth["masks"][:, None].float(), ["labels"]
        for name, (objects, masks, columns) in parts.items():
            values = [objects["boxes"] * factors, *(objects[column][:, None] for column in columns)]
            arrays[f"dense_{name}boxes_{i}"] = torch.cat(values, 1).numpy().astype(np.float32)
            arrays[f"dense_{name}masks_{i}"] = _laid(_halves(masks, size), canvas, False, first=1)
    return arrays


def _classes(
    task: Segmentation, model: nn.Module, images: list, samples: Sequence, sizes: Sequence[Size], canvas: Size
) -> dict[str, np.ndarray]:
    maps = {"dense_labels": [], "dense_true": []}
    for image, (_, truth), size in zip(images, samples, sizes, strict=True):
        nearest = Image.fromarray(truth).resize(size[::-1], Image.Resampling.NEAREST)
        for name, labels in (("dense_labels", whole(model, image, size).cpu()), ("dense_true", nearest)):
            maps[name].append(_laid(np.asarray(labels, np.uint8), canvas, IGNORED))
    return {name: np.stack(each) for name, each in maps.items()}


def _small(size: Size) -> Size:
    """The sides of an image (H, W) as it is kept."""
    factor = min(1.0, SIDE / max(size))
    return tuple(max(1, round(side * factor)) for side in size)


def _halves(masks: torch.Tensor, size: Size) -> np.ndarray:
    """Masks (n, 1, H, W) of shares at another size: the pixels more than half of which they cover, (n, h, w) bool."""
    if not len(masks):
        return np.zeros((0, *size), bool)
    return (F.interpolate(masks, size, mode="area")[:, 0] > 0.5).numpy()


def _laid(array: np.ndarray, canvas: Size, ground: int, first: int = 0) -> np.ndarray:
    """An array whose axes `first` and the next are rows and columns, at the top left of a larger ground."""
    margins = [(0, 0)] * array.ndim
    for axis, side in enumerate(canvas, first):
        margins[axis] = (0, side - array.shape[axis])
    return np.pad(array, margins, constant_values=ground)
