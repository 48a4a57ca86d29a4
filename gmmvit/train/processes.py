"""One process or many: who we are, what is summed over all of us, and starting the others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from . import devices
from .launchers import as_torchrun, size_asked_for

PATIENCE = timedelta(hours=2)  # others wait in an exchange while the first process computes COCO's average precision


class Disagreement(ValueError):
    """Processes that are to train one run together do not see the same one."""


@dataclass(frozen=True)
class World:
    """This process among all that train one row."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")

    @property
    def first(self) -> bool:
        return self.rank == 0

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of `values` over all processes, on each of them."""
        if self.size > 1:
            values = values.to(self.device)
            dist.all_reduce(values)
        return values

    def agreed(self, mine: str) -> None:
        """Raises in every process, and lets none wait, unless all of them say the same."""
        if self.size == 1:
            return
        said: list = [None] * self.size
        dist.all_gather_object(said, mine)
        if len(set(said)) > 1:
            ranks = {each: [rank for rank, theirs in enumerate(said) if theirs == each] for each in said}
            told = "; ".join(f"rank {', '.join(map(str, who))}: {each}" for each, who in ranks.items())
            raise Disagreement(
                f"the {self.size} processes do not see the same run, {told}; expected one folder that all of them read "
                "(processes of rows of their own: start each with WORLD_SIZE=1)"
            )

    def take_the_first_ones(self, tensors: Iterable[torch.Tensor]) -> None:
        """Gives these tensors, in every process, the values that they have in the first one."""
        if self.size > 1:
            for tensor in tensors:
                values = tensor.detach().contiguous()
                dist.broadcast(values, 0)
                tensor.detach().copy_(values)

    def average(self, values: torch.Tensor) -> None:
        """Turns `values` into their mean over all processes, on each of them."""
        dist.all_reduce(values)
        values /= self.size


@contextmanager
def joined(device: str | None = None) -> Iterator[World]:
    """This process in its world: joins the others where torchrun or srun started several."""
    with as_torchrun():
        size, here = size_asked_for(), devices.find(device, int(os.environ.get("LOCAL_RANK", 0)))
        if here.type in ("cuda", "xpu"):
            torch.get_device_module(here).set_device(here)
        if size == 1:
            yield World(device=here)
            return
        if here.type == "mps":
            raise ValueError(f"device mps: expected one process, for there is one such GPU, got {size}")
        mine = not dist.is_initialized()
        if mine:
            backend = dist.get_default_backend_for_device(here)
            dist.init_process_group(backend, timeout=PATIENCE, device_id=here if here.type == "cuda" else None)
        try:
            yield World(dist.get_rank(), dist.get_world_size(), here)
        finally:
            if mine:
                dist.destroy_process_group()


def launch(row: Mapping, processes: int, out: str | Path, **options) -> dict:
    """`train(row, out)` in several processes of this machine, from a notebook as well; rank 0's metrics."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from .checks import check

    check(row, processes)  # a wrong row is refused here, with its sentence
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="spawn",
    )
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = threads or str(max(1, torch.get_num_threads() // processes))
    try:
        return elastic_launch(config, _member)(row, out, options)[0]
    finally:
        if threads is None:
            del os.environ["OMP_NUM_THREADS"]


def _member(row: Mapping, out: str | Path, options: dict) -> dict:
    from .loop import train

    return train(row, out, **options)
