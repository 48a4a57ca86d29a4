"""Training crops of a segmenter and their labels: many scales, a flip, and a photometric distortion."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torchvision.transforms.v2.functional import adjust_hue

from .ade import IGNORED
from .transforms import FLIP, LIGHT, PLACES, SCALE, Movable, as_tensor, drawn, fitted, scaled

TRIES, MOST_OF_ONE_CLASS = 10, 0.75


def for_segmentation(
    statistics: tuple, samples: Sequence, seeds: np.ndarray, crop: int = 0, short: int = 512, long: int = 2048
) -> tuple[torch.Tensor | Movable, torch.Tensor | Movable]:
    """Normalised images and uint8 classes: crops in training, else images that fit beside labels of their own size."""
    mean, std = (torch.tensor(values)[:, None, None] for values in statistics)
    images, labels = Movable(), Movable()
    for (image, classes), u in zip(samples, drawn(seeds), strict=True):
        pixels, numbers = as_tensor(image), torch.from_numpy(classes.astype(np.uint8))
        if crop:
            pixels, numbers = random_crop(pixels, numbers, u, crop, short, long)
            pixels = distorted(pixels, u[LIGHT:])
        else:
            pixels = scaled(pixels, fitted(pixels.shape[-2:], short, long))
        pixels = (pixels - mean) / std
        if crop:
            below, right = (crop - side for side in pixels.shape[-2:])
            pixels, numbers = F.pad(pixels, (0, right, 0, below)), F.pad(numbers, (0, right, 0, below), value=IGNORED)
        images.append(pixels)
        labels.append(numbers)
    return (torch.stack(images), torch.stack(labels)) if crop else (images, labels)


def random_crop(
    image: torch.Tensor, labels: torch.Tensor, u: np.ndarray, crop: int, short: int, long: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A size of 0.5 to 2, a crop of which at most 3/4 is one class (the tenth is taken as it is), a flip."""
    factor = 0.5 + 1.5 * u[SCALE]
    size = fitted(image.shape[-2:], short * factor, long * factor)
    image = scaled(image, size)
    labels = F.interpolate(labels[None, None].float(), size, mode="nearest")[0, 0].to(torch.uint8)
    for number in range(TRIES):
        top, left = (
            int(v * (max(side - crop, 0) + 1)) for v, side in zip(u[PLACES + 2 * number :][:2], size, strict=True)
        )
        part = labels[top : top + crop, left : left + crop]
        counts = torch.bincount(part[part != IGNORED])
        if (counts > 0).sum() > 1 and counts.max() < MOST_OF_ONE_CLASS * counts.sum():
            break
    image = image[:, top : top + crop, left : left + crop]
    return (image.flip(-1), part.flip(-1)) if u[FLIP] < 0.5 else (image, part)


def distorted(image: torch.Tensor, u: np.ndarray) -> torch.Tensor:
    """SSD's distortion (arXiv 1512.02325) of an image in [0, 1]: each of four steps in half of all cases."""
    brighter, by, contrast_first, contrasted, times, saturated, factor, turned, angle = u[:9].tolist()
    if brighter < 0.5:
        image = (image + (2 * by - 1) * 32 / 255).clamp(0, 1)
    if contrasted < 0.5 and contrast_first < 0.5:
        image = (image * (0.5 + times)).clamp(0, 1)
    if saturated < 0.5:
        image = _saturated(image, 0.5 + factor)
    if turned < 0.5:
        image = adjust_hue(image, (2 * angle - 1) * 18 / 180)
    if contrasted < 0.5 and contrast_first >= 0.5:
        image = (image * (0.5 + times)).clamp(0, 1)
    return image


def _saturated(image: torch.Tensor, factor: float) -> torch.Tensor:
    """S of HSV times a factor, at most 1; H and V stay: v - k (v - rgb), for S is (v - min) / v."""
    value = image.amax(0, keepdim=True)
    most = value / (value - image.amin(0, keepdim=True)).clamp(min=1e-6)
    return value - most.clamp(max=factor) * (value - image)
