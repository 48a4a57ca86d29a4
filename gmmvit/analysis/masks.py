"""Learned masks in numbers: two regularities, what distance explains of them, mixtures fitted to them, the method."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.optimize import least_squares

from ..core.grids import Grid, patch_centres, squared_distances
from ..core.masks import MASKS
from ..train.learned import LearnedMask

SIGMAS = np.geomspace(0.25, 1024, 37)  # widths tried for each further kernel, in steps; the last is a constant
REFINED = 3  # of these starts, how many are refined
VOID = 1e-4  # relative size of the directions of alpha that are left out: huge kernels of opposite sign that cancel
MASKED = {  # the steps of a mask that is a factor: what their numbers are
    "S = QKᵀ/√d": "score",
    "M": "mask weight",
    "M ⊙ S": "masked score",
    "softmax(M ⊙ S)": "attention",
}
BIASED = {"S = QKᵀ/√d": "score", "B": "bias", "S + B": "biased score", "softmax(S + B)": "attention"}
STEPS = MASKED | BIASED


class Regularities(NamedTuple):
    """The two regularities of masks (heads, N, N), for each head; NaN where a mask is constant."""

    self_difference: np.ndarray  # (heads,) mean of the diagonal minus mean of the rest
    self_z: np.ndarray  # (heads,) mean of the diagonal of the z-scored mask: (mean diagonal - mean) / sd of all entries
    decay_weight: np.ndarray  # (heads,) Spearman's rank correlation of the weight with distance, diagonal left out
    decay_size: np.ndarray  # (heads,) the same of |weight|
    distance: np.ndarray  # (bins,) mean distance of the pairs of a bin, in steps of the grid
    weight: np.ndarray  # (heads, bins) their mean weight
    spread: np.ndarray  # (heads, bins) the standard deviation of their weights


class Steps(NamedTuple):
    """Masks (heads, N, N) by the distance of query and key."""

    distance: np.ndarray  # (bins,) mean distance of the pairs of a bin, in steps of the grid
    weight: np.ndarray  # (heads, bins) their mean weight
    spread: np.ndarray  # (heads, bins) the standard deviation of their weights


class Explained(NamedTuple):
    """R2 = 1 - SS_res / SS_tot of the best function of distance, and what as many free values explain of noise."""

    r2: float
    on_noise: float  # (free values - 1) / (N^2 - 1)


def regularities(weight: np.ndarray, grid: Grid) -> Regularities:
    """Self-inhibition, and decay with distance (bins: distances rounded to whole steps), of masks (heads, N, N)."""
    weight = _square(weight, grid)
    diagonal = np.eye(weight.shape[-1], dtype=bool)
    own, rest = weight[:, diagonal], weight[:, ~diagonal]  # (heads, N), (heads, N (N - 1))
    distance = np.sqrt(_d2(grid))
    sd = weight.std((1, 2))
    z = np.divide(own.mean(1) - weight.mean((1, 2)), sd, where=sd > 0, out=np.full(len(sd), np.nan))

    steps = by_step(weight, grid)
    return Regularities(
        self_difference=own.mean(1) - rest.mean(1),
        self_z=z,
        decay_weight=np.array([_rank_correlation(distance[~diagonal], each) for each in rest]),
        decay_size=np.array([_rank_correlation(distance[~diagonal], np.abs(each)) for each in rest]),
        distance=steps.distance,
        weight=steps.weight,
        spread=steps.spread,
    )


def by_step(weight: np.ndarray, grid: Grid) -> Steps:
    """The mean weight of masks (heads, N, N) by distance, in bins of distances rounded to whole steps."""
    weight, distance = _square(weight, grid), np.sqrt(_d2(grid)).ravel()
    step = np.rint(distance).astype(int)
    count = np.bincount(step)
    flat = weight.reshape(len(weight), -1)
    means = np.stack([np.bincount(step, each) / count for each in flat])
    squares = [np.bincount(step, (each - mean[step]) ** 2) / count for each, mean in zip(flat, means, strict=True)]
    return Steps(np.bincount(step, distance) / count, means, np.sqrt(np.stack(squares)))


def by_distance(weight: np.ndarray, grid: Grid) -> Explained:
    """What the best function of distance alone explains of a mask (N, N): no mixture of Gaussians can reach more."""
    weight, group = _square(weight, grid)[0].ravel(), squared_distances(grid).index.numpy()
    count = np.bincount(group)
    total = np.sum((weight - weight.mean()) ** 2)
    inside = np.sum((weight - (np.bincount(group, weight) / count)[group]) ** 2)
    return Explained(float(1 - inside / total) if total else np.nan, (len(count) - 1) / (len(weight) - 1))


def relative_kernel(weight: np.ndarray, grid: Grid) -> np.ndarray:
    """Mean weight at each key position relative to the query, of a mask (N, N): (2 rows - 1, 2 columns - 1)."""
    offset = _offsets(grid)
    total = np.bincount(offset, _square(weight, grid)[0].ravel())
    return (total / np.bincount(offset)).reshape(2 * grid[0] - 1, 2 * grid[1] - 1)


def _square(weight: np.ndarray, grid: Grid) -> np.ndarray:
    """Masks as (heads, N, N) in float64."""
    n = grid[0] * grid[1]
    weight = np.asarray(weight, dtype=np.float64)
    weight = weight[None] if weight.ndim == 2 else weight
    if weight.ndim != 3 or weight.shape[1:] != (n, n):
        raise ValueError(f"expected masks of shape (heads, {n}, {n}) on a {grid} grid, got {weight.shape}")
    return weight


def _d2(grid: Grid) -> np.ndarray:
    values, index = squared_distances(grid)
    n = grid[0] * grid[1]
    return values[index].view(n, n).numpy()


def _offsets(grid: Grid) -> np.ndarray:
    """The flat index of each pair's relative position in a (2 rows - 1) x (2 columns - 1) kernel, (N * N,)."""
    place = (patch_centres(grid) - 0.5).long().numpy()
    dy, dx = (place[None] - place[:, None]).transpose(2, 0, 1)  # key - query, (N, N) each
    return ((dy + grid[0] - 1) * (2 * grid[1] - 1) + dx + grid[1] - 1).ravel()


