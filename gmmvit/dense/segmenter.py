"""UPerNet (arXiv 1807.10221): segmentation-models-pytorch's decoder on a pyramid of timm's, with an auxiliary head."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

from ..core.attach import Site
from ..core.errors import need
from .ade import IGNORED
from .backbone import STRIDES, Pyramid, sites_within

AUXILIARY_LEVEL = 2  # stride 16
AUXILIARY_WEIGHT = 0.4
AUXILIARY_WIDTH = 256


class Segmenter(nn.Module):
    """Normalised images (B, 3, H, W) of any size -> logits (B, classes, H, W); with the auxiliary ones in training."""

    def __init__(self, pyramid: Pyramid, classes: int, *, width: int = 512, dropout: float = 0.1):
        super().__init__()
        decoder = need("segmentation_models_pytorch.decoders.upernet.decoder").UPerNetDecoder
        self.pyramid = pyramid
        self.decoder = decoder([0, 0, *pyramid.channels], encoder_depth=len(STRIDES) + 1, decoder_channels=width)
        if pyramid.channels_last:  # then the maps are normalised already
            self.decoder.feature_norms = nn.ModuleList(nn.Identity() for _ in pyramid.channels)
        self.head = nn.Sequential(nn.Dropout2d(dropout), nn.Conv2d(width, classes, 1))
        self.auxiliary = nn.Sequential(
            nn.Conv2d(pyramid.channels[AUXILIARY_LEVEL], AUXILIARY_WIDTH, 3, padding=1, bias=False),
            nn.BatchNorm2d(AUXILIARY_WIDTH),
            nn.ReLU(inplace=True),
            nn.Dropout2d(dropout),
            nn.Conv2d(AUXILIARY_WIDTH, classes, 1),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        maps = self.pyramid(images)
        logits = self._full(self.head(self.decoder([images, images, *maps])), maps, images)
        if not self.training:
            return logits
        return logits, self._full(self.auxiliary(maps[AUXILIARY_LEVEL]), maps, images)

    @staticmethod
    def _full(logits: torch.Tensor, maps: list[torch.Tensor], images: torch.Tensor) -> torch.Tensor:
        """Logits at every pixel of the images, which the pyramid has padded."""
        padded = [side * STRIDES[0] for side in maps[0].shape[-2:]]
        logits = F.interpolate(logits, padded, mode="bilinear", align_corners=False)
        return logits[..., : images.shape[-2], : images.shape[-1]]

    @property
    def spatial_sites(self) -> list[Site]:
        """Where the masks are: what learned masks are saved and folded by."""
        return sites_within(self.pyramid, "pyramid")

    def no_weight_decay(self) -> set[str]:
        return {f"pyramid.{name}" for name in self.pyramid.no_weight_decay()}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.pyramid.set_grad_checkpointing(enable)


def loss(outputs: tuple[torch.Tensor, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of head and auxiliary head, each its mean over the pixels that have a class; labels (B, H, W)."""
    counted = (labels != IGNORED).sum().clamp(min=1)
    main, auxiliary = (
        F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum") / counted for logits in outputs
    )
    return main + AUXILIARY_WEIGHT * auxiliary
