"""Random numbers that depend on the seed and the sample only: splitmix64 (Steele, Lea & Flood 2014), vectorised.

A sample is named by its key = pass * images + image, where passes are counted from the start of the training. Order and
augmentation are functions of (seed, key), so they are the same for any number of workers, processes and batches.
"""

from __future__ import annotations

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
ORDER, AUGMENTATION = 1, 2  # independent streams of one seed
FLIP, ROW, COLUMN, POLICY, ERASE = 0, 1, 2, 3, 8  # the first draw of each step of an array's augmentation


def _scramble(x: np.ndarray) -> np.ndarray:
    """splitmix64's output function, a bijection of 64-bit words."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def sample_seeds(seed: int, keys: np.ndarray, stream: int = AUGMENTATION) -> np.ndarray:
    """One 64-bit seed for each key."""
    start = _scramble(np.array([seed % 2**64], np.uint64) + GOLDEN * np.array([stream], np.uint64))
    return _scramble(_scramble(start + GOLDEN * np.asarray(keys).astype(np.uint64)) ^ start)  # (B,)


def uniform(seeds: np.ndarray, number: int) -> np.ndarray:
    """Draw number 0, 1, 2, ... of each seed, uniform in [0, 1)."""
    word = _scramble(seeds + GOLDEN * np.array([number + 1], np.uint64))
    return (word >> np.uint64(11)) * 2.0**-53  # (B,)


def epoch_order(images: int, seed: int, epoch: int, passes: int = 1) -> np.ndarray:
    """The keys of an epoch of `passes` shuffled passes over the images, one after the other."""
    starts = images * (epoch * passes + np.arange(passes))
    keys = starts[:, None] + np.arange(images)  # (passes, images)
    return np.concatenate([row[np.argsort(sample_seeds(seed, row, ORDER), kind="stable")] for row in keys])
