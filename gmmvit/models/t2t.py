"""T2T of the GMM paper: timm's VisionTransformer on tokens made by unfolding and small transformers (arXiv 2101.11986).

Kept (erratum G14): the token transformer's scale is the width of its input although queries and keys are 64 wide, its
skip connection carries the values, and each backbone attention adds its normalised input once more. Not kept: 1,408
parameters of the public code that reach no output (a class token and a LayerNorm).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from timm.layers import Mlp, use_fused_attn
from timm.models import checkpoint
from timm.models.vision_transformer import Block, VisionTransformer

from .parts import Size, defined_size

TOKEN_DIM = 64
UNFOLDS = {32: 2, 64: 3}  # image size: unfoldings, each halves the grid, down to 8 x 8


class TokenAttention(nn.Module):
    """V + softmax(Q K^T / sqrt(in_dim)) V W: one head, and the skip connection carries the values."""

    fused_attn: torch.jit.Final[bool]

    def __init__(self, in_dim: int):
        super().__init__()
        self.num_heads, self.scale = 1, in_dim**-0.5
        self.fused_attn = use_fused_attn()
        self.qkv = nn.Linear(in_dim, 3 * TOKEN_DIM, bias=False)
        self.attn_drop = nn.Dropout(0.0)
        self.proj = nn.Linear(TOKEN_DIM, TOKEN_DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, N, in_dim) -> (B, N, 64)
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, dim=-1)  # (B, 1, N, 64) each
        if self.fused_attn:
            out = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        else:
            attn = (q * self.scale) @ k.transpose(-2, -1)
            attn = self.attn_drop(attn.softmax(dim=-1, dtype=attn.dtype))
            out = attn @ v
        return v.squeeze(1) + self.proj(out.squeeze(1))


class TokenTransformer(nn.Module):
    """Attention and an mlp of ratio 1 at width 64; without stochastic depth."""

    def __init__(self, in_dim: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(in_dim)
        self.attn = TokenAttention(in_dim)
        self.norm2 = nn.LayerNorm(TOKEN_DIM)
        self.mlp = Mlp(TOKEN_DIM, TOKEN_DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, N, in_dim) -> (B, N, 64)
        x = self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TokensToTokens(nn.Module):
    """Unfold 3 x 3 at stride 2, transform, and so on; the last unfolding is projected to the backbone's width."""

    def __init__(self, img_size: int, patch_size: int, in_chans: int, embed_dim: int, bias: bool = True, **_: Any):
        super().__init__()
        self.img_size, self.patch_size, self.in_chans = (img_size, img_size), (patch_size, patch_size), in_chans
        self.grid_size = (img_size // patch_size, img_size // patch_size)
        self.num_patches = self.grid_size[0] * self.grid_size[1]
        self.grad_checkpointing = False
        self.unfold = nn.Unfold(kernel_size=3, stride=2, padding=1)
        widths = [9 * in_chans] + [9 * TOKEN_DIM] * (UNFOLDS[img_size] - 1)  # of the tokens after each unfolding
        self.transformers = nn.ModuleList(TokenTransformer(width) for width in widths[:-1])
        self.proj = nn.Linear(widths[-1], embed_dim, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, C, H, W) -> (B, N, embed_dim)
        if x.shape[-2:] != self.img_size:
            raise ValueError(f"T2T was built for images of {self.img_size} px and got {tuple(x.shape[-2:])}")
        tokens = self.unfold(x).transpose(1, 2)  # (B, N, 9 C)
        for transformer in self.transformers:
            rows = x.shape[-2] // 2
            tokens = checkpoint(transformer, tokens) if self.grad_checkpointing else transformer(tokens)
            x = tokens.transpose(1, 2).unflatten(2, (rows, rows))
            tokens = self.unfold(x).transpose(1, 2)
        return self.proj(tokens)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def feat_ratio(self, as_scalar: bool = True) -> int | tuple[int, int]:
        return self.patch_size[0] if as_scalar else self.patch_size

    def dynamic_feat_size(self, img_size: tuple[int, int]) -> tuple[int, int]:
        return self.grid_size


class TwiceResidualBlock(Block):
    """A pre-norm block whose attention adds its own normalised input, LN(x), once more."""

    def forward(self, x: torch.Tensor, *masking: Any, **options: Any) -> torch.Tensor:
        normed = self.norm1(x)
        x = x + self.drop_path1(normed + self.attn(normed, *masking, **options))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


class T2T(VisionTransformer):
    """12 blocks of width 256 on 8 x 8 tokens, 4 heads, mlp ratio 2, fixed sinusoid positions, mean read-out."""

    def __init__(self, img_size: Size = 32, **options: Any):
        length = defined_size("t2t", img_size, UNFOLDS)
        super().__init__(
            img_size=length,
            patch_size=2 ** UNFOLDS[length],
            embed_dim=256,
            depth=12,
            num_heads=4,
            mlp_ratio=2,
            qkv_bias=False,
            global_pool="avg",
            class_token=False,
            fc_norm=False,
            embed_layer=TokensToTokens,
            block_fn=TwiceResidualBlock,
            norm_layer=nn.LayerNorm,
            **options,
        )
        self.pos_embed.requires_grad_(False).copy_(sinusoids(*self.pos_embed.shape[1:]))


def sinusoids(tokens: int, width: int) -> torch.Tensor:
    """sin (even columns) and cos (odd) of position / 10000^(2 floor(column / 2) / width), rounded from float64."""
    position, column = (torch.arange(count, dtype=torch.float64) for count in (tokens, width))
    angle = position[:, None] / 10000 ** (2 * (column // 2) / width)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos()).float()  # (tokens, width)
