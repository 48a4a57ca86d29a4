"""Rows of classification, as gmmvit.train.tasks asks for them; torch is loaded where an answer wants it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..data.sets import find
from .recipes import RECIPES
from .rows import Row, split_counts

if TYPE_CHECKING:
    from .classify import Classification
    from .processes import World

__all__ = ["RECIPES", "images", "macs", "problems", "task"]


def problems(row: Row, processes: int = 1) -> list[str]:
    """A sentence for each thing that is wrong with a row."""
    from .classify_checks import problems

    return problems(row, processes)


def task(row: Row, world: World, workers: int | None = None) -> Classification:
    """What the loop trains."""
    from .classify import Classification

    return Classification(row, world, workers)


def images(row: Row) -> dict[str, int]:
    """Images of each split, before they are there."""
    return split_counts(find(row.dataset))


def macs(row: Row) -> int:
    """Full MACs of one image, counted without memory; masks add none."""
    import torch

    from ..core.cost import cost
    from .start import unmasked_model

    with torch.device("meta"):
        return cost(unmasked_model(row), find(row.dataset).size).macs_full
