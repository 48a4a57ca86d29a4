"""Data sets by name: fetched, verified, laid out, opened, augmented, and served in a reproducible order.

splits = gmmvit.data.obtain("cifar10")                      # {"train": ..., "test": ...}
augment = augmentation("gmm", SETS["cifar10"], train=True)
keys = epoch_order(len(splits["train"]), seed=0, epoch=0, passes=3)
for images, labels in batches(splits["train"], augment, keys, 128, seed=0): ...
"""

from .augment import RECIPES, augmentation
from .draws import epoch_order
from .fetch import NotObtained
from .images import verify_images
from .loader import batches
from .places import downloads, root
from .room import Row, check, load, obtain
from .sets import SETS, DataSet, find

__all__ = [
    "RECIPES",
    "SETS",
    "DataSet",
    "NotObtained",
    "Row",
    "augmentation",
    "batches",
    "check",
    "downloads",
    "epoch_order",
    "find",
    "load",
    "obtain",
    "root",
    "verify_images",
]
