"""Mixtures of Gaussians: a factor of the scores, or a bias."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn

from .bias import SpatialBias
from .errors import unknown
from .gaussians import GaussianMask
from .grids import Grid
from .values import as_bits, normal

MOST_KERNELS = 1000  # far above what a grid has distances for


class Mixture(GaussianMask):
    """sum_k alpha_k exp(-d2_ij / (2 (sigma_k^2 + 1e-5))), with widths and heights for each head or for all."""

    scalars = ("sigma", "alpha")
    eps = 1e-5  # the paper's code has sigma^2 + 1e-5, so that a sigma of 0 is allowed

    def __init__(
        self,
        grid: Grid,
        heads: int,
        kernels: int,
        sigma_init: tuple[float, float] | None,
        alpha_init: tuple[float, float],
        **place: Any,
    ):
        super().__init__(grid, heads, **place)
        if type(kernels) is not int or not 1 <= kernels <= MOST_KERNELS:
            raise ValueError(f"kernels: expected a whole number of at least 1 (most: {MOST_KERNELS}), got {kernels!r}")
        self.kernels = kernels
        sigma = self._spread(kernels) if sigma_init is None else normal("sigma_init", sigma_init, (kernels, self.rows))
        self.sigma = nn.Parameter(sigma)
        self.alpha = nn.Parameter(normal("alpha_init", alpha_init, (kernels, self.rows)))

    def _spread(self, kernels: int) -> torch.Tensor:
        """Widths from about one patch to about the side of the grid, (K, heads or 1)."""
        steps = (torch.arange(kernels) + 0.5) / kernels
        return (max(*self.grid, *self.key_grid) ** steps)[:, None].repeat(1, self.rows)

    def numbers(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.sigma, self.alpha

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kernels={self.kernels}"


class GaussianMixtureMask(Mixture):
    """M_ij = sum_k alpha_k exp(-d2_ij / (2 (sigma_k^2 + 1e-5))), multiplied into the scores (GMM, arXiv 2309.05375).

    - `kernels`: how many Gaussians are mixed
    - `share_heads`: one mask for all heads
    - `sigma_init`: mean and standard deviation of the widths; None spreads them from about a patch to about the grid
    - `alpha_init`: mean and standard deviation of the heights
    - `where`: "scores", or "probabilities": after the softmax
    - `underflow`: as the paper's code, which takes powers of float32's sqrt(exp(-d2)), 0 from d2 = 104 on
    - `base`: what is added to the sum; 1 in a neutral start
    """

    takes_scale = True
    strengths = ("alpha_init", "base")

    def __init__(
        self,
        grid: Grid,
        heads: int,
        kernels: int = 5,
        *,
        prefix: int | tuple[int, int] = 0,
        key_grid: Grid | None = None,
        share_heads: bool = False,
        sigma_init: tuple[float, float] | None = (10.0, 10.0),
        alpha_init: tuple[float, float] = (0.0, 2.0),
        where: str = "scores",
        underflow: bool = False,
        base: float = 0.0,
    ):
        place = {"prefix": prefix, "key_grid": key_grid, "share_heads": share_heads}
        super().__init__(grid, heads, kernels, sigma_init, alpha_init, base=base, **place)
        if where not in ("scores", "probabilities"):
            raise ValueError(unknown("place of the mask (where)", where, ("scores", "probabilities")))
        self.where, self.underflow = where, underflow
        if underflow:
            self.d2_bits = as_bits(underflown(self.d2()))

    @staticmethod
    def neutral(**options: Any) -> dict:
        return {"base": 1.0, "alpha_init": (0.0, 0.0), "sigma_init": None} | options

    def extra_repr(self) -> str:
        where, underflow = f", where={self.where}" * (self.where != "scores"), ", underflow" * self.underflow
        return f"{super().extra_repr()}{where}{underflow}"


class GaussianMixtureBias(SpatialBias, Mixture):
    """B_ij = sum_k alpha_k exp(-d2_ij / (2 (sigma_k^2 + 1e-5))), added to the scores (ours, of GMM and GAB together).

    With one kernel of a height above 0 it is GAB (arXiv 2305.04722), head by head.

    - `kernels`: how many Gaussians are mixed
    - `share_heads`: one bias for all heads
    - `sigma_init`: mean and standard deviation of the widths; None spreads them from about a patch to about the grid
    - `alpha_init`: mean and standard deviation of the heights; 0 and 0 in a neutral start
    """

    relative = True
    strengths = ("alpha_init",)

    def __init__(
        self,
        grid: Grid,
        heads: int,
        kernels: int = 5,
        *,
        prefix: int | tuple[int, int] = 0,
        key_grid: Grid | None = None,
        share_heads: bool = False,
        sigma_init: tuple[float, float] | None = (3.0, 2.0),
        alpha_init: tuple[float, float] = (1.0, 1.0),
    ):
        place = {"prefix": prefix, "key_grid": key_grid, "share_heads": share_heads}
        super().__init__(grid, heads, kernels, sigma_init, alpha_init, **place)

    @staticmethod
    def neutral(**options: Any) -> dict:
        return {"alpha_init": (0.0, 0.0), "sigma_init": None} | options


def underflown(d2: torch.Tensor) -> torch.Tensor:
    """The squared distances for which the exact Gaussians are those of float32's sqrt(exp(-d2)) (erratum G7), (U,)."""
    base = torch.exp(-d2).sqrt()  # denormal and so inexact before the root from d2 = 87.3 on
    never = 1e30  # exp(-never / ...) is 0 for any sigma, and so is its gradient; with inf that would be NaN
    return torch.where(base > 0, -2 * base.double().log(), never).float()
