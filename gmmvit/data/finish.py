"""From the bytes that a worker sends to normalised float32 images, on the device that learns from them.

An image of 224 px is 150 KB as a worker sends it and 602 KB normalised. What erasing writes over images it writes over
normalised ones, so a worker sends where and what, and both are done here, for a whole batch at once and without the
host waiting for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from .erasing import inside


class Raw(NamedTuple):
    """Images before they are normalised, and what is written over them afterwards."""

    images: torch.Tensor  # (B, 3, S, S) uint8
    boxes: torch.Tensor | None = None  # (B, 4): top, left, bottom, right; four zeros where nothing is erased
    noise: torch.Tensor | None = None  # (pixels,) for the boxes, one after the other; else the recipe's fill

    def to(self, device: torch.device, non_blocking: bool = False) -> Raw:
        return Raw(*(part if part is None else part.to(device, non_blocking=non_blocking) for part in self))


class Finish(NamedTuple):
    """What an augmentation ends with: (pixels / 255 - mean) / std, then the erased boxes."""

    mean: torch.Tensor  # (3, 1, 1), as the next two
    std: torch.Tensor
    fill: torch.Tensor
    divided: bool  # by 255, as timm's images are; torchvision's v2 multiplies by 1 / 255, which rounds otherwise

    @classmethod
    def of(
        cls, mean: Sequence[float], std: Sequence[float], fill: Sequence[float] = (0.0, 0.0, 0.0), divided: bool = False
    ) -> Finish:
        """With these numbers of each channel."""
        return cls(*(torch.tensor(values, dtype=torch.float32).view(3, 1, 1) for values in (mean, std, fill)), divided)

    def to(self, device: torch.device) -> Finish:
        return Finish(*(part.to(device) for part in self[:3]), self.divided)

    def __call__(self, raw: Raw) -> torch.Tensor:
        """Images (B, 3, S, S) float32, where `raw` and these numbers are."""
        images = raw.images.to(torch.float32)
        images = images.div_(255) if self.divided else images.mul_(1 / 255)
        images = images.sub_(self.mean).div_(self.std)
        if raw.boxes is None:
            return images
        erased = inside(raw.boxes, images.shape[-1])  # (B, 1, S, S)
        if raw.noise is None:
            return torch.where(erased, self.fill, images)
        return images.masked_scatter_(erased.expand_as(images), raw.noise)


class Unfinished(list):
    """A batch of images in pieces (Raw); sent to the device of `finish` it is one tensor, (B, 3, S, S) float32."""

    def __init__(self, pieces: Sequence[Raw], finish: Finish):
        super().__init__(pieces)
        self.finish = finish

    def to(self, device: torch.device, non_blocking: bool = False) -> torch.Tensor:
        moved = (piece.to(device, non_blocking) for piece in self)
        whole = Raw(*(None if parts[0] is None else _joined(parts) for parts in zip(*moved, strict=True)))
        return self.finish.to(device)(whole)


class Pieces(list):
    """A tensor in pieces, put together on the device that it is sent to."""

    def to(self, device: torch.device, non_blocking: bool = False) -> torch.Tensor:
        return _joined([piece.to(device, non_blocking=non_blocking) for piece in self])


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
