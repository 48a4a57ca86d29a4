"""Keeps freed memory with the process on Linux: glibc gives large tensors back, and faulting them in costs."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h


def keep_freed_memory() -> bool:
    """Asks malloc to reuse large blocks instead of returning them (6 % of a masked training step on a CPU)."""
    return _set({M_MMAP_THRESHOLD: 1 << 30, M_TRIM_THRESHOLD: (1 << 31) - 1, M_TOP_PAD: 1 << 28})


def give_freed_memory_back() -> bool:
    """Undoes that in a forked process: blocks of 4 MB and above, such as a batch of images, go back when freed."""
    return _set({M_MMAP_THRESHOLD: 1 << 22, M_TRIM_THRESHOLD: 1 << 23, M_TOP_PAD: 1 << 17})


def _set(settings: dict[int, int]) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and all([mallopt(name, value) for name, value in settings.items()])
