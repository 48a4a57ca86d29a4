"""Batches of a data set: the same images in the same order for any number of workers, processes and restarts."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from . import draws
from .augment import Augmentation
from .threads import one_thread


class Stream(Dataset):
    """A source of samples seen through an augmentation; indexed by lists of keys (see draws)."""

    def __init__(self, source, augment: Augmentation, seed: int):
        self.source, self.augment, self.seed = source, augment, seed

    def __getitems__(self, keys: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        keys = np.asarray(keys)
        indices = keys % len(self.source)
        with one_thread():
            images = self.augment(self.source.read(indices), draws.sample_seeds(self.seed, keys))
        return images, torch.from_numpy(self.source.labels[indices].astype(np.int64))


def batches(
    source,
    augment: Augmentation,
    keys: np.ndarray,
    batch: int,
    *,
    seed: int = 0,
    start: int = 0,
    drop_last: bool = True,
    take: Callable[[np.ndarray], np.ndarray] | None = None,
    workers: int = 0,
) -> DataLoader:
    """An iterable of (images (B, 3, S, S) float32, labels (B,) int64), from batch number `start` on.

    keys   of `draws.epoch_order` for training, `np.arange(len(source))` for evaluation
    batch  images of a global batch
    take   picks one process's share of the keys of a global batch
    """
    end = len(keys) - len(keys) % batch if drop_last else len(keys)
    groups = [keys[at : at + batch] for at in range(start * batch, end, batch)]
    return stream(source, augment, [take(group) for group in groups] if take else groups, seed=seed, workers=workers)


def stream(
    source, augment: Augmentation, groups: Sequence[np.ndarray], *, seed: int = 0, workers: int = 0
) -> DataLoader:
    """The batches whose keys are listed, one after the other."""
    return DataLoader(
        Stream(source, augment, seed),
        batch_sampler=groups,
        collate_fn=_as_it_is,
        num_workers=workers,
        worker_init_fn=_leave_interrupts_to_the_parent,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # else each epoch would draw from the global stream that dropout uses
    )


def _as_it_is(batch):
    return batch


def _leave_interrupts_to_the_parent(worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
