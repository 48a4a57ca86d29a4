"""Gated positional self-attention: every head mixes what it attends to by content with where it looks by position."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn as nn

from .batched import Expand
from .grids import Grid, patch_centres
from .spatial import SpatialMask
from .trace import exported
from .values import number


class GatedPositions(SpatialMask):
    """(1 - s(g)) P + s(g) softmax(a d^2 + b dx + c dy), put after the softmax (GPSA, arXiv 2103.10697).

    P is that softmax, s the logistic function, and d leads from a query to a key; each head has its g, a, b and c. Of a
    patch that attends to prefix tokens, what it has on patches is mixed: the other columns stay, and its row sums to 1.

    - `locality`: how sharply a head begins at an offset of its own, the first floor(sqrt(H))^2 on a square
    - `gate`: what g begins with; -2 in a neutral start
    - `base`: what is taken off s(g); s(g) itself, as it begins, in a neutral start
    """

    where = "probabilities"
    scalars = ("coefficients", "gate")
    strengths = ("gate", "base")

    def __init__(
        self,
        grid: Grid,
        heads: int,
        *,
        prefix: int | tuple[int, int] = 0,
        key_grid: Grid | None = None,
        locality: float = 1.0,
        gate: float = 1.0,
        base: float = 0.0,
    ):
        super().__init__(grid, heads, prefix=prefix, key_grid=key_grid)
        self.coefficients = nn.Parameter(number("locality", locality) * _squares(heads))  # (heads, 3): a, b, c
        self.gate = nn.Parameter(torch.full((heads,), number("gate", gate)))
        # in state_dict, so that no neutral start is loaded as the paper's
        self.register_buffer("base", torch.tensor(number("base", base)) if base else None)
        for axis, name in enumerate(("down", "right")):  # steps from query to key, (queries, keys) of one axis
            self.register_buffer(name, _steps(self.grid, self.key_grid, axis), persistent=False)

    @staticmethod
    def neutral(**options: Any) -> dict:
        gate = options.get("gate", -2.0)  # s - base then lies in -0.12 to 0.88, and its slope is 0.1
        return {"gate": gate, "base": torch.tensor(float(gate)).sigmoid().item()} | options

    @classmethod
    def words(cls) -> tuple[str, str, str]:
        return "mixed in", "|s|", "s = 0"

    def weight(self) -> torch.Tensor:
        """Where each head looks by position, (heads, Nq, Nk); each row sums to 1."""
        a, b, c = self.coefficients.float()[..., None, None].unbind(1)  # (heads, 1, 1)
        # softmax over a grid of y (a dy + c) + x (a dx + b) is that over its rows times that over its columns
        down, right = (
            # of two dimensions: a softmax of more is one more attention to who counts them
            (steps * (a * steps + slope)).flatten(0, 1).softmax(-1).view(self.heads, *steps.shape)
            for steps, slope in ((self.down.float(), c), (self.right.float(), b))
        )
        both = down[:, :, None, :, None] * right[:, None, :, None, :]  # (heads, y, x, y', x')
        return both.flatten(3, 4).flatten(1, 2)

    def share(self) -> torch.Tensor:
        """The share of attention that position has, (heads,)."""
        share = self.gate.float().sigmoid()
        return share if self.base is None else share - self.base.float()

    def full_weight(self) -> torch.Tensor:
        """Where each head looks by position, with rows and columns of 0 for prefix tokens, (heads, Nq, Nk)."""
        return self.padded(self.weight(), 0.0)

    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What probabilities are multiplied by, and what is then added, (heads, Pq + Nq, Pk + Nk) each."""
        share, (queries, keys) = self.share()[:, None, None], self.counts
        kept = self.padded((1 - share).expand(-1, queries - self.prefix[0], keys - self.prefix[1]), 1.0)
        return kept, self.padded(share * self.weight(), 0.0)

    def forward(self, probabilities: torch.Tensor) -> torch.Tensor:  # (..., heads, Pq + Nq, Pk + Nk)
        here = self.here(probabilities)
        return gated(probabilities, *here.parts(), here.prefix[1])

    @torch.no_grad()
    def strength(self) -> float:
        """How far it is from doing nothing: the mean of |s| over the heads."""
        return self.share().abs().mean().item()


def gated(probabilities: torch.Tensor, kept: torch.Tensor, added: torch.Tensor, prefix: int) -> torch.Tensor:
    """P * kept + added, where what is added to a row shares out what P has on the patches, (..., heads, Nq, Nk)."""
    if exported(probabilities):
        kept, added = kept.type_as(probabilities), added.type_as(probabilities)
    else:
        kept, added = (Expand.apply(each.to(probabilities.dtype), probabilities.shape) for each in (kept, added))
    if prefix:
        added = added * probabilities[..., prefix:].sum(-1, keepdim=True)
    return probabilities * kept + added


def _steps(grid: Grid, key_grid: Grid, axis: int) -> torch.Tensor:
    """Steps from each query to each key along one axis, in steps of the finer of the two grids, (queries, keys)."""
    cells = max(grid[axis], key_grid[axis])
    queries, keys = (patch_centres((sides[axis], 1), (cells, 1))[:, 0] for sides in (grid, key_grid))
    return (keys - queries[:, None]).float()


def _squares(heads: int) -> torch.Tensor:
    """-d^2 + 2 o d for offsets o on a square around each query, one a head; heads beyond it are drawn, (heads, 3)."""
    side = math.isqrt(heads)
    begins = 0.02 * torch.randn(heads, 3)  # the paper's code leaves them as timm draws a linear layer
    offsets = torch.arange(side) - (side - 1) / 2
    for head in range(side**2):
        begins[head] = torch.stack([torch.tensor(-1.0), 2 * offsets[head // side], 2 * offsets[head % side]])
    return begins
