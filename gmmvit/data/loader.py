"""Samples by their keys, loaded by other processes: the same for any number of workers, processes and restarts."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from . import draws
from .threads import one_thread
from .workers import AHEAD, begin


class Stream(Dataset):
    """A source of samples seen through an augmentation; indexed by lists of keys (see draws)."""

    def __init__(self, source, augment: Callable[[Sequence, np.ndarray], object], seed: int = 0):
        self.source, self.augment, self.seed = source, augment, seed

    def __getitem__(self, keys: np.ndarray) -> tuple[object, torch.Tensor]:
        keys = np.asarray(keys)
        indices = keys % len(self.source)
        with one_thread():
            images = self.augment(self.source.read(indices), draws.sample_seeds(self.seed, keys))
        return images, torch.from_numpy(self.source.labels[indices].astype(np.int64))


class Loader(DataLoader):
    """torch's, over items of any kind: `order` says which, one after the other.

    Its processes ignore the SIGTERM with which multiprocessing ends those that are left when a program ends, so they
    are ended before.
    """

    def __init__(self, items: Dataset, order: Sequence | Iterator, workers: int, pinned: bool = False, **options):
        super().__init__(
            items,
            batch_size=None,
            sampler=order,
            collate_fn=_as_it_is,
            num_workers=workers,
            worker_init_fn=begin,
            prefetch_factor=AHEAD if workers else None,
            pin_memory=pinned,
            generator=torch.Generator(),  # else each epoch would draw from the global stream that dropout uses
            **options,
        )

    def __iter__(self) -> Iterator:
        iterator = super().__iter__()
        if self.num_workers:
            _running.add(iterator)
        return iterator


_running: weakref.WeakSet = weakref.WeakSet()  # iterators with processes of their own


def end_processes(iterator) -> None:
    """torch ends them when an iterator is collected, which a traceback that holds it puts off."""
    iterator._shutdown_workers()
    for process in iterator._workers:
        if process.is_alive():
            process.kill()


@atexit.register
def _end_all() -> None:
    for iterator in list(_running):
        end_processes(iterator)


def _as_it_is(item):
    return item
