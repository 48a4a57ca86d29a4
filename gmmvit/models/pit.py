"""PiT of the GMM paper: timm's PoolingVisionTransformer with a 1 x 1 convolution after each pooling and no QKV bias.

Kept: width 96 (72 until 28 June 2023; the published accuracies may come from that model: erratum G13), a position for
the class token too, N(0, 1) position embedding (the class token likewise, for which no law is known), LayerNorms
with eps 1e-5 (timm's PiT has 1e-6), Xavier-normal weights and the same stochastic depth in every layer.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
from timm.models import checkpoint_seq
from timm.models.pit import PoolingVisionTransformer

from .parts import Size, constant_drop_path, patch_for, side, xavier_normal


class Blocks(nn.Sequential):
    """A stage's blocks, which can be recomputed for backward (timm's PiT cannot)."""

    grad_checkpointing = False

    def forward(self, x: Any) -> Any:
        return checkpoint_seq(self, x) if self.grad_checkpointing else super().forward(x)


class ClassPosition(nn.Module):
    """A learned position for the class token, in the place where later stages pool."""

    def __init__(self, shape: torch.Size):
        super().__init__()
        self.position = nn.Parameter(torch.empty(shape))

    def forward(self, x: torch.Tensor, cls_tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, cls_tokens + self.position


class Depthwise(nn.Conv2d):
    """A convolution of each channel by itself; on a CPU in float32, for in bfloat16 it takes five times as long."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type != "cpu" or not (x.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")):
            return super().forward(x)
        with torch.autocast("cpu", enabled=False):
            whole = x.float().contiguous(memory_format=torch.channels_last)
            return self._conv_forward(whole, self.weight.float(), self.bias.float()).to(x.dtype)


class PiT(PoolingVisionTransformer):
    """Widths 96, 192, 384 on 16, 8 and 4 tokens a side; head width 48, mlp ratio 2, class-token read-out."""

    def __init__(self, img_size: Size = 32, drop_path_rate: float = 0.1, **options: Any):
        patch = patch_for(img_size, 16)
        super().__init__(
            img_size=side(img_size),
            patch_size=patch,
            stride=patch,
            base_dims=(48, 48, 48),
            depth=(2, 6, 4),
            heads=(2, 4, 8),
            mlp_ratio=2,
            **options,
        )
        self.transformers[0].pool = ClassPosition(self.cls_token.shape)
        for stage in self.transformers:
            stage.blocks = Blocks(*stage.blocks)
            for block in stage.blocks:
                block.attn.qkv = nn.Linear(block.attn.qkv.in_features, block.attn.qkv.out_features, bias=False)
        for stage in self.transformers[1:]:
            width = stage.pool.conv.out_channels
            stage.pool.conv.__class__ = Depthwise
            stage.pool.conv = nn.Sequential(stage.pool.conv, nn.Conv2d(width, width, kernel_size=1))
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = 1e-5
        constant_drop_path(self, drop_path_rate)
        xavier_normal(self)
        for embedding in (self.pos_embed, self.transformers[0].pool.position, self.cls_token):
            nn.init.normal_(embedding)

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        return super().no_weight_decay() | {"transformers.0.pool.position"}

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        for stage in self.transformers:
            stage.blocks.grad_checkpointing = enable
