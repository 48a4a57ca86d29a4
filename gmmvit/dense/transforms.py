"""What both recipes' transforms share; every random number is a draw of the sample's own seed (gmmvit.data.draws)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from ..data import draws

DRAWS = 40  # of each sample
FLIP, CROPPED, SHORT, FIRST, HEIGHT, WIDTH, ROW, COLUMN, SCALE = range(9)
LIGHT = 10  # nine draws of the photometric distortion
PLACES = 20  # row and column of each crop that is tried


class Movable(list):
    """A list of tensors, or of dicts of them, that goes to a device as one tensor does."""

    def to(self, device: torch.device, non_blocking: bool = False) -> Movable:
        def moved(each):
            if isinstance(each, dict):
                return {key: moved(value) for key, value in each.items()}
            return each.to(device, non_blocking=non_blocking)

        return Movable(moved(each) for each in self)


class Bytes(Movable):
    """Images (3, H, W) uint8, which become float32 in [0, 1] on the device that they are sent to."""

    def to(self, device: torch.device, non_blocking: bool = False) -> Movable:
        return Movable(in_unit(each) for each in super().to(device, non_blocking))


def fitted(size: Sequence[int], short: float, long: float) -> tuple[int, int]:
    """The sides of an image that fits."""
    factor = min(short / min(size), long / max(size))
    return tuple(max(1, round(side * factor)) for side in size)


def scaled(image: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Bilinear without antialiasing, as evaluation and the papers' frameworks resize. (C, H, W)"""
    return F.interpolate(image[None], size, mode="bilinear", align_corners=False)[0]


def drawn(seeds: np.ndarray) -> np.ndarray:
    """All draws of each sample, (B, DRAWS)."""
    return np.stack([draws.uniform(seeds, number) for number in range(DRAWS)], 1)


def as_bytes(image: Image.Image) -> torch.Tensor:
    """(3, H, W) uint8."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def in_unit(pixels: torch.Tensor) -> torch.Tensor:
    """uint8 -> float32 in [0, 1]."""
    return pixels.float() / 255


def as_tensor(image: Image.Image) -> torch.Tensor:
    """(3, H, W) float32 in [0, 1]."""
    return in_unit(as_bytes(image))
