"""One process or many: who we are, what is summed over all of us, and starting the others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist


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

    def mean_gradients(self, parameters: Iterable[torch.nn.Parameter], *extra: torch.Tensor) -> torch.Tensor:
        """Averages the gradients, and some scalars with them, in one exchange."""
        scalars = torch.stack([value.to(self.device, torch.float32, non_blocking=True) for value in extra])
        if self.size == 1:
            return scalars
        gradients = [p.grad for p in parameters if p.grad is not None]  # the same ones everywhere
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), scalars])
        dist.all_reduce(flat)
        flat /= self.size
        parts = flat.split([*(gradient.numel() for gradient in gradients), len(extra)])
        torch._foreach_copy_(gradients, [part.view_as(g) for part, g in zip(parts, gradients, strict=False)])
        return parts[-1]


def size_asked_for() -> int:
    """How many processes torch's launcher started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", 1))


@contextmanager
def joined(device: str | None = None) -> Iterator[World]:
    """This process in its world: joins the others where torch's launcher started several."""
    size, local = size_asked_for(), int(os.environ.get("LOCAL_RANK", 0))
    kind = device or (torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu")
    here = torch.device(kind, local) if kind == "cuda" and torch.device(kind).index is None else torch.device(kind)
    if here.type == "cuda":
        torch.cuda.set_device(here)
    if size == 1:
        yield World(device=here)
        return
    mine = not dist.is_initialized()
    if mine:
        dist.init_process_group("nccl" if here.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size(), here)
    finally:
        if mine:
            dist.destroy_process_group()


def launch(row: Mapping, processes: int, out: str | Path, **options) -> dict:
    """`train(row, out)` in several processes of this machine, from a notebook as well; rank 0's metrics."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from ..checks import check

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
