"""One Gaussian as a bias: the Gaussian attention bias."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn

from . import together
from .bias import SpatialBias
from .gaussians import GaussianMask
from .grids import Grid
from .trace import exported
from .values import number


class GaussianBias(SpatialBias, GaussianMask):
    """B_ij = A^2 exp(-d2_ij / (2 sigma^2)), added to the scores (GAB, arXiv 2305.04722).

    - `share_heads`: one mask for all heads
    - `amplitude`: what A begins with
    - `sigma`: what the width begins with
    - `base`: what is taken off A^2; A^2 itself, as it begins, in a neutral start
    """

    relative = squared = True
    scalars = ("amplitude", "sigma")
    strengths = ("amplitude", "base")

    def __init__(
        self,
        grid: Grid,
        heads: int,
        *,
        prefix: int | tuple[int, int] = 0,
        key_grid: Grid | None = None,
        share_heads: bool = True,
        amplitude: float = 2.0,
        sigma: float = 5.0,
        base: float = 0.0,
    ):
        super().__init__(grid, heads, base, prefix=prefix, key_grid=key_grid, share_heads=share_heads)
        self.amplitude = nn.Parameter(torch.full((self.rows,), number("amplitude", amplitude)))
        self.sigma = nn.Parameter(torch.full((self.rows,), number("sigma", sigma)))
        if sigma <= 0:
            raise ValueError(f"sigma: expected a width above 0, got {sigma!r}")

    @staticmethod
    def neutral(**options: Any) -> dict:
        # A near 0 would do without a base, but A^2 has no slope there: from A = 1e-3, 200 steps of SGD (0.01) on a
        # trained ViT left mean |B| at 7e-7, AdamW (3e-4) at 1e-4; from A = 2 with base 4 both took it to 0.04
        return {"base": options.get("amplitude", 2.0) ** 2} | options

    def numbers(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.sigma[None], self.amplitude[None]

    def weight(self) -> torch.Tensor:
        if exported(self.amplitude) or together.on_gpu(self.pair):
            return super().weight()
        # one Gaussian: autograd's own steps are few, and cost less there than a function in Python
        sigma, height = self.sigma.float(), self.amplitude.float().square()
        height = height if self.base is None else height - self.base.float()
        gauss = torch.exp((-0.5 / sigma.square())[:, None] * self.d2())  # (rows, U)
        flat = (height[:, None] * gauss).gather(1, self.pair.expand(self.rows, -1))
        return flat.view(self.rows, self.grid[0] * self.grid[1], -1)
