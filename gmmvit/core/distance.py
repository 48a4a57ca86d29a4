"""Biases that fall with the distance of two patches: fixed slopes, learned slopes, a logarithm."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

from .bias import SpatialBias
from .gathered import Gathered
from .grids import Grid, offsets
from .trace import exported
from .values import as_bits, from_bits, number


class OffsetBias(SpatialBias):
    """A bias that depends on the relative position alone, computed once for each."""

    relative = True
    signed = False  # whether it tells left from right and above from below

    def __init__(self, grid: Grid, heads: int, **place: Any):
        super().__init__(grid, heads, **place)
        self.register_buffer("pair", offsets(self.grid, self.key_grid, self.signed).index, persistent=False)

    def by_offset(self, plain: bool) -> torch.Tensor:
        """The bias for each relative position, (heads or 1, U); of plain operators where it is to be exported."""
        raise NotImplementedError

    def weight(self) -> torch.Tensor:
        plain = torch.compiler.is_exporting() or exported(next(self.parameters(), None))
        values = self.by_offset(plain)
        if plain:
            flat = values.index_select(1, self.pair)
        else:
            flat = Gathered.apply(values, self.pair, self.grid if self.grid == self.key_grid else None, self.signed)
        return flat.view(-1, self.grid[0] * self.grid[1], self.key_grid[0] * self.key_grid[1])


class DistanceBias(OffsetBias):
    """B_ij = f_h(d_ij) with a function of the distance for each head."""

    def __init__(self, grid: Grid, heads: int, **place: Any):
        super().__init__(grid, heads, **place)
        apart = offsets(self.grid, self.key_grid).values
        self.register_buffer("d_bits", as_bits(self.distance(apart)), persistent=False)  # (U,)

    @staticmethod
    def distance(apart: torch.Tensor) -> torch.Tensor:
        """The distance of |dy| and |dx|, (U,): Euclid's."""
        return apart.norm(dim=-1)


# ---- fixed slopes ---------------------------------------------------------------------------------------------------


class AlibiBias(DistanceBias):
    """B_ij = -m_h d_ij with m_h = 2^(-8h / H), added to the scores (ALiBi, arXiv 2108.12409).

    d is Euclid's distance in patches, as in CROMA (arXiv 2311.00566), and h counts from 1 to H.
    """

    def __init__(self, grid: Grid, heads: int, *, prefix: int | tuple[int, int] = 0, key_grid: Grid | None = None):
        super().__init__(grid, heads, prefix=prefix, key_grid=key_grid)
        self.register_buffer("slope_bits", as_bits(self.slopes(heads)), persistent=False)  # (heads,)

    @staticmethod
    def slopes(heads: int) -> torch.Tensor:
        """How much each head takes off for a step, (heads,) float64."""
        return 2.0 ** (-8 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)

    def by_offset(self, plain: bool) -> torch.Tensor:
        return -from_bits(self.slope_bits, plain)[:, None] * from_bits(self.d_bits, plain)


class ManhattanBias(AlibiBias):
    """B_ij = d1_ij log(1 - 2^(-2 - 4h / H)), added to the scores (RMT, arXiv 2309.11523).

    d1 = |dy| + |dx| in patches, and h counts from 0 to H - 1.
    """

    @staticmethod
    def distance(apart: torch.Tensor) -> torch.Tensor:
        """|dy| + |dx|, (U,)."""
        return apart.sum(-1)

    @staticmethod
    def slopes(heads: int) -> torch.Tensor:
        """-log(1 - 2^(-2 - 4h / H)), (heads,) float64."""
        return -torch.log1p(-(2.0 ** (-2 - 4 * torch.arange(heads, dtype=torch.float64) / heads)))


# ---- learned slopes -------------------------------------------------------------------------------------------------


class SlopeBias(DistanceBias):
    """B_ij = -softplus(s_h) d_ij, added to the scores (ours, an ablation of ALiBi: its slopes, learned).

    d is Euclid's distance in patches; the slopes begin as those of ALiBi (arXiv 2108.12409).

    - `base`: how much of the first slopes is taken off; 1, which is all, in a neutral start
    """

    scalars = ("slope",)
    strengths = ("base",)

    def __init__(
        self,
        grid: Grid,
        heads: int,
        *,
        prefix: int | tuple[int, int] = 0,
        key_grid: Grid | None = None,
        base: float = 0.0,
    ):
        super().__init__(grid, heads, prefix=prefix, key_grid=key_grid)
        self.slope = nn.Parameter(above_zero(AlibiBias.slopes(heads)))  # (heads,)
        self.register_buffer("base", taken_off(base, self.slope))

    @staticmethod
    def neutral(**options: Any) -> dict:
        return {"base": 1.0} | options

    def by_offset(self, plain: bool) -> torch.Tensor:
        return -less(F.softplus(self.slope.float()), self.base)[:, None] * from_bits(self.d_bits, plain)


class KerpleBias(DistanceBias):
    """B_ij = -a_h log(1 + b_h d_ij), added to the scores (KERPLE, its logarithmic kernel, arXiv 2205.09921).

    d is Euclid's distance in patches. a and b are softplus of what is learned, so that they stay above 0; they begin
    as in the paper's code, a between 0 and 2 and b between 0 and 1, drawn for each head.

    - `base`: how much of the first a is taken off; 1, which is all, in a neutral start
    """

    scalars = ("a", "b")
    strengths = ("base",)
    least = 0.01  # of a and b at the start, as the paper's code has it

    def __init__(
        self,
        grid: Grid,
        heads: int,
        *,
        prefix: int | tuple[int, int] = 0,
        key_grid: Grid | None = None,
        base: float = 0.0,
    ):
        super().__init__(grid, heads, prefix=prefix, key_grid=key_grid)
        self.a = nn.Parameter(above_zero((2 * torch.rand(heads)).clamp(min=self.least)))  # (heads,)
        self.b = nn.Parameter(above_zero(torch.rand(heads).clamp(min=self.least)))
        self.register_buffer("base", taken_off(base, self.a))

    @staticmethod
    def neutral(**options: Any) -> dict:
        return {"base": 1.0} | options

    def by_offset(self, plain: bool) -> torch.Tensor:
        a, b = less(F.softplus(self.a.float()), self.base), F.softplus(self.b.float())
        return -a[:, None] * torch.log1p(b[:, None] * from_bits(self.d_bits, plain))


def above_zero(values: torch.Tensor) -> torch.Tensor:
    """What softplus makes these numbers of, float32."""
    return values.double().expm1().log().float()


def taken_off(base: float, learned: torch.Tensor) -> torch.Tensor | None:
    """What a neutral start takes off softplus; in state_dict, so that none is loaded as the other."""
    return number("base", base) * F.softplus(learned.detach()) if base else None


def less(values: torch.Tensor, base: torch.Tensor | None) -> torch.Tensor:
    return values if base is None else values - base.float()
