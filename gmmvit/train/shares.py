"""The keys that a process reads: its shares of each global batch in training, its part of the images of a test."""

from __future__ import annotations

import numpy as np

from ..data import epoch_order
from .processes import World


def training_keys(
    images: int, seed: int, epoch: int, world: World, *, passes: int, batch: int, steps: int, accumulate: int
) -> list[np.ndarray]:
    """Of each share of each step of an epoch: `accumulate` shares a step, of global batches of `batch` images."""
    keys = epoch_order(images, seed, epoch, passes)
    return [
        share(keys[at : at + batch], world.rank * accumulate + number, world.size * accumulate)
        for at in range(0, steps * batch, batch)
        for number in range(accumulate)
    ]


def share(keys: np.ndarray, number: int, shares: int) -> np.ndarray:
    """One of `shares` equal parts of a global batch; a sample and its mirror image, which are mixed, stay together."""
    if len(keys) % (2 * shares):
        return keys[number::shares]
    part = len(keys) // (2 * shares)
    return np.concatenate([keys[number * part :][:part], keys[::-1][number * part :][:part][::-1]])


def evaluation_keys(images: int, world: World, batch: int) -> list[np.ndarray]:
    """Of each batch of a test, every image belonging to one process."""
    mine = np.arange(world.rank, images, world.size)
    return [mine[at : at + batch] for at in range(0, len(mine), batch)]
