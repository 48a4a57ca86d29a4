"""Gaussians of the distance of two patches: what their masks have in common."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from . import together
from .gathered import scattered
from .grids import Grid, by_offset, squared_distances
from .spatial import SpatialMask
from .trace import exported
from .values import as_bits, from_bits, number


class _Mixture(torch.autograd.Function):
    """sum_k alpha_k exp(-d2 / (2 (sigma_k^2 + eps))) of all pairs: autograd's thirty small steps cost 1 ms a layer."""

    @staticmethod
    def forward(ctx, sigma, alpha, d2, pair, eps, grid):  # (K, rows), (K, rows), (U,), (Nq * Nk,)
        variance = sigma.square().add_(eps)
        gauss = torch.exp((-0.5 / variance)[..., None] * d2)  # (K, rows, U)
        ctx.grid = grid  # of queries and keys alike, else None
        ctx.save_for_backward(sigma, alpha, variance, gauss, d2, pair)
        return (alpha[..., None] * gauss).sum(0).index_select(1, pair)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):  # (rows, Nq * Nk)
        sigma, alpha, variance, gauss, d2, pair = ctx.saved_tensors
        with torch.autocast(gradient.device.type, enabled=False):  # of whoever calls backward
            if ctx.grid is not None and together.on_gpu(gradient):
                summed, corner = by_offset(gradient, ctx.grid), pair[: ctx.grid[0] * ctx.grid[1]]
                gauss, d2 = gauss.index_select(-1, corner), d2.index_select(0, corner)  # of the first query's keys
            else:
                summed = scattered(gradient, pair, gauss.shape[-1])
            weighted = summed * gauss  # (K, rows, U)
            by_variance = weighted @ d2
        return by_variance * (alpha * sigma / variance.square()), weighted.sum(-1), None, None, None, None


class GaussianMask(SpatialMask):
    """What the two Gaussian masks have in common: mixtures over the few distinct distances, gathered to pairs."""

    eps = 0.0
    underflow = False
    squared = False  # whether heights are squares of what is learned

    def __init__(self, grid: Grid, heads: int, base: float = 0.0, **place: Any):
        super().__init__(grid, heads, **place)
        # what a neutral start has beside the paper's formula: in state_dict, so that none is loaded as the other
        self.register_buffer("base", torch.tensor(number("base", base)) if base else None)
        distances = squared_distances(self.grid, self.key_grid)
        self.register_buffer("d2_bits", as_bits(distances.values), persistent=False)  # (U,)
        self.register_buffer("pair", distances.index, persistent=False)  # (Nq * Nk,)

    def d2(self, plain: bool = False) -> torch.Tensor:
        """The distinct squared distances, (U,) float32; of plain operators where they are to be exported."""
        return from_bits(self.d2_bits, plain)

    def numbers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What is learned of the Gaussians: their widths, and what their heights are made of, (K, heads or 1) each."""
        raise NotImplementedError

    @property
    def kind(self) -> tuple:
        """Equal for masks that differ in their numbers alone."""
        return (
            type(self),
            self.grid,
            self.key_grid,
            len(self.numbers()[0]),
            self.pair.device,
            self.underflow,
            self.base is None,
        )

    def weights_of(self, masks: Sequence[GaussianMask]) -> list[torch.Tensor]:
        """The weights (heads or 1, Nq, Nk) of masks of one kind, computed at once."""
        sigma, height = (torch.cat(each, 1).float() for each in zip(*(mask.numbers() for mask in masks), strict=True))
        base = None if self.base is None else torch.cat([mask.base.float().expand(mask.rows) for mask in masks])
        plain = exported(sigma)
        with nullcontext() if plain else torch.autocast(self.pair.device.type, enabled=False):
            height, d2 = height.square() if self.squared else height, self.d2(plain)
            height = height - base if self.squared and base is not None else height
            grid = self.grid if self.grid == self.key_grid else None
            if plain:
                gauss = torch.exp((-0.5 / (sigma.square() + self.eps))[..., None] * d2)  # (K, rows, U)
                flat = (height[..., None] * gauss).sum(0).index_select(1, self.pair)
            else:
                flat = _Mixture.apply(sigma, height, d2, self.pair, self.eps, grid)
            flat = flat if self.squared or base is None else flat + base[:, None]
        shape = -1, self.grid[0] * self.grid[1], self.key_grid[0] * self.key_grid[1]
        parts = flat.split([mask.rows for mask in masks]) if len(masks) > 1 else [flat]
        return [part.view(shape) for part in parts]

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.base is None else f", base={self.base.item():g}")

    def weight(self) -> torch.Tensor:
        computed = together.found(self)
        return self.weights_of([self])[0] if computed is None else computed
