"""Learned masks and attention in numbers: two regularities, what distance explains, relative kernels, heat maps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from scipy import stats

from ..core.grids import Grid, grid_of, patch_centres, squared_distances
from ..core.maps import attention_maps
from ..core.products import at_rest


class Regularities(NamedTuple):
    """The two regularities of masks (heads, N, N), for each head; NaN where a mask is constant."""

    self_difference: np.ndarray  # (heads,) mean of the diagonal minus mean of the rest
    self_z: np.ndarray  # (heads,) mean of the diagonal of the z-scored mask: (mean diagonal - mean) / sd of all entries
    decay_weight: np.ndarray  # (heads,) Spearman's rank correlation of the weight with distance, diagonal left out
    decay_size: np.ndarray  # (heads,) the same of |weight|
    distance: np.ndarray  # (bins,) mean distance of the pairs of a bin, in steps of the grid
    weight: np.ndarray  # (heads, bins) their mean weight
    spread: np.ndarray  # (heads, bins) the standard deviation of their weights


class Explained(NamedTuple):
    """R2 = 1 - SS_res / SS_tot of the best function of something, and what as many free values explain of noise."""

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

    step = np.rint(distance).astype(int).ravel()
    count = np.bincount(step)
    flat = weight.reshape(len(weight), -1)
    means = np.stack([np.bincount(step, each) / count for each in flat])
    squares = np.stack(
        [np.bincount(step, (each - mean[step]) ** 2) / count for each, mean in zip(flat, means, strict=True)]
    )
    return Regularities(
        self_difference=own.mean(1) - rest.mean(1),
        self_z=z,
        decay_weight=np.array([_rank_correlation(distance[~diagonal], each) for each in rest]),
        decay_size=np.array([_rank_correlation(distance[~diagonal], np.abs(each)) for each in rest]),
        distance=np.bincount(step, distance.ravel()) / count,
        weight=means,
        spread=np.sqrt(squares),
    )


def by_distance(weight: np.ndarray, grid: Grid) -> Explained:
    """What the best function of distance alone explains of a mask (N, N): no mixture of Gaussians can reach more."""
    return _explained(_square(weight, grid)[0], squared_distances(grid).index.numpy())


def by_position(weight: np.ndarray, grid: Grid) -> Explained:
    """What the best function of relative position, a free (2n-1) x (2n-1) kernel, explains of a mask (N, N)."""
    return _explained(_square(weight, grid)[0], _offsets(grid))


def relative_kernel(weight: np.ndarray, grid: Grid) -> np.ndarray:
    """Mean weight at each key position relative to the query, of a mask (N, N): (2 rows - 1, 2 columns - 1)."""
    offset = _offsets(grid)
    total = np.bincount(offset, _square(weight, grid)[0].ravel())
    return (total / np.bincount(offset)).reshape(2 * grid[0] - 1, 2 * grid[1] - 1)


def attention_heat(model: nn.Module, images: torch.Tensor, layer: int | str = -1) -> np.ndarray:
    """Attention of one layer, averaged over queries, then heads, up-sampled to the images by nearest: (B, H, W).

    Class and register tokens are left out, as queries (unless they are all a layer asks) and as keys.
    """
    with at_rest(model), attention_maps(model, layers=layer) as maps:
        model(images)
    if len(maps) != 1:
        raise ValueError(f"layer: expected one attention layer, got {len(maps)}: {', '.join(maps)}")
    ((name, attention),) = maps.items()  # (B, heads, Nq, Nk)
    queries, keys = attention.shape[-2:]
    rows, columns = images.shape[-2:]
    prefixes = dict.fromkeys((getattr(model, "num_prefix_tokens", 0), 0, 1, 2))
    prefix = next((p for p in prefixes if grid_of(keys - p, rows / columns)), None)
    if prefix is None or len(attention) != len(images):
        raise ValueError(
            f"{name} attends {tuple(attention.shape)} (images or windows, heads, queries, keys), which is no map over "
            f"{len(images)} images of {rows} x {columns}"
        )
    grid = grid_of(keys - prefix, rows / columns)
    seen = attention[:, :, prefix if queries == keys else 0 :, prefix:].float().mean(2).mean(1)  # (B, N)
    heat = seen.view(-1, 1, *grid)
    return F.interpolate(heat, (rows, columns), mode="nearest")[:, 0].cpu().numpy()


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


def _explained(weight: np.ndarray, group: np.ndarray) -> Explained:
    weight, count = weight.ravel(), np.bincount(group)
    total = np.sum((weight - weight.mean()) ** 2)
    inside = np.sum((weight - (np.bincount(group, weight) / count)[group]) ** 2)
    return Explained(float(1 - inside / total) if total else np.nan, (len(count) - 1) / (len(weight) - 1))


def _rank_correlation(distance: np.ndarray, weight: np.ndarray) -> float:
    return stats.spearmanr(distance, weight).statistic if np.ptp(weight) else np.nan
