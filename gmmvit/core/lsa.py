"""The two halves of locality self-attention, each by itself: a temperature of each head, no attention to oneself."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn

from .bias import SpatialBias, one_grid
from .grids import Grid
from .spatial import SpatialMask
from .values import normal


class Temperature(SpatialMask):
    """M_ij = g_h, multiplied into the scores (LSA, its learned temperature, arXiv 2112.13492).

    Between patches only: class and register tokens keep their scores.

    - `init`: mean and standard deviation of what g begins with; 1 and 0 in a neutral start
    """

    takes_scale = True
    scalars = ("gain",)
    strengths = ("init",)

    def __init__(
        self,
        grid: Grid,
        heads: int,
        *,
        prefix: int | tuple[int, int] = 0,
        key_grid: Grid | None = None,
        init: tuple[float, float] = (1.0, 0.0),
    ):
        super().__init__(grid, heads, prefix=prefix, key_grid=key_grid)
        self.gain = nn.Parameter(normal("init", init, (heads,)))

    @staticmethod
    def neutral(**options: Any) -> dict:
        return {"init": (1.0, 0.0)} | options

    def weight(self) -> torch.Tensor:
        pairs = self.grid[0] * self.grid[1], self.key_grid[0] * self.key_grid[1]
        return self.gain[:, None, None].expand(-1, *pairs)


class DiagonalBias(SpatialBias):
    """B_ij = -1000 where i = j, else 0, added to the scores (LSA, its diagonal mask, arXiv 2112.13492).

    No patch attends to itself. The number is finite, for heads that are mixed would make NaN of infinity, and float16
    can hold it; its exponential is 0.
    """

    relative = True
    never = -1000.0

    def __init__(self, grid: Grid, heads: int, *, prefix: int | tuple[int, int] = 0, key_grid: Grid | None = None):
        super().__init__(grid, heads, prefix=prefix, key_grid=key_grid, share_heads=True)
        if self.key_grid != self.grid:
            raise ValueError(one_grid(self))
        itself = torch.eye(self.grid[0] * self.grid[1], dtype=torch.bool)
        self.register_buffer("itself", itself, persistent=False)  # (N, N)

    def weight(self) -> torch.Tensor:
        return (self.never * self.itself.float())[None]
