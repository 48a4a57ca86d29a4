"""Random erasing of the GMM code: the aspect is uniform, where torchvision's and timm's is log-uniform."""

from __future__ import annotations

import numpy as np
import torch

from . import draws

PROBABILITY = 0.25
AREA = (0.02, 0.4)
ASPECT = (0.3, 1 / 0.3)
TRIES = 10


def random_erase(images: torch.Tensor, seeds: np.ndarray, fill: tuple[float, float, float]) -> torch.Tensor:
    """Fill one rectangle of a quarter of the images (B, 3, S, S), in place."""
    size = images.shape[-1]
    hit = np.flatnonzero(draws.uniform(seeds, draws.ERASE) < PROBABILITY)
    hit, top, left, height, width = rectangles(hit, seeds[hit], size)
    pixels = np.arange(size)
    rows = (pixels >= top[:, None]) & (pixels < (top + height)[:, None])  # (hit, S)
    columns = (pixels >= left[:, None]) & (pixels < (left + width)[:, None])
    inside = torch.from_numpy(rows[:, None, :, None] & columns[:, None, None, :])  # (hit, 1, S, S)
    hit = torch.from_numpy(hit)
    images[hit] = torch.where(inside, torch.tensor(fill, dtype=images.dtype).view(3, 1, 1), images[hit])
    return images


def rectangles(hit: np.ndarray, seeds: np.ndarray, size: int) -> tuple[np.ndarray, ...]:
    """(image, top, left, height, width) of the first of TRIES rectangles that is smaller than the image."""
    number = draws.ERASE + 3 + 2 * np.arange(TRIES)
    share = np.stack([draws.uniform(seeds, n) for n in number])  # (TRIES, hit)
    shape = np.stack([draws.uniform(seeds, n + 1) for n in number])
    area = size * size * (AREA[0] + (AREA[1] - AREA[0]) * share)
    aspect = ASPECT[0] + (ASPECT[1] - ASPECT[0]) * shape
    height, width = np.rint(np.sqrt(area * aspect)).astype(int), np.rint(np.sqrt(area / aspect)).astype(int)
    fits = (height < size) & (width < size)
    first, some = fits.argmax(axis=0), fits.any(axis=0)
    height, width = (np.take_along_axis(side, first[None], axis=0)[0] for side in (height, width))
    top = (draws.uniform(seeds, draws.ERASE + 1) * (size - height + 1)).astype(int)
    left = (draws.uniform(seeds, draws.ERASE + 2) * (size - width + 1)).astype(int)
    return tuple(values[some] for values in (hit, top, left, height, width))
