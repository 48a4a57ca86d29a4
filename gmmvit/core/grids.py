"""Token grids: squared distances of patch centres, their few distinct values, the grid behind a token count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F

Grid = tuple[int, int]  # (rows, columns)


class Distances(NamedTuple):
    """Squared distances of all (query, key) pairs, stored once per distinct value: `values[index]`."""

    values: torch.Tensor  # (U,) float64, ascending
    index: torch.Tensor  # (Nq * Nk,) int32 into `values`


def patch_centres(grid: Grid, cells: Grid | None = None) -> torch.Tensor:
    """Row and column of each token's centre, (N, 2), in steps of a `cells` grid laid over the same image."""
    steps = zip(grid, cells or grid, strict=True)
    return torch.cartesian_prod(
        *((torch.arange(n, dtype=torch.float64, device="cpu") + 0.5) * (m / n) for n, m in steps)
    )


@lru_cache(maxsize=256)
@torch.inference_mode(False)  # what is cached must serve training, whoever asks first
def squared_distances(grid: Grid, key_grid: Grid | None = None) -> Distances:
    """d2 = dy^2 + dx^2 between query and key patch centres, in steps of the finer of the two grids."""
    key_grid = key_grid or grid
    cells = (max(grid[0], key_grid[0]), max(grid[1], key_grid[1]))
    queries, keys = patch_centres(grid, cells), patch_centres(key_grid, cells)
    d2 = (queries[:, None] - keys[None]).square().sum(-1)  # (Nq, Nk)
    values, index = torch.unique(d2, return_inverse=True)
    return Distances(values, index.flatten().to(torch.int32))


class Offsets(NamedTuple):
    """Relative positions of all (query, key) pairs, stored once each: `values[index]`."""

    values: torch.Tensor  # (U, 2) float64: rows and columns from the key to the query, row by row
    index: torch.Tensor  # (Nq * Nk,) int32 into `values`


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def offsets(grid: Grid, key_grid: Grid | None = None, signed: bool = False) -> Offsets:
    """dy and dx between query and key patch centres, or |dy| and |dx|, in steps of the finer of the two grids."""
    axes = []
    for n, m in zip(grid, key_grid or grid, strict=True):
        queries, keys = (patch_centres((side, 1), (max(n, m), 1))[:, 0] for side in (n, m))
        apart = queries[:, None] - keys
        axes.append(torch.unique(apart if signed else apart.abs(), return_inverse=True))
    (rows, down), (columns, across) = axes
    index = down[:, None, :, None] * len(columns) + across[None, :, None, :]  # (y, x, y', x')
    return Offsets(torch.cartesian_prod(rows, columns), index.flatten().to(torch.int32))


def by_offset(pairs: torch.Tensor, grid: Grid, signed: bool = False) -> torch.Tensor:
    """Sums over the pairs (..., N * N) of one grid that are |dy| rows and |dx| columns apart, or dy and dx, (..., U).

    Always in the same order, where scatter_add_ on a GPU adds as its threads come.
    """
    rows, columns = grid
    each = pairs.unflatten(-1, (rows, columns, rows, columns))
    each = _by_difference(each.transpose(-3, -2), signed)  # (..., y, y', dx)
    return _by_difference(each.movedim(-1, -3), signed).transpose(-2, -1).flatten(-2)


def _by_difference(square: torch.Tensor, signed: bool) -> torch.Tensor:
    """Sums over the entries (..., i, j) with one |i - j|, or i - j: each row is moved a step further than the last."""
    n = square.shape[-1]
    skewed = F.pad(square.flip(-1), (0, n)).flatten(-2)[..., : n * (2 * n - 1)].unflatten(-1, (n, 2 * n - 1))
    sums = skewed.sum(-2)  # of i - j = 1 - n to n - 1
    return sums if signed else sums[..., n - 1 :] + F.pad(sums[..., : n - 1].flip(-1), (1, 0))


def prefixes(prefix: int | tuple[int, int]) -> tuple[int, int]:
    """The prefix tokens among queries and among keys; one number is that of both."""
    return (prefix, prefix) if isinstance(prefix, int) else prefix


def grid_of(tokens: int, aspect: float = 1.0) -> Grid | None:
    """The (rows, columns) with rows * columns == tokens and rows / columns == aspect, or None where there is none."""
    rows = round((max(tokens, 0) * aspect) ** 0.5)
    if rows < 1 or tokens % rows:
        return None
    columns = tokens // rows
    return (rows, columns) if abs(rows / columns - aspect) < 1e-6 * aspect else None


def strided(tokens: int, image: Sequence[int]) -> Grid | None:
    """The grid of so many tokens that a stride makes of an image whose sides it need not divide."""
    rows, columns = image
    for stride in range(1, min(rows, columns) + 1):
        for grid in ((-(-rows // stride), -(-columns // stride)), (rows // stride, columns // stride)):
            if math.prod(grid) == tokens:
                return grid
    return None


def pair(value: object) -> tuple | None:
    """Both sides of what is given as one number, or as two; None of anything else."""
    both = (value, value) if isinstance(value, int) else value
    return tuple(both) if isinstance(both, (tuple, list)) and len(both) == 2 else None


def layout(
    model: nn.Module, tokens: int, image: Sequence[int] | None = None, layer: nn.Module | None = None
) -> tuple[Grid, int] | None:
    """The grid of a model's tokens, and the number of class and register tokens before it; None where there is none.

    It is the model's grid of patches, or one with the aspect of `image` (by default that of the images the model was
    built for), or one of patches that do not divide it. With a `layer`, it may also be that of the layer's windows.
    """
    patches, window = getattr(model, "patch_embed", None), getattr(layer, "window_size", getattr(layer, "ws", None))
    built = pair(getattr(patches, "img_size", None))
    image = pair(image) or built or (1, 1)
    feat = getattr(patches, "dynamic_feat_size", None)  # timm's PatchEmbed, which knows whether it pads
    known = (
        pair(window),
        pair(getattr(patches, "grid_size", None)) if built in (None, image) else None,
        feat(image) if feat else None,
    )
    registers = getattr(
        getattr(model, "config", None), "num_register_tokens", 0
    )  # Hugging Face's, after its class token
    own = getattr(model, "num_prefix_tokens", registers and registers + 1)
    for prefix in dict.fromkeys((own, 0, 1, 2)):  # 2: class and distillation token
        rest = tokens - prefix
        square = grid_of(rest) if layer is not None and not prefix else None
        for grid in (*known, grid_of(rest, image[0] / image[1]), square):
            if grid and math.prod(grid) == rest:
                return grid, prefix
    uneven = None if layer is None else strided(tokens - own, image)
    return (uneven, own) if uneven else None


def unrolled_order(grid: Grid, base: Grid) -> torch.Tensor:
    """Row-major positions of tokens that Hiera keeps unrolled: 2 x 2 pooling groups outermost, `base` grid last."""
    tokens = torch.arange(grid[0] * grid[1]).view(1, *grid)
    while tokens.shape[1:] != torch.Size(base):
        groups, rows, columns = tokens.shape
        tokens = tokens.view(groups, rows // 2, 2, columns // 2, 2).permute(0, 2, 4, 1, 3)
        tokens = tokens.reshape(groups * 4, rows // 2, columns // 2)
    return tokens.flatten()
