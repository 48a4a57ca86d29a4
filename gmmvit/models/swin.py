"""Swin of the GMM paper: timm's SwinTransformer with windows of 4 and a learned absolute position as well.

Kept: the absolute position embedding beside the relative biases, and PyTorch's own initialisation of Linear and Conv2d
(the public code applies none). Stochastic depth rises linearly from 0, as in timm.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
from timm.layers import PatchEmbed, resample_abs_pos_embed_nhwc, trunc_normal_
from timm.models.swin_transformer import SwinTransformer

from .parts import Size, patch_for, side


class PositionedPatches(PatchEmbed):
    """Patches, LayerNorm and a learned position for each patch."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        width = self.proj.out_channels
        self.pos_embed = nn.Parameter(self.proj.weight.new_zeros(1, *self.grid_size, width))  # (1, rows, columns, C)
        trunc_normal_(self.pos_embed, std=0.02)

    def set_input_size(self, img_size: Size | None = None, patch_size: Size | None = None) -> None:
        super().set_input_size(img_size, patch_size)
        self.pos_embed = nn.Parameter(resample_abs_pos_embed_nhwc(self.pos_embed.data, list(self.grid_size)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (super().forward(x) + self.pos_embed).contiguous()  # as SideBySide


class Swin(SwinTransformer):
    """Widths 96, 192, 384 on 16, 8 and 4 tokens a side; head width 32, mlp ratio 2, mean read-out."""

    def __init__(self, img_size: Size = 32, **options: Any):
        super().__init__(
            img_size=side(img_size),
            patch_size=patch_for(img_size, 16),
            embed_dim=96,
            depths=(2, 6, 4),
            num_heads=(3, 6, 12),
            window_size=4,
            mlp_ratio=2,
            embed_layer=PositionedPatches,
            norm_layer=nn.LayerNorm,
            weight_init="skip",
            **options,
        )

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        return super().no_weight_decay() | {"patch_embed.pos_embed"}
