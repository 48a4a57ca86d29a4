"""Rotary positions in two dimensions: query and key are turned by where they are, so that scores know the offset."""

from __future__ import annotations

import torch
import torch.nn as nn
from timm.layers.pos_embed_sincos import apply_rot_embed_cat, freq_bands, get_mixed_freqs, init_random_2d_freqs

from .grids import Grid, patch_centres
from .spatial import SpatialMask
from .values import number

AXIAL, MIXED = 100.0, 10.0  # the paper's theta


class RotaryPositions(SpatialMask):
    """q_t exp(i (u_t x + v_t y)) and k_t likewise, turning query and key (RoPE-ViT, arXiv 2403.13298).

    q_t is a pair of a head's channels as a complex number, x and y are a patch's column and row: a score then depends
    on the offset of its patches alone. Of d channels the first d / 4 pairs have v = 0 and the others u = 0; what is not
    0 is theta^(-4 t / d) for t = 0 ... d / 4 - 1. Prefix tokens are not turned.

    - `mixed`: each head learns its u and v, which begin as those frequencies in two directions that are drawn
    - `theta`: the base of the frequencies; None takes the paper's, 100, or 10 where they are mixed
    """

    where = "product"
    needs_width = True

    def __init__(
        self,
        grid: Grid,
        heads: int,
        *,
        prefix: int | tuple[int, int] = 0,
        key_grid: Grid | None = None,
        width: int | None = 64,
        mixed: bool = False,
        theta: float | None = None,
    ):
        super().__init__(grid, heads, prefix=prefix, key_grid=key_grid, share_heads=not mixed)
        if type(width) is not int or width < 4 or width % 4:
            raise ValueError(
                f"width: expected a multiple of 4 channels a head, half for columns and half for rows, got {width!r}"
            )
        if not isinstance(mixed, bool):
            raise ValueError(f"mixed: expected True or False, got {mixed!r}")
        theta = (MIXED if mixed else AXIAL) if theta is None else number("theta", theta)
        if theta <= 0:
            raise ValueError(f"theta: expected a base of frequencies above 0, got {theta!r}")
        self.width, self.mixed = width, mixed
        cells = tuple(max(sides) for sides in zip(self.grid, self.key_grid, strict=True))
        if mixed:
            self.frequencies = nn.Parameter(init_random_2d_freqs(width, 1, heads, theta)[:, 0])  # (2, heads, width / 2)
            self.scalars = ("frequencies",)
        # row and column of each patch, (N, 2), or, where nothing is learned, its turn, (1, N, 2 width)
        for name, its in (("queries", self.grid), ("keys", self.key_grid)):
            places = (patch_centres(its, cells) - 0.5).float()
            self.register_buffer(name, places if mixed else turn(axial(width, theta), places), persistent=False)

    @classmethod
    def words(cls) -> tuple[str, str, str]:
        return "turned", "", ""

    def weight(self) -> None:
        """None: what it does to a score depends on query and key."""
        return None

    def full_weight(self) -> None:
        return None

    def strength(self) -> None:
        """None: there is no weight to tell it by."""
        return None

    def turns(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Sines beside cosines for queries and keys, 0 and 1 for prefix tokens, (heads or 1, P + N, 2 width) each."""
        orders = self.arranged_rows, self.arranged_columns
        return tuple(self._turn(*each) for each in zip((self.queries, self.keys), self.prefix, orders, strict=True))

    def _turn(self, of: torch.Tensor, prefix: int, order: torch.Tensor | None) -> torch.Tensor:
        of = of if order is None else of[..., order, :]
        turns = turn(self.frequencies, of) if self.mixed else of
        if not prefix:
            return turns
        still = turns.new_zeros(len(turns), prefix, self.width), turns.new_ones(len(turns), prefix, self.width)
        return torch.cat([torch.cat(still, -1), turns], 1)

    def operands(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Query and key (..., heads, P + N, width), turned."""
        here = self.here(query, key)
        of_query, of_key = here.turns()
        return apply_rot_embed_cat(query, of_query), apply_rot_embed_cat(key, of_key)

    def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:  # (..., N, width), (..., width, N)
        """The product of query and key^T, turned, (..., heads, Nq, Nk)."""
        query, key = self.operands(query, key.transpose(-2, -1))
        return query @ key.transpose(-2, -1)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, width={self.width}{', mixed' * self.mixed}"


def axial(width: int, theta: float) -> torch.Tensor:
    """Frequencies of which half the pairs follow the column and half the row, (2, 1, width / 2): u, v."""
    bands, none = freq_bands(width // 4, theta, step=1), torch.zeros(width // 4)
    return torch.stack([torch.cat([bands, none]), torch.cat([none, bands])])[:, None]


def turn(frequencies: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Sines beside cosines of u x + v y for places (N, 2) of row and column, each twice, (heads or 1, N, 2 width)."""
    return get_mixed_freqs(frequencies, places[:, 1], places[:, 0], torch.float32)
