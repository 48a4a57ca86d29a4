"""Gaussians of the distance of two patches: the mixture mask and the attention bias."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn as nn
from torch.autograd.function import once_differentiable

from . import together
from .batched import biased_product
from .errors import unknown
from .grids import Grid, by_offset, squared_distances
from .spatial import SpatialMask
from .trace import exported
from .values import normal, number

MOST_KERNELS = 1000  # far above what a grid has distances for


class _Mixture(torch.autograd.Function):
    """sum_k alpha_k exp(-d2 / (2 (sigma_k^2 + eps))) of all pairs: autograd's thirty small steps cost 1 ms a layer."""

    @staticmethod
    def forward(ctx, sigma, alpha, d2, pair, eps, grid):  # (K, rows), (K, rows), (U,), (Nq * Nk,)
        variance = sigma.square().add_(eps)
        gauss = torch.exp((-0.5 / variance)[..., None] * d2)  # (K, rows, U)
        ctx.grid = grid  # of queries and keys alike, else None
        ctx.save_for_backward(sigma, alpha, variance, gauss, d2, pair)
        return (alpha[..., None] * gauss).sum(0).index_select(1, pair)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):  # (rows, Nq * Nk)
        sigma, alpha, variance, gauss, d2, pair = ctx.saved_tensors
        with torch.autocast(gradient.device.type, enabled=False):  # of whoever calls backward
            if ctx.grid is not None and together.on_gpu(gradient):
                summed, corner = by_offset(gradient, ctx.grid), pair[: ctx.grid[0] * ctx.grid[1]]
                gauss, d2 = gauss.index_select(-1, corner), d2.index_select(0, corner)  # of the first query's keys
            else:  # scatter_add_ and not index_add_: the same bits, and 20 to 50 times as fast on a CPU
                summed = gradient.new_zeros(gauss.shape[1:]).scatter_add_(1, pair.expand_as(gradient), gradient)
            weighted = summed * gauss  # (K, rows, U)
            by_variance = weighted @ d2
        return by_variance * (alpha * sigma / variance.square()), weighted.sum(-1), None, None, None, None


