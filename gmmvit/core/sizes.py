"""Another image size: which pass of which model is under way, and which grids its scores come from."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn as nn

from .grids import Grid, layout

MOST = 16  # grids beside its own that a mask keeps


class Place(NamedTuple):
    """Where the scores of a mask come from."""

    grid: Grid
    prefix: tuple[int, int]
    key_grid: Grid


_under_way: list[tuple[nn.Module, Grid | None]] = []  # models that are running, and the size of their images


def begin(model: nn.Module, args: tuple, kwargs: dict) -> Grid | None:
    """The size of the image a model is called with, until `end` that of the pass under way; None of anything else."""
    image = args[0] if args else next(iter(kwargs.values()), None)
    size = tuple(int(side) for side in image.shape[-2:]) if torch.is_tensor(image) and image.ndim == 4 else None
    _under_way.append((model, size))
    return size


def end() -> None:
    """Ends the pass that began last."""
    _under_way.pop()


def running(model: nn.Module) -> bool:
    """Whether the pass under way is one of this model."""
    return bool(_under_way) and _under_way[-1][0] is model


def now() -> Grid | None:
    """The size of the images of the pass under way."""
    return _under_way[-1][1] if _under_way else None


def place_of(mask: nn.Module, counts: tuple[int, int]) -> Place | None:
    """The grids of so many queries and keys that reach a mask in the pass under way; None where they cannot be told."""
    if now() is None:
        return None
    model, size = _under_way[-1]
    owner = next((site.name for site in getattr(model, "spatial_sites", ()) if site.mask is mask), None)
    if owner is None:
        return None
    both = [layout(model, tokens, size, model.get_submodule(owner)) for tokens in counts]
    if None in both:
        return None
    (grid, rows), (key_grid, columns) = both
    return Place(grid, (rows, columns), key_grid)
