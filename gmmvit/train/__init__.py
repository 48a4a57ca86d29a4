"""The training engine: one row, on one device or many processes, resumable at any moment.

metrics = train({"dataset": "cifar10-mini", "model": "vit", "mask": "gmm", "recipe": "short", "seed": 0}, "runs/first")
launch(row, processes=2, out="runs/first")    # or: torchrun --nproc-per-node 2 -m gmmvit train --dataset ...
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .checkpoint import OtherRun
    from .loop import Diverged, train
    from .processes import launch

__all__ = ["Diverged", "OtherRun", "launch", "train"]
LATER = {"Diverged": "loop", "OtherRun": "checkpoint", "launch": "processes", "train": "loop"}  # want torch


def __getattr__(name: str) -> object:
    """What wants torch, loaded when it is asked for: who reads a row does not."""
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{LATER[name]}", __name__), name)
