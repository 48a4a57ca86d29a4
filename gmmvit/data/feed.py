"""What a run reads, epoch after epoch, loaded ahead by processes that last as long as the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch.utils.data import Dataset

from .loader import Loader, Stream, end_processes
from .workers import ITEM


class Streams(Dataset):
    """Several streams by name; indexed by (name, keys)."""

    def __init__(self, streams: Mapping[str, Stream]):
        self.streams = dict(streams)

    def __getitem__(self, place: tuple[str, np.ndarray]) -> tuple[object, torch.Tensor]:
        name, keys = place
        return self.streams[name][keys]


class Feed:
    """What a run reads, by processes that last as long as it does and load ahead in the order in which it reads.

    streams  in the order in which an epoch reads them: {"train": ..., "test": ...}
    groups   (name, epoch) -> the keys of each group, which is what is read at a time
    item     images that a process loads at a time
    """

    def __init__(
        self,
        streams: Mapping[str, Stream],
        groups: Callable[[str, int], Sequence[np.ndarray]],
        *,
        workers: int = 0,
        device: torch.device,
        item: int = ITEM,
    ):
        self.names, self.groups, self.item, self.epoch = list(streams), groups, item, 0
        self.place: tuple[str, int, int] | None = None  # name, epoch and number of the group that comes next
        pinned = device.type == "cuda" and torch.cuda.is_available()
        self.loader = Loader(Streams(streams), self, workers, pinned, persistent_workers=workers > 0)
        self.loaded: Iterator | None = None

    def read(self, name: str, epoch: int | None = None, start: int = 0) -> Iterator[tuple[np.ndarray, list]]:
        """(keys, items) of each group of an epoch from number `start` on; of the epoch read last, if none is given."""
        epoch = self.epoch = self.epoch if epoch is None else epoch
        groups = self.groups(name, epoch)
        for number in range(start, len(groups)):
            if self.place != (name, epoch, number):
                self.place = name, epoch, number
                self.loaded = iter(self.loader)
            self.place = None  # until the group is whole
            with torch.inference_mode(False):  # in a test, the first items of the next epoch may arrive
                items = [next(self.loaded) for _ in self._cut(groups[number])]
            self.place = (name, epoch, number + 1) if number + 1 < len(groups) else self._after(name, epoch)
            yield groups[number], items

    def __iter__(self) -> Iterator[tuple[str, np.ndarray]]:
        """What is to be loaded from the present place on, without an end."""
        return self._ahead(*self.place)

    def close(self) -> None:
        """Ends the processes."""
        running, self.loader._iterator, self.loaded, self.place = self.loader._iterator, None, None, None
        if running is not None:
            end_processes(running)

    def _ahead(self, name: str, epoch: int, number: int) -> Iterator[tuple[str, np.ndarray]]:
        while True:
            for group in self.groups(name, epoch)[number:]:
                yield from ((name, keys) for keys in self._cut(group))
            name, epoch, number = self._after(name, epoch)

    def _after(self, name: str, epoch: int) -> tuple[str, int, int]:
        following = self.names.index(name) + 1
        return (self.names[following], epoch, 0) if following < len(self.names) else (self.names[0], epoch + 1, 0)

    def _cut(self, group: np.ndarray) -> list[np.ndarray]:
        return [group[at : at + self.item] for at in range(0, len(group), self.item)]