class GaussianMask(SpatialMask):
    """What the two Gaussian masks have in common: mixtures over the few distinct distances, gathered to pairs."""

    eps = 0.0
    underflow = False
    squared = False  # whether heights are squares of what is learned

    def __init__(self, grid: Grid, heads: int, base: float = 0.0, **place: Any):
        super().__init__(grid, heads, **place)
        # what a neutral start has beside the paper's formula: in state_dict, so that none is loaded as the other
        self.register_buffer("base", torch.tensor(number("base", base)) if base else None)
        distances = squared_distances(self.grid, self.key_grid)
        # kept as bits, so that model.half() cannot round them: in bfloat16 neighbouring distances would be equal
        self.register_buffer("d2_bits", distances.values.float().view(torch.int32), persistent=False)  # (U,)
        self.register_buffer("pair", distances.index, persistent=False)  # (Nq * Nk,)

    def d2(self, plain: bool = False) -> torch.Tensor:
        """The distinct squared distances, (U,) float32; of plain operators where they are to be exported."""
        if not plain:
            return self.d2_bits.view(torch.float32)
        # ONNX cannot read one type as another: 2^(exponent - 150) times the 24 bits that float32 keeps, exactly
        kept = (self.d2_bits & 0x7FFFFF) + 0x800000
        return kept.float() * 2.0 ** ((self.d2_bits >> 23) - 150).float()

    def numbers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What is learned of the Gaussians: their widths, and what their heights are made of, (K, heads or 1) each."""
        raise NotImplementedError

    @property
    def kind(self) -> tuple:
        """Equal for masks that differ in their numbers alone."""
        return (
            type(self),
            self.grid,
            self.key_grid,
            len(self.numbers()[0]),
            self.pair.device,
            self.underflow,
            self.base is None,
        )

    def weights_of(self, masks: Sequence[GaussianMask]) -> list[torch.Tensor]:
        """The weights (heads or 1, Nq, Nk) of masks of one kind, computed at once."""
        sigma, height = (torch.cat(each, 1).float() for each in zip(*(mask.numbers() for mask in masks), strict=True))
        base = None if self.base is None else torch.cat([mask.base.float().expand(mask.rows) for mask in masks])
        plain = exported(sigma)
        with nullcontext() if plain else torch.autocast(self.pair.device.type, enabled=False):
            height, d2 = height.square() if self.squared else height, self.d2(plain)
            height = height - base if self.squared and base is not None else height
            grid = self.grid if self.grid == self.key_grid else None
            if plain:
                gauss = torch.exp((-0.5 / (sigma.square() + self.eps))[..., None] * d2)  # (K, rows, U)
                flat = (height[..., None] * gauss).sum(0).index_select(1, self.pair)
            else:
                flat = _Mixture.apply(sigma, height, d2, self.pair, self.eps, grid)
            flat = flat if self.squared or base is None else flat + base[:, None]
        shape = -1, self.grid[0] * self.grid[1], self.key_grid[0] * self.key_grid[1]
        parts = flat.split([mask.rows for mask in masks]) if len(masks) > 1 else [flat]
        return [part.view(shape) for part in parts]

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.base is None else f", base={self.base.item():g}")

    def weight(self) -> torch.Tensor:
        computed = together.found(self)
        return self.weights_of([self])[0] if computed is None else computed


class GaussianMixtureMask(GaussianMask):
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
    scalars = ("sigma", "alpha")
    strengths = ("alpha_init", "base")
    eps = 1e-5  # the paper's code has sigma^2 + 1e-5, so that a sigma of 0 is allowed

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
        super().__init__(grid, heads, base, prefix=prefix, key_grid=key_grid, share_heads=share_heads)
        if type(kernels) is not int or not 1 <= kernels <= MOST_KERNELS:
            raise ValueError(f"kernels: expected a whole number of at least 1 (most: {MOST_KERNELS}), got {kernels!r}")
        if where not in ("scores", "probabilities"):
            raise ValueError(unknown("place of the mask (where)", where, ("scores", "probabilities")))
        self.where, self.kernels, self.underflow = where, kernels, underflow
        if underflow:
            self.d2_bits = underflown(self.d2()).view(torch.int32)
        sigma = self._spread(kernels) if sigma_init is None else normal("sigma_init", sigma_init, (kernels, self.rows))
        self.sigma = nn.Parameter(sigma)
        self.alpha = nn.Parameter(normal("alpha_init", alpha_init, (kernels, self.rows)))

    @staticmethod
    def neutral(**options: Any) -> dict:
        return {"base": 1.0, "alpha_init": (0.0, 0.0), "sigma_init": None} | options

    def _spread(self, kernels: int) -> torch.Tensor:
        """Widths from about one patch to about the side of the grid, (K, heads or 1)."""
        steps = (torch.arange(kernels) + 0.5) / kernels
        return (max(*self.grid, *self.key_grid) ** steps)[:, None].repeat(1, self.rows)

    def numbers(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.sigma, self.alpha

    def extra_repr(self) -> str:
        where, underflow = f", where={self.where}" * (self.where != "scores"), ", underflow" * self.underflow
        return f"{super().extra_repr()}, kernels={self.kernels}{where}{underflow}"


class GaussianBias(GaussianMask):
    """B_ij = A^2 exp(-d2_ij / (2 sigma^2)), added to the scores (GAB, arXiv 2305.04722).

    - `share_heads`: one mask for all heads
    - `amplitude`: what A begins with
    - `sigma`: what the width begins with
    - `base`: what is taken off A^2; A^2 itself, as it begins, in a neutral start
    """

    additive = squared = True
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
        self.takes_product = share_heads  # a bias that all heads share costs less inside their product

    @staticmethod
    def neutral(**options: Any) -> dict:
        # A near 0 would do without a base, but A^2 has no slope there: from A = 1e-3, 200 steps of SGD (0.01) on a
        # trained ViT left mean |B| at 7e-7, AdamW (3e-4) at 1e-4; from A = 2 with base 4 both took it to 0.04
        return {"base": options.get("amplitude", 2.0) ** 2} | options

    def forward(self, scores: torch.Tensor, key: torch.Tensor | None = None) -> torch.Tensor:
        """The scores with the bias added; or, of a query (..., Nq, d) and a key (..., d, Nk), their product with it."""
        if key is None or exported(scores):
            return super().forward(scores if key is None else scores @ key)
        return biased_product(scores, key, self.fitting((*scores.shape[:-1], key.shape[-1])).full_weight())

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


def underflown(d2: torch.Tensor) -> torch.Tensor:
    """The squared distances for which the exact Gaussians are those of float32's sqrt(exp(-d2)) (erratum G7), (U,)."""
    base = torch.exp(-d2).sqrt()  # denormal and so inexact before the root from d2 = 87.3 on
    never = 1e30  # exp(-never / ...) is 0 for any sigma, and so is its gradient; with inf that would be NaN
    return torch.where(base > 0, -2 * base.double().log(), never).float()
