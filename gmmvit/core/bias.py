"""What masks that are added to the scores have in common."""

from __future__ import annotations

from typing import Any

import torch

from .batched import biased_product
from .grids import Grid
from .spatial import SpatialMask
from .trace import exported


class SpatialBias(SpatialMask):
    """A weight B_ij that is added to the scores."""

    additive = True
    by_weight = True
    relative = False  # whether it depends on the relative position alone, so that `fold` finds its place in a table

    def __init__(self, grid: Grid, heads: int, *args: Any, **place: Any):
        super().__init__(grid, heads, *args, **place)
        self.takes_product = self.share_heads  # a bias that all heads share costs less inside their product

    def forward(self, scores: torch.Tensor, key: torch.Tensor | None = None) -> torch.Tensor:
        """The scores with the bias added; or, of a query (..., Nq, d) and a key (..., d, Nk), their product with it."""
        if key is None or exported(scores):
            return super().forward(scores if key is None else scores @ key)
        return biased_product(scores, key, self.fitting((*scores.shape[:-1], key.shape[-1])).full_weight())


def one_grid(bias: SpatialBias) -> str:
    """The sentence of a bias that has no meaning where keys are pooled."""
    (rows, columns), (key_rows, key_columns) = bias.grid, bias.key_grid
    return (
        f"{type(bias).__name__}: expected keys on the grid of the queries, {rows} x {columns}, got {key_rows} x "
        f"{key_columns}: attach(model, ..., only=) leaves out the layers where they differ"
    )
