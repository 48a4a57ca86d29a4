"""How many Gaussians a learned mask needs: least squares fits of f(d) = sum_k alpha_k exp(-d2 / (2 sigma_k^2))."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from ..core.grids import Grid, squared_distances

SIGMAS = np.geomspace(
    0.25, 1024, 37
)  # widths tried for each further kernel, in steps of the grid; the last is a constant
REFINED = 3  # of these starts, how many are refined
VOID = 1e-4  # relative size of the directions of alpha that are left out: huge kernels of opposite sign that cancel


class Fit(NamedTuple):
    """A mixture fitted to a mask, its alpha the best for its sigma."""

    sigma: np.ndarray  # (K,)
    alpha: np.ndarray  # (K,)
    r2: float  # 1 - SS_res / SS_tot over all N^2 entries

    def at(self, distance: np.ndarray) -> np.ndarray:
        """f at some distances, in steps of the grid."""
        return _gaussians(np.square(distance), np.log(self.sigma)) @ self.alpha


def fit_mixtures(weight: np.ndarray, grid: Grid, most: int = 10) -> list[Fit]:
    """The fits with 1 to `most` kernels to a mask (N, N); R2 never falls, as each starts from the one before it.

    Variable projection: alpha is linear given sigma, so only log sigma is searched. All entries at one distance share
    f(d), so the squared error is that of their means, weighted by their number, plus a constant.
    """
    d2, index = (each.numpy() for each in squared_distances(grid))
    flat = np.asarray(weight, dtype=np.float64).ravel()
    if flat.size != index.size:
        n = grid[0] * grid[1]
        raise ValueError(f"expected a mask of shape ({n}, {n}) on a {grid} grid, got {np.shape(weight)}")
    count = np.bincount(index)
    mean = np.bincount(index, flat) / count
    total, inside = np.sum((flat - flat.mean()) ** 2), np.sum((flat - mean[index]) ** 2)
    if not total:
        raise ValueError("expected a mask whose entries differ, got a constant one: it has no variance to explain")
    problem = _Problem(d2, np.sqrt(count), mean)

    fits, logs, best = [], np.empty(0), np.inf
    for _ in range(most):
        starts = sorted((np.append(logs, np.log(sigma)) for sigma in SIGMAS), key=problem.error)
        found = min([starts[0], *(problem.refined(start) for start in starts[:REFINED])], key=problem.error)
        alpha = problem.alpha(found)
        if problem.error(found) > best:  # by rounding alone: one more kernel that does nothing
            found, alpha = np.append(logs, logs[-1]), np.append(fits[-1].alpha, 0.0)
        else:
            best = problem.error(found)
        logs = found
        fits.append(Fit(np.exp(found), alpha, float(1 - (inside + best) / total)))
    return fits


class _Problem(NamedTuple):
    """min over sigma and alpha of sum_u (root_u (f(d_u) - mean_u))^2."""

    d2: np.ndarray  # (U,) distinct squared distances
    root: np.ndarray  # (U,) square root of the number of pairs
    mean: np.ndarray  # (U,) mean weight

    def alpha(self, logs: np.ndarray) -> np.ndarray:
        columns = self.root[:, None] * _gaussians(self.d2, logs)
        return np.linalg.lstsq(columns, self.root * self.mean, rcond=VOID)[0]

    def residual(self, logs: np.ndarray) -> np.ndarray:
        return self.root * (_gaussians(self.d2, logs) @ self.alpha(logs) - self.mean)

    def error(self, logs: np.ndarray) -> float:
        return float(np.sum(self.residual(logs) ** 2))

    def refined(self, start: np.ndarray) -> np.ndarray:
        inside = np.clip(start, np.log(SIGMAS[0]), np.log(SIGMAS[-1]))
        bounds = np.log(SIGMAS[0]) - 1e-9, np.log(SIGMAS[-1]) + 1e-9
        return least_squares(self.residual, inside, bounds=bounds, max_nfev=200).x


def _gaussians(d2: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """exp(-d2 / (2 sigma^2)) of every distance and kernel, (..., K)."""
    return np.exp(-d2[..., None] / (2 * np.exp(2 * logs)))
