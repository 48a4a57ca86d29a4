"""Data sets by name: opened, augmented, and served in a reproducible order (gmmvit.fetch obtains them).

splits = gmmvit.data.load("cifar10")                         # {"train": ..., "test": ...}
augment = augmentation("gmm", SETS["cifar10"], train=True)
keys = epoch_order(len(splits["train"]), seed=0, epoch=0, passes=3)
images, labels = Stream(splits["train"], augment)[keys[:128]]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ..core.errors import missing
from .sets import SETS, DataSet, find

if TYPE_CHECKING:
    from .augment import AUGMENTATIONS, augmentation
    from .draws import epoch_order
    from .opened import load

__all__ = ["AUGMENTATIONS", "SETS", "DataSet", "augmentation", "epoch_order", "find", "load"]
LATER = {"AUGMENTATIONS": "augment", "augmentation": "augment", "epoch_order": "draws", "load": "opened"}  # want torch


def __getattr__(name: str) -> object:
    """What wants torch and torchvision, loaded when it is asked for: who reads a row wants neither."""
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f".{LATER[name]}", __name__), name)
    except ModuleNotFoundError as error:
        raise missing(error) from error
