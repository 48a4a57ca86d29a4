"""What a timing belongs to: processor, GPU, threads, versions."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import timm
import torch

from ..core import native


def machine() -> dict[str, object]:
    """What a timing belongs to."""
    return {
        "processor": _processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "native_attention": native.library() is not None,
    }


@contextmanager
def computing(threads: int | None) -> Iterator[None]:
    """So many threads compute inside, whatever the environment says; None leaves it to that."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