def _rank_correlation(distance: np.ndarray, weight: np.ndarray) -> float:
    return stats.spearmanr(distance, weight).statistic if np.ptp(weight) else np.nan


# ---- how many Gaussians a mask needs ---------------------------------------------------------------------------------


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


# ---- the method step by step -----------------------------------------------------------------------------------------


def mixing(mask: LearnedMask, head: int = 0) -> dict[str, np.ndarray]:
    """alpha_k exp(-d2 / (2 sigma_k^2)) of each kernel by relative position, and their sum, (2n - 1, 2n - 1) each.

    Of a GMM that began neutral, also the base that is added to them; a bias has its kernels just so.
    """
    learned, whole = mask.parameters, relative_kernel(mask.weight()[head], mask.grid)
    if not {"sigma", "alpha"} <= learned.keys():
        raise ValueError(f"{mask.name}: expected a mixture of Gaussians (gmm or gmb), got {mask.kind!r}")
    base, parts = float(mask.buffers.get("base", mask.options.get("base", 0.0))), {}  # older records: an option
    for k, (sigma, alpha) in enumerate(zip(learned["sigma"][:, head], learned["alpha"][:, head], strict=True)):
        numbers = {name: values[k : k + 1] for name, values in learned.items()}
        one = replace(mask, parameters=numbers, options=mask.options | {"kernels": 1})
        label = f"α = {alpha:.2f}, |σ| = {abs(sigma):.1f}".replace("-", "−")
        parts[label] = relative_kernel(one.weight()[head], mask.grid) - base
    parts |= {f"base = {base:g}": np.full_like(whole, base)} if base else {}
    return parts | {f"their sum {'B' if _added(mask) else 'M'}": whole}


def masking(scores: np.ndarray, mask: LearnedMask, head: int = 0) -> dict[str, np.ndarray]:
    """Scores S = Q K^T / sqrt(d) of one head, its mask M or bias B, what it makes of them, and the softmax of that.

    (N, N) each; STEPS says what their numbers are.
    """
    weight = mask.weight()
    if weight is None or mask.where != "scores":
        raise ValueError(f"{mask.name}: expected a mask of weights on the scores, got {mask.kind!r}")
    scores, weight = np.asarray(scores, dtype=np.float64), weight[min(head, len(weight) - 1)]
    masked = scores + weight if _added(mask) else weight * scores
    raised = np.exp(masked - masked.max(-1, keepdims=True))
    attention = raised / raised.sum(-1, keepdims=True)
    signs = BIASED if _added(mask) else MASKED
    return dict(zip(signs, (scores, weight, masked, attention), strict=True))


def _added(mask: LearnedMask) -> bool:
    """Whether a mask is added to the scores, and not multiplied into them."""
    return bool(getattr(MASKS[mask.kind], "additive", False))
