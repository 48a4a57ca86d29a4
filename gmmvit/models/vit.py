"""ViT of the GMM paper and its depth variants: timm's VisionTransformer with a mean or class-token read-out.

Kept: Xavier-normal weights, N(0, 1) position embedding, the same stochastic depth in every layer, LayerNorm after the
read-out. Not kept: the public code changes the read-out with the mask (mean with, class token without); here `readout`
is a choice of its own, so that a masked model can be compared with its equal. The public code multiplies cut patches by
a matrix where timm convolves: the same map, but the paper's count of MACs takes its bias at every patch (0.01 M more).
No law is known for the class token: it is drawn from N(0, 1) as its position is.
"""

from __future__ import annotations

from typing import Any

import torch.nn as nn
from timm.models.vision_transformer import VisionTransformer

from .parts import (
    SideBySide,
    Size,
    constant_drop_path,
    defined_size,
    patch_for,
    side,
    xavier_normal,
    xavier_normal_patches,
)

# Width, depth, and what differs from 12 heads on 8 x 8 tokens. Comments: the public code's name, where it is another.
SIZES = {
    "vit": {"embed_dim": 192, "depth": 9},  # "ViT-base" in the paper's first readme (erratum G4)
    "vit_d6": {"embed_dim": 252, "depth": 6},
    "vit_d15": {"embed_dim": 144, "depth": 15},
    "vit_d30": {"embed_dim": 72, "depth": 30},
    "vit_d30_108": {"embed_dim": 108, "depth": 30},  # vit_d30*
    "vit_d30_192": {"embed_dim": 192, "depth": 30},  # vit_d30**
    "vit_d60": {"embed_dim": 72, "depth": 60},
    "vit_wide": {"embed_dim": 256, "depth": 8, "num_heads": 4, "grid": {32: 16, 64: 8}},  # vit-base, patches of 2 and 8
    "vit_xs": {"embed_dim": 96, "depth": 6, "num_heads": 6},  # ours: small enough for a CPU to train it long
    "vit_heat": {"embed_dim": 192, "depth": 8, "num_heads": 6, "grid": 16},  # vit-heat
}


class ViT(VisionTransformer):
    """Pre-norm ViT, mlp ratio 2, no QKV bias; `grid` is the token grid's side, or that side for each image size."""

    def __init__(
        self,
        img_size: Size = 32,
        readout: str = "mean",
        grid: int | dict[int, int] = 8,
        num_heads: int = 12,
        drop_path_rate: float = 0.1,
        **options: Any,
    ):
        if isinstance(grid, dict):
            grid = grid[defined_size("vit_wide", img_size, grid)]
        super().__init__(
            img_size=side(img_size),
            patch_size=patch_for(img_size, grid),
            num_heads=num_heads,
            global_pool="avg" if readout == "mean" else "token",
            class_token=readout == "token",
            fc_norm=True,
            mlp_ratio=2,
            qkv_bias=False,
            norm_layer=nn.LayerNorm,
            embed_layer=SideBySide,
            **options,
        )
        constant_drop_path(self, drop_path_rate)
        xavier_normal(self)
        xavier_normal_patches(self.patch_embed.proj)
        nn.init.normal_(self.pos_embed)
        if self.cls_token is not None:
            nn.init.normal_(self.cls_token)
