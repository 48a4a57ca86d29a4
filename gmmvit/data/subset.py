"""A share of a split's images, drawn by a seed: of every class as nearly the same share as whole images allow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from . import draws
from .arrays import Arrays
from .images import Files

SUBSET = 4  # its stream of draws (data.draws has 1 and 2, train.depth 3)


@dataclass(frozen=True, eq=False)
class Subset:
    """Some images of a split, as a split of its own."""

    whole: Arrays | Files
    chosen: np.ndarray  # (n,) their numbers in the whole split, ascending

    def __len__(self) -> int:
        return len(self.chosen)

    @cached_property
    def labels(self) -> np.ndarray:
        return self.whole.labels[self.chosen]

    def read(self, indices: np.ndarray) -> np.ndarray | list:
        """The images with these numbers of the subset."""
        return self.whole.read(self.chosen[indices])


def size(images: int, share: float) -> int:
    """How many images a share of them is."""
    return round(share * images)


def subset(source: Arrays | Files, share: float, seed: int) -> Arrays | Files | Subset:
    """The share of a split that a seed draws: the whole of it at 1; a smaller share lies within a larger one.

    The r-th of a class's c images in random order stands at (r + 1/2) / c; those that stand first are taken.
    """
    if share == 1:
        return source
    labels = np.asarray(source.labels)
    draw = draws.uniform(draws.sample_seeds(seed, np.arange(len(labels)), SUBSET), 0)
    order = np.lexsort((draw, labels))  # class by class, each in random order
    _, first, count = np.unique(labels[order], return_index=True, return_counts=True)
    place = np.empty(len(labels))
    place[order] = (np.arange(len(labels)) - np.repeat(first, count) + 0.5) / np.repeat(count, count)
    return Subset(source, np.sort(np.lexsort((draw, place))[: size(len(labels), share)]))
