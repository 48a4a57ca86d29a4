"""A free weight for every pair of patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

from .grids import Grid, grid_of
from .spatial import SpatialMask
from .values import number


class ElementMask(SpatialMask):
    """M_ij free for every pair, multiplied into the scores (ELM, arXiv 2309.05375).

    - `share_heads`: one mask for all heads
    - `init`: what every weight begins with; 1 in a neutral start
    """

    takes_scale = True
    strengths = ("init",)

    def __init__(
        self,
        grid: Grid,
        heads: int,
        *,
        prefix: int | tuple[int, int] = 0,
        key_grid: Grid | None = None,
        share_heads: bool = True,
        init: float = 0.0,
    ):
        super().__init__(grid, heads, prefix=prefix, key_grid=key_grid, share_heads=share_heads)
        n_q, n_k = self.grid[0] * self.grid[1], self.key_grid[0] * self.key_grid[1]
        self.element = nn.Parameter(torch.full((self.rows, n_q, n_k), number("init", init)))
        if init:  # decay would draw it to 0, which is no longer where it began
            self.scalars = ("element",)

    @staticmethod
    def neutral(**options: Any) -> dict:
        return {"init": 1.0} | options

    def weight(self) -> torch.Tensor:
        return resampled(self.element, self.learned_on, (self.grid, self.key_grid))

    def learn_here(self) -> None:
        self.element = nn.Parameter(self.weight().detach(), self.element.requires_grad)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        """Takes what was learned on another grid, too, where it can only have been a square or one of this aspect."""
        theirs, own = state.get(f"{prefix}element"), self.element.shape
        if isinstance(theirs, torch.Tensor) and theirs.ndim == 3 and theirs.shape[1:] != own[1:]:
            pairs = zip(theirs.shape[1:], self.learned_on, strict=True)
            found = [{grid_of(n, grid[0] / grid[1]), grid_of(n)} - {None} for n, grid in pairs]
            if all(len(grids) == 1 for grids in found):  # else torch says that sizes differ
                state[f"{prefix}element"] = resampled(theirs, [grids.pop() for grids in found], self.learned_on)
        super()._load_from_state_dict(state, prefix, *args)


def resampled(table: torch.Tensor, grids: Sequence[Grid], to: Sequence[Grid]) -> torch.Tensor:
    """A value for each pair of patches (rows, Nq, Nk) on other grids of queries and keys, bicubic as timm does it."""
    if tuple(grids) == tuple(to):
        return table
    (grid, key_grid), (new, new_keys) = grids, to
    values = table.float().unflatten(-1, key_grid)  # (rows, Nq, y, x)
    values = F.interpolate(values, new_keys, mode="bicubic", antialias=True).flatten(-2)
    values = values.transpose(-2, -1).unflatten(-1, grid)  # (rows, Nk', y, x)
    values = F.interpolate(values, new, mode="bicubic", antialias=True).flatten(-2)
    return values.transpose(-2, -1).to(table.dtype)
