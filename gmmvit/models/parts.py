"""What the backbones share: the patch rule, and the GMM paper's initialisation and stochastic depth."""

from __future__ import annotations

from collections.abc import Collection

import torch
import torch.nn as nn
from timm.layers import DropPath, PatchEmbed

Size = int | tuple[int, int]  # of an image in pixels: its side, or (rows, columns)


def side(img_size: Size) -> int:
    """The side of a square image, given as a number or as (rows, columns)."""
    sides = set(img_size) if isinstance(img_size, (tuple, list)) else {img_size}
    length = sides.pop() if len(sides) == 1 else None
    if type(length) is not int or length < 1:
        raise ValueError(f"img_size: expected the side of a square image in pixels, such as 32, got {img_size!r}")
    return length


def patch_for(img_size: Size, grid: int) -> int:
    """The patch that cuts an image into grid x grid tokens: on 8 x 8, 4 px of 32, 8 px of 64, 32 px of 256."""
    length = side(img_size)
    if length % grid:
        below = length // grid * grid
        near = f"{below} or {below + grid}" if below else f"{grid}"
        raise ValueError(
            f"img_size: no patch divides {length} px into the model's {grid} x {grid} tokens: expected a multiple of "
            f"{grid}, got {length}; the nearest is {near}"
        )
    return length // grid


def defined_size(model: str, img_size: Size, sizes: Collection[int]) -> int:
    """The side of an image whose size is one of the few a model is defined for."""
    length = side(img_size)
    if length not in sizes:
        known, near = " and ".join(map(str, sorted(sizes))), min(sizes, key=lambda size: abs(size - length))
        raise ValueError(f"img_size: {model} is defined for images of {known} px, got {length}; the nearest is {near}")
    return length


def xavier_normal(model: nn.Module) -> None:
    """Draws the weights of every Linear and Conv2d from N(0, 2 / (fan in + fan out)); biases are 0, norms identity."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.xavier_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            module.reset_parameters()


def xavier_normal_patches(embed: nn.Conv2d) -> None:
    """Draws likewise what the public code has as a matrix, by which cut patches are multiplied: the fans are its."""
    nn.init.xavier_normal_(embed.weight.data.flatten(1))  # (width, channels * patch * patch), a view


def constant_drop_path(model: nn.Module, rate: float) -> None:
    """The same stochastic depth in every layer (the public code shares one module), where timm has a ramp."""
    for module in model.modules():
        for name in ("drop_path", "drop_path1", "drop_path2"):
            if hasattr(module, name):
                setattr(module, name, DropPath(rate) if rate else nn.Identity())


class SideBySide(PatchEmbed):
    """Patches whose channels lie side by side: a convolution leaves them apart, and sums after it keep to that."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).contiguous()


def explicit_attention_on_cpu(model: nn.Module) -> None:
    """Takes Q K^T itself where there is no accelerator: fused attention slows these models down by up to 2.8 there.

    With masks they may still be computed by our own kernel, which is faster than both.
    """
    if not torch.accelerator.is_available():
        for module in set_fused(model, False).modules():
            if hasattr(module, "fused_attn"):
                module.native_attn = True


def set_fused(model: nn.Module, fused: bool) -> nn.Module:
    """The model, whose every attention now takes torch's fused kernel, or the explicit product."""
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
    return model
