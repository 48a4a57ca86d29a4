"""Random erasing: the boxes of the GMM code, those of timm with their noise, and the pixels inside of boxes.

The GMM code's aspect is uniform, where torchvision's and timm's is log-uniform.
"""

from __future__ import annotations

import numpy as np
import torch

from . import draws

PROBABILITY = 0.25
AREA = (0.02, 0.4)
ASPECT = (0.3, 1 / 0.3)
TRIES = 10


def random_boxes(seeds: np.ndarray, size: int) -> torch.Tensor:
    """One box in a quarter of the images of size x size pixels: (B, 4), zeros where there is none."""
    boxes = np.zeros((len(seeds), 4), np.int64)
    hit = np.flatnonzero(draws.uniform(seeds, draws.ERASE) < PROBABILITY)
    hit, top, left, height, width = rectangles(hit, seeds[hit], size)
    boxes[hit] = np.stack([top, left, top + height, left + width], 1)
    return torch.from_numpy(boxes)


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


def inside(boxes: torch.Tensor, size: int) -> torch.Tensor:
    """Which pixels of size x size are in the boxes (B, 4) of top, left, bottom and right; (B, 1, S, S) bool."""
    pixels = torch.arange(size, device=boxes.device)
    top, left, bottom, right = boxes[:, :, None].unbind(1)  # (B, 1) each
    rows, columns = (pixels >= top) & (pixels < bottom), (pixels >= left) & (pixels < right)  # (B, S)
    return rows[:, None, :, None] & columns[:, None, None, :]


class Written:
    """In the place of an image (3, S, S), for timm's erasing to write into: keeps the box and what was written."""

    dtype = torch.float32

    def __init__(self, shape: torch.Size):
        self.shape, self.box, self.pixels = shape, (0, 0, 0, 0), torch.empty(0)

    def size(self) -> torch.Size:
        return self.shape

    def __setitem__(self, place: tuple[slice, slice, slice], pixels: torch.Tensor) -> None:
        _, rows, columns = place
        self.box, self.pixels = (rows.start, columns.start, rows.stop, columns.stop), pixels.flatten()
