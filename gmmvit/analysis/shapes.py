"""What a mask does to attention, in pictures that any mask has: seen by the centre patch, and by distance.

Of a mask with weights these are what is drawn: factors of a score, biases, attention by position (gpsa). Of one that
changes query and key (rope) it is the mean score of two equal unit vectors, trace(R_i^T R_j) / width. Of a module that
only takes scores it is what it makes of scores of 0, or, where that is nothing, of scores of 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn as nn

from ..core.attach import Site
from ..core.grids import Grid, prefixes
from ..core.products import at_rest
from ..train import learned
from ..train.learned import LearnedMask
from ..train.moved import weight_of
from ..train.rows import Row
from ..train.start import model_of
from .fields import central_patch
from .masks import by_step

SAID = {"added": "added to the score", "multiplied": "factor of the score", "mixed in": "attention by position"}
TURNED, MADE = "score of equal unit vectors", "made of scores of {}"
WIDTH = 64  # channels of a head, where a mask does not say how many it is made for


class Shape(NamedTuple):
    """The masks of a model on its first grid, averaged over layers and heads."""

    numbers: str  # what they are, in words
    centre: np.ndarray  # (rows, columns), of the central patch for every other
    query: Grid  # its row and column
    distance: np.ndarray  # (bins,) in patches
    weight: np.ndarray  # (bins,) mean weight
    spread: np.ndarray  # (bins,) its standard deviation over layers and heads


def at_start(row: Row) -> Shape | None:
    """The masks of a row as its training finds them; None of a row without any."""
    with torch.random.fork_rng(devices=[]):
        model = model_of(row)
    return shape((site.mask, site) for site in getattr(model, "spatial_sites", ()))


def after(run: str | Path) -> Shape | None:
    """The masks that a run learned."""
    return shape((mask.rebuilt(), mask) for mask in learned.read(run))


def shape(masks: Iterable[tuple[nn.Module, Site | LearnedMask]]) -> Shape | None:
    """The shape of masks and their places; layers that pool their keys, or have another grid, are left out."""
    masks = [(mask, place) for mask, place in masks if place.grid == place.key_grid]
    if not masks:
        return None
    grid = masks[0][1].grid
    numbers, weights = zip(*(seen(mask, place) for mask, place in masks if place.grid == grid), strict=True)
    whole = np.concatenate(weights)  # (layers * heads, N, N)
    query, steps = central_patch(grid), by_step(whole, grid)
    centre = whole[:, query[0] * grid[1] + query[1]].mean(0).reshape(grid)
    return Shape(numbers[0], centre, query, steps.distance, steps.weight.mean(0), steps.weight.std(0))


@torch.no_grad()
def seen(mask: nn.Module, place: Site | LearnedMask) -> tuple[str, np.ndarray]:
    """What the numbers of one mask are, in words, and these, (heads or 1, N, N)."""
    weight = weight_of(mask)
    if weight is not None:
        done = mask.words()[0]
        words = SAID.get(done, done)
        if mask.where == "probabilities":
            words = words.replace("the score", "attention")
        return words, weight.double().numpy()
    prefix = prefixes(place.prefix)
    (rows, columns), heads = place.grid, place.heads
    counts = prefix[0] + rows * columns, prefix[1] + rows * columns
    with at_rest(mask):
        if getattr(mask, "where", "") == "product":
            words, whole = TURNED, _turned(mask, heads, *counts)
        else:
            words, whole = _made(mask, heads, *counts)
    return words, whole[:, prefix[0] :, prefix[1] :].double().numpy()


def _turned(mask: nn.Module, heads: int, queries: int, keys: int) -> torch.Tensor:
    """The mean over an orthonormal basis of the score of a query and an equal key, (heads, queries, keys)."""
    width = getattr(mask, "width", WIDTH)
    basis = torch.eye(width)[:, None, None]  # (width, 1, 1, width)
    query, key = mask.operands(basis.repeat(1, heads, queries, 1), basis.repeat(1, heads, keys, 1))
    return (query @ key.transpose(-2, -1)).mean(0)


def _made(mask: nn.Module, heads: int, queries: int, keys: int) -> tuple[str, torch.Tensor]:
    """What a module makes of equal scores, (heads, queries, keys), and of which."""
    for score in (0.0, 1.0):
        made = mask(torch.full((1, heads, queries, keys), score))[0]
        if made.any():
            break
    return MADE.format(f"{score:g}"), made
