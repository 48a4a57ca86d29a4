"""Learned biases of the relative position: a table of its own entries (Swin), or an MLP of the offsets (Swin-v2)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn as nn
from timm.layers import RelPosBias, RelPosMlp, resize_rel_pos_bias_table

from .bias import one_grid
from .distance import OffsetBias
from .grids import Grid, offsets
from .sizes import Place
from .values import number


class RelativeBias(OffsetBias):
    """B_ij = T[dy, dx] with a free T, added to the scores (Swin, its relative position bias, arXiv 2103.14030).

    The table and its first numbers are those of timm's RelPosBias. On another grid it is interpolated as timm does it.

    - `std`: standard deviation of what the table begins with; 0 in a neutral start
    """

    signed = True
    strengths = ("std",)

    def __init__(
        self,
        grid: Grid,
        heads: int,
        *,
        prefix: int | tuple[int, int] = 0,
        key_grid: Grid | None = None,
        std: float = 0.02,
    ):
        super().__init__(grid, heads, prefix=prefix, key_grid=key_grid)
        if self.key_grid != self.grid:
            raise ValueError(one_grid(self))
        if number("std", std) < 0:
            raise ValueError(f"std: expected a standard deviation of at least 0, got {std!r}")
        drawn = RelPosBias(self.grid, heads).relative_position_bias_table.detach()  # with a deviation of 0.02
        self.table = nn.Parameter(drawn * (std / 0.02))  # (offsets, heads)
        self.stretch: tuple[torch.Tensor, torch.Tensor] | None = None  # to this grid, of the one it was learned on

    @staticmethod
    def neutral(**options: Any) -> dict:
        return {"std": 0.0} | options

    def by_offset(self, plain: bool) -> torch.Tensor:
        table = self.table.float().t()  # (heads, offsets)
        return table if self.stretch is None else stretched(table, self.learned_on[0], self.stretch)

    def _like(self, place: Place) -> RelativeBias:
        made = super()._like(place)
        if made.grid != made.learned_on[0]:
            made.stretch = stretches(made.learned_on[0], made.grid, self.table.device)
        return made

    def learn_here(self) -> None:
        table = self.by_offset(plain=True).detach().t().to(self.table.dtype)
        self.table, self.stretch = nn.Parameter(table.contiguous(), self.table.requires_grad), None

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        """Takes what was learned on another grid, too, where it can only have been a square or one of this aspect."""
        theirs = state.get(f"{prefix}table")
        if isinstance(theirs, torch.Tensor) and theirs.ndim == 2 and len(theirs) != len(self.table):
            found = _grids_of(len(theirs), self.learned_on[0])
            if len(found) == 1:  # else torch says that sizes differ
                (grid,) = found
                table = stretched(theirs.float().t(), grid, stretches(grid, self.learned_on[0], theirs.device))
                state[f"{prefix}table"] = table.t().to(theirs.dtype)
        super()._load_from_state_dict(state, prefix, *args)


class RelativeMlp(OffsetBias):
    """B_ij = MLP(sign(dy) log(1 + |dy|), sign(dx) log(1 + |dx|)), added to the scores (Swin-v2, arXiv 2111.09883).

    The MLP is that of timm's RelPosMlp: 128 hidden units, ReLU, a number for each head.

    - `init`: what the numbers of the last layer begin with are multiplied by; 0 in a neutral start
    """

    signed = True
    strengths = ("init",)

    def __init__(
        self,
        grid: Grid,
        heads: int,
        *,
        prefix: int | tuple[int, int] = 0,
        key_grid: Grid | None = None,
        init: float = 1.0,
    ):
        super().__init__(grid, heads, prefix=prefix, key_grid=key_grid)
        self.mlp = RelPosMlp(self.grid, heads).mlp
        self.mlp.drop1 = nn.Identity()  # Swin-v2 has no dropout there, and a mask is the same whenever it is asked
        with torch.no_grad():
            for parameter in self.mlp.fc2.parameters():
                parameter *= number("init", init)
        apart = offsets(self.grid, self.key_grid, signed=True).values
        self.register_buffer("coordinates", (apart.sign() * apart.abs().log1p()).float(), persistent=False)  # (U, 2)

    @staticmethod
    def neutral(**options: Any) -> dict:
        return {"init": 0.0} | options

    def by_offset(self, plain: bool) -> torch.Tensor:
        if plain:
            return self.mlp(self.coordinates).t()
        with torch.autocast(self.pair.device.type, enabled=False):
            return self.mlp(self.coordinates).t()  # (heads, U)


# ---- a table on another grid ----------------------------------------------------------------------------------------


def stretches(grid: Grid, to: Grid, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """What takes the rows and the columns of a table of relative positions to those of another grid."""
    return tuple(_stretch(n, m).to(device) for n, m in zip(grid, to, strict=True))


def stretched(table: torch.Tensor, grid: Grid, stretch: Sequence[torch.Tensor]) -> torch.Tensor:
    """A table of relative positions (heads, offsets) of a grid on another, (heads, offsets of that)."""
    rows, columns = stretch  # (2n' - 1, 2n - 1) each
    return (rows @ table.unflatten(1, (2 * grid[0] - 1, 2 * grid[1] - 1)) @ columns.t()).flatten(1)


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def _stretch(n: int, to: int) -> torch.Tensor:
    """timm's interpolation of 2n - 1 offsets, which is linear in them, as a matrix (2 to - 1, 2n - 1).

    It is made of tables that are 1 in one row and 0 in the others; their columns only have it interpolate.
    """
    unit = torch.eye(2 * n - 1)[:, :, None].expand(-1, -1, 3)  # (heads, rows, columns)
    made = resize_rel_pos_bias_table(unit, (to, 3), (2 * n - 1, 2 * to - 1, 5))
    return made.view(2 * n - 1, 2 * to - 1, 5)[:, :, 2].t().contiguous()


def _grids_of(entries: int, like: Grid) -> set[Grid]:
    """The grids of a table with so many entries: squares, or of one aspect."""
    pairs = ((rows, entries // rows) for rows in range(1, entries + 1, 2) if entries % rows == 0)
    grids = {((rows + 1) // 2, (columns + 1) // 2) for rows, columns in pairs}
    return {(n, m) for n, m in grids if n == m or n * like[1] == m * like[0]}
