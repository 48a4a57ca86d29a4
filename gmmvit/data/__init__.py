"""Data sets by name: opened, augmented, and served in a reproducible order (gmmvit.fetch obtains them).

splits = gmmvit.data.load("cifar10")                         # {"train": ..., "test": ...}
augment = augmentation("gmm", SETS["cifar10"], train=True)
keys = epoch_order(len(splits["train"]), seed=0, epoch=0, passes=3)
images, labels = Stream(splits["train"], augment)[keys[:128]]
"""

from ..core.errors import missing

try:
    from .augment import AUGMENTATIONS, augmentation
    from .draws import epoch_order
    from .opened import load
    from .sets import SETS, DataSet, find
except ModuleNotFoundError as error:
    raise missing(error) from error

__all__ = ["AUGMENTATIONS", "SETS", "DataSet", "augmentation", "epoch_order", "find", "load"]
