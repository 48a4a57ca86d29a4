"""Data sets by name: opened, augmented, and served in a reproducible order (gmmvit.fetch obtains them).

splits = gmmvit.data.load("cifar10")                         # {"train": ..., "test": ...}
augment = augmentation("gmm", SETS["cifar10"], train=True)
keys = epoch_order(len(splits["train"]), seed=0, epoch=0, passes=3)
for images, labels in batches(splits["train"], augment, keys, 128, seed=0): ...
"""

from .augment import RECIPES, augmentation
from .draws import epoch_order
from .images import verify_images
from .loader import batches
from .opened import load
from .places import downloads, root
from .sets import SETS, DataSet, find

__all__ = [
    "RECIPES",
    "SETS",
    "DataSet",
    "augmentation",
    "batches",
    "downloads",
    "epoch_order",
    "find",
    "load",
    "root",
    "verify_images",
]
