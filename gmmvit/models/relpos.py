"""A small ViT with a position MLP in every layer: Gaussian attention bias can be asked without pretrained weights.

timm's VisionTransformerRelPos (the GAB paper's ViT (R): log-coordinate MLP, LayerScale 1e-6, no position embedding,
mean read-out, then LayerNorm) in the width, depth, heads and mlp ratio of the GMM paper's `vit`. Of no paper: ours.
"""

from __future__ import annotations

from typing import Any

from timm.models.vision_transformer_relpos import VisionTransformerRelPos

from .parts import SideBySide, Size, patch_for, side


class RelPosViT(VisionTransformerRelPos):
    """Width 192, depth 9, 12 heads, 8 x 8 tokens."""

    def __init__(self, img_size: Size = 32, **options: Any):
        super().__init__(
            img_size=side(img_size),
            patch_size=patch_for(img_size, 8),
            embed_dim=192,
            depth=9,
            num_heads=12,
            mlp_ratio=2,
            qkv_bias=False,
            rel_pos_type="mlp",
            fc_norm=True,
            embed_layer=SideBySide,
            **options,
        )
