"""The processes that load: how many, what they leave to their parent, and the shared memory they need."""

from __future__ import annotations

import os
import signal

import torch

from .memory import give_freed_memory_back

ITEM = 64  # images that a process loads at a time; larger batches are put together where they are used
AHEAD = 2  # items that each of them loads ahead
MOST, MOST_OF_ARRAYS = 16, 2  # processes; one core augments 5,000 to 36,000 images of 32 px a second
SHARED = "/dev/shm"


def cores() -> int:
    """The cores that one process of one row may use: those of its affinity, shared with whoever runs beside it."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, allowed // neighbours())


def neighbours() -> int:
    """Processes that train on this machine: those of this row, times the rows that `make rows` runs side by side."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or 1) * int(os.environ.get("GMMVIT_JOBS") or 1)


def loading_processes(device: torch.device, arrays: bool) -> int:
    """Beside an accelerator, a process for each other core; on a CPU none: augmenting takes about 2 % of a step."""
    if device.type == "cpu":
        return 0
    return max(1, min(MOST_OF_ARRAYS if arrays else MOST, cores() - 1))


def shared_memory_needed(batch: int, size: int, workers: int, pinned: bool = True) -> int:
    """Bytes of shared memory that so many processes may fill with images of `size` px for batches of `batch`.

    Pinned batches are copies; else the batch of a step and the one after it stay there as well.
    """
    image = 4 * size * size  # three bytes a pixel; in the mean the noise of erased boxes is less than another one
    images = AHEAD * workers * min(batch, ITEM) + (0 if pinned else 2 * batch)
    return images * image if workers else 0


def shared_memory_free() -> int | None:
    """Bytes that are free there; None where shared memory is no file system of its own."""
    try:
        found = os.statvfs(SHARED)
    except (OSError, AttributeError):
        return None
    return found.f_bavail * found.f_frsize


def too_little_shared_memory(batch: int, size: int, workers: int, free: int | None, pinned: bool = True) -> str:
    """A sentence where the processes of this machine would run out of shared memory, and else nothing."""

    def needed(workers: int) -> int:
        return neighbours() * shared_memory_needed(batch, size, workers, pinned)

    if free is None or needed(workers) <= free:
        return ""
    fitting = max(fewer for fewer in range(workers) if needed(fewer) <= free)
    return (
        f"{SHARED}: expected {needed(workers) / 2**20:,.0f} MB free for {workers} loading processes, got "
        f"{free / 2**20:,.0f} MB; enlarge it (docker run --shm-size={-(-needed(workers) // 2**30)}g), or --workers "
        f"{fitting} fits"
    )


def require_shared_memory(batch: int, size: int, workers: int, device: torch.device) -> None:
    """Refuses to begin where the loading processes of a run on this device would run out of shared memory."""
    if wrong := too_little_shared_memory(batch, size, workers, shared_memory_free(), device.type == "cuda"):
        raise ValueError(wrong)


def begin(worker: int) -> None:
    """What a loading process does first: a signal to the whole group is its parent's to answer."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    give_freed_memory_back()
