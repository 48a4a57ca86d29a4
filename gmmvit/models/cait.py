"""CaiT of the GMM paper (the public code's `cait-tiny`, width 108: erratum G5): timm's Cait with wider heads.

Kept: heads of width 64 in a model of width 108, talking heads in the class layers too, the class token not among their
keys, LayerScale 0.1 in layers 1 to 18 and 1e-5 above, N(0, 1) head mixes and position embedding (the class token
likewise, for which no law is known). Class layers read the patches without a norm: inferred, as the MACs of the
public code add up to the last digit only then.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
from timm.models.cait import Cait, LayerScaleBlockClassAttn

from .parts import SideBySide, Size, constant_drop_path, patch_for, side, xavier_normal, xavier_normal_patches

HEAD_DIM = 64


class TalkingHeads(nn.Module):
    """softmax(A (Q K^T / sqrt(d))) mixed by B, times V, where A and B mix heads (arXiv 2003.02436)."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        qkv_bias: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        **place: Any,  # device and dtype
    ):
        super().__init__()
        inner = num_heads * HEAD_DIM
        self.num_heads, self.scale = num_heads, HEAD_DIM**-0.5
        self.q = nn.Linear(dim, inner, bias=qkv_bias, **place)
        self.kv = nn.Linear(dim, 2 * inner, bias=qkv_bias, **place)
        self.mix_scores = nn.Parameter(torch.randn(num_heads, num_heads, **place))
        self.mix_probabilities = nn.Parameter(torch.randn(num_heads, num_heads, **place))
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(inner, dim, **place)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:  # (B, N, C), (B, M, C)
        context = x if context is None else context
        q = self.q(x).unflatten(-1, (self.num_heads, HEAD_DIM)).transpose(1, 2)  # (B, heads, Nq, d)
        kv = self.kv(context).unflatten(-1, (2, self.num_heads, HEAD_DIM)).permute(2, 0, 3, 1, 4)
        k, v = kv.unbind(0)  # (B, heads, Nk, d) each
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = mix_heads(attn, self.mix_scores)
        attn = attn.softmax(dim=-1, dtype=attn.dtype)  # CUDA's autocast would copy it to float32 and back
        attn = mix_heads(attn, self.mix_probabilities)
        attn = self.attn_drop(attn)
        return self.proj_drop(self.proj((attn @ v).transpose(1, 2).flatten(2)))


def mix_heads(attn: torch.Tensor, mix: torch.Tensor) -> torch.Tensor:
    """Head g becomes the sum over h of mix[h, g] times head h."""
    return (mix.t()[None] @ attn.flatten(2)).unflatten(2, attn.shape[2:])  # (B, heads, Nq, Nk)


class ClassLayer(LayerScaleBlockClassAttn):
    """The class token attends to the patches, and to nothing else."""

    def forward(self, x: torch.Tensor, x_cls: torch.Tensor) -> torch.Tensor:  # (B, N, C), (B, 1, C)
        x_cls = x_cls + self.drop_path(self.gamma_1 * self.attn(self.norm1(x_cls), x))
        return x_cls + self.drop_path(self.gamma_2 * self.mlp(self.norm2(x_cls)))


class CaiT(Cait):
    """24 patch and 2 class layers of width 108, 4 heads of width 64, mlp hidden width 384, class-token read-out."""

    def __init__(self, img_size: Size = 32, drop_path_rate: float = 0.1, **options: Any):
        super().__init__(
            img_size=side(img_size),
            patch_size=patch_for(img_size, 8),
            embed_dim=108,
            depth=24,
            num_heads=4,
            mlp_ratio=384 / 108,
            mlp_ratio_token_only=384 / 108,
            qkv_bias=False,
            attn_block=TalkingHeads,
            attn_block_token_only=TalkingHeads,
            block_layers_token=ClassLayer,
            init_values=0.1,
            patch_layer=SideBySide,
            norm_layer=nn.LayerNorm,
            **options,
        )
        constant_drop_path(self.blocks, drop_path_rate)
        constant_drop_path(self.blocks_token_only, drop_path_rate)
        for block in self.blocks[18:]:
            nn.init.constant_(block.gamma_1, 1e-5)
            nn.init.constant_(block.gamma_2, 1e-5)
        xavier_normal(self)
        xavier_normal_patches(self.patch_embed.proj)
        nn.init.normal_(self.pos_embed)
        nn.init.normal_(self.cls_token)
