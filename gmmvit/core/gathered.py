"""What is computed once for each relative position, at every pair of patches that has it."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from . import together
from .grids import Grid, by_offset


class Gathered(torch.autograd.Function):
    """values[:, index], (rows, Nq * Nk), whose backward adds up in one order on a GPU, too."""

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, index: torch.Tensor, grid: Grid | None, signed: bool
    ) -> torch.Tensor:  # values (rows, U), of the offsets of a grid where queries and keys share one
        ctx.grid, ctx.signed, ctx.width = grid, signed, values.shape[-1]
        ctx.save_for_backward(index)
        return values.index_select(1, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (index,) = ctx.saved_tensors
        if ctx.grid is not None and together.on_gpu(gradient):
            return by_offset(gradient, ctx.grid, ctx.signed), None, None, None
        return scattered(gradient, index, ctx.width), None, None, None


def scattered(gradient: torch.Tensor, index: torch.Tensor, width: int) -> torch.Tensor:
    """Sums over the pairs (rows, Nq * Nk) of one index, (rows, width)."""
    # scatter_add_ and not index_add_: the same bits, and 20 to 50 times as fast on a CPU
    return gradient.new_zeros(len(gradient), width).scatter_add_(1, index.expand_as(gradient), gradient)
