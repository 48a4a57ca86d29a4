"""Spatial priors for attention scores: Gaussian mixture mask, element-wise mask, Gaussian attention bias."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

from .errors import unknown
from .geometry import Grid, squared_distances

SIGMA_EPS = 1e-5  # the mixture's formula has sigma^2 + 1e-5, so that a sigma of 0 is allowed


class SpatialMask(nn.Module):
    """A weight for every (query patch, key patch) that meets the attention scores; prefix tokens are left alone."""

    additive = False  # scores + weight instead of scores * weight
    where = "scores"  # or "probabilities": after the softmax
    scalars: tuple[str, ...] = ()  # learned scalars, which want no weight decay

    def __init__(
        self,
        grid: Grid,
        heads: int,
        *,
        prefix: int | tuple[int, int] = 0,
        key_grid: Grid | None = None,
        share_heads: bool = False,
    ):
        super().__init__()
        self.grid = _pair("grid", grid, least=1)
        self.key_grid = self.grid if key_grid is None else _pair("key_grid", key_grid, least=1)
        self.prefix = _pair("prefix", (prefix, prefix) if isinstance(prefix, int) else prefix, least=0)
        if not isinstance(heads, int) or heads < 1:
            raise ValueError(f"heads: expected a whole number of at least 1, got {heads!r}")
        self.heads, self.share_heads = heads, share_heads
        self.rows = 1 if share_heads else heads
        self.register_buffer("arranged_rows", None, persistent=False)
        self.register_buffer("arranged_columns", None, persistent=False)

    def weight(self) -> torch.Tensor:
        """The mask without prefix tokens, (heads or 1, Nq, Nk)."""
        raise NotImplementedError

    def arrange(self, rows: torch.Tensor, columns: torch.Tensor) -> None:
        """For scores whose tokens are not in row-major order: the row-major position of each query and each key."""
        self.arranged_rows, self.arranged_columns = rows, columns

    def full_weight(self) -> torch.Tensor:
        """The mask with neutral rows and columns for the prefix tokens, (heads or 1, Pq + Nq, Pk + Nk)."""
        rows, columns = self.prefix
        weight = self.weight()
        if self.arranged_rows is not None:
            weight = weight[:, self.arranged_rows[:, None], self.arranged_columns]
        return F.pad(weight, (columns, 0, rows, 0), value=0.0 if self.additive else 1.0) if rows or columns else weight

    def forward(self, scores: torch.Tensor) -> torch.Tensor:  # (..., heads, Pq + Nq, Pk + Nk)
        self.check(scores.shape)
        weight = self.full_weight().to(scores.dtype)
        return scores + weight if self.additive else scores * weight

    def check(self, shape: torch.Size) -> None:
        """Raises a sentence where scores of this shape do not fit."""
        expected = (self.prefix[0] + self.grid[0] * self.grid[1], self.prefix[1] + self.key_grid[0] * self.key_grid[1])
        if len(shape) < 3 or tuple(shape[-2:]) != expected:
            raise ValueError(
                f"{type(self).__name__} was built for {expected[0]} x {expected[1]} scores ({self._place()}) and got "
                f"scores of shape {tuple(shape)}: use the image size it was attached for, or attach it anew"
            )
        if shape[-3] != self.heads and self.rows > 1:
            raise ValueError(
                f"{type(self).__name__} has {self.heads} heads and got scores of {shape[-3]}: {tuple(shape)}"
            )

    def _place(self) -> str:
        text = "grid {} x {}".format(*self.grid)
        if self.key_grid != self.grid:
            text += ", key grid {} x {}".format(*self.key_grid)
        return text + (
            f", prefix {self.prefix[0] if self.prefix[0] == self.prefix[1] else self.prefix}"
            if any(self.prefix)
            else ""
        )

    def extra_repr(self) -> str:
        return f"{self._place()}, heads={self.heads}{' (shared)' if self.share_heads else ''}"


class GaussianMask(SpatialMask):
    """What the two Gaussian masks have in common: a function of the distinct squared distances, gathered to pairs."""

    def __init__(self, grid: Grid, heads: int, **place):
        super().__init__(grid, heads, **place)
        distances = squared_distances(self.grid, self.key_grid)
        self.register_buffer("d2", distances.values.float(), persistent=False)  # (U,)
        self.register_buffer("pair", distances.index, persistent=False)  # (Nq * Nk,)

    def profile(self) -> torch.Tensor:
        """The weight at each distinct squared distance, (heads or 1, U)."""
        raise NotImplementedError

    def weight(self) -> torch.Tensor:
        n_q, n_k = self.grid[0] * self.grid[1], self.key_grid[0] * self.key_grid[1]
        return self.profile().index_select(1, self.pair).view(self.rows, n_q, n_k)


class GaussianMixtureMask(GaussianMask):
    """M_ij = sum_k alpha_k exp(-d2_ij / (2 (sigma_k^2 + 1e-5))), multiplied into the scores (GMM, arXiv 2309.05375)."""

    scalars = ("sigma", "alpha")

    def __init__(
        self,
        grid: Grid,
        heads: int,
        kernels: int = 5,
        *,
        prefix: int | tuple[int, int] = 0,
        key_grid: Grid | None = None,
        share_heads: bool = False,
        sigma_init: tuple[float, float] = (10.0, 10.0),
        alpha_init: tuple[float, float] = (0.0, 2.0),
        where: str = "scores",
    ):
        super().__init__(grid, heads, prefix=prefix, key_grid=key_grid, share_heads=share_heads)
        if not isinstance(kernels, int) or kernels < 1:
            raise ValueError(f"kernels: expected a whole number of at least 1, got {kernels!r}")
        if where not in ("scores", "probabilities"):
            raise ValueError(unknown("place of the mask (where)", where, ("scores", "probabilities")))
        self.where, self.kernels = where, kernels
        self.sigma = nn.Parameter(_normal("sigma_init", sigma_init, (kernels, self.rows)))
        self.alpha = nn.Parameter(_normal("alpha_init", alpha_init, (kernels, self.rows)))

    def profile(self) -> torch.Tensor:
        precision = 1 / (2 * (self.sigma.float().square() + SIGMA_EPS))  # (K, rows)
        return (self.alpha.float()[..., None] * torch.exp(-precision[..., None] * self.d2)).sum(0)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kernels={self.kernels}" + (
            f", where={self.where}" if self.where != "scores" else ""
        )


class ElementMask(SpatialMask):
    """M_ij free for every pair, multiplied into the scores (ELM, arXiv 2309.05375)."""

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
        self.element = nn.Parameter(torch.full((self.rows, n_q, n_k), float(init)))

    def weight(self) -> torch.Tensor:
        return self.element


class GaussianBias(GaussianMask):
    """B_ij = A^2 exp(-d2_ij / (2 sigma^2)), added to the scores (GAB, arXiv 2305.04722)."""

    additive = True
    scalars = ("amplitude", "sigma")

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
    ):
        super().__init__(grid, heads, prefix=prefix, key_grid=key_grid, share_heads=share_heads)
        if not sigma:
            raise ValueError(f"sigma: expected a width other than 0, got {sigma!r}")
        self.amplitude = nn.Parameter(torch.full((self.rows,), float(amplitude)))
        self.sigma = nn.Parameter(torch.full((self.rows,), float(sigma)))

    def profile(self) -> torch.Tensor:
        precision = 1 / (2 * self.sigma.float().square())  # (rows,)
        return self.amplitude.float().square()[:, None] * torch.exp(-precision[:, None] * self.d2)


KINDS = {"gmm": GaussianMixtureMask, "elm": ElementMask, "gab": GaussianBias}


def no_decay(model: nn.Module) -> set[str]:
    """Names of the masks' learned scalars (sigma, alpha, amplitude), which should not be decayed towards 0."""
    return {
        f"{name}.{scalar}".lstrip(".")
        for name, module in model.named_modules()
        if isinstance(module, SpatialMask)
        for scalar in module.scalars
    }


def _pair(name: str, value: object, least: int) -> tuple[int, int]:
    ok = isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(n, int) and n >= least for n in value)
    if not ok:
        raise ValueError(f"{name}: expected two whole numbers of at least {least} (rows, columns), got {value!r}")
    return tuple(value)


def _normal(name: str, mean_sd: tuple[float, float], shape: tuple[int, ...]) -> torch.Tensor:
    if not (isinstance(mean_sd, (tuple, list)) and len(mean_sd) == 2 and mean_sd[1] >= 0):
        raise ValueError(f"{name}: expected (mean, standard deviation), got {mean_sd!r}")
    return mean_sd[0] + mean_sd[1] * torch.randn(shape)
