"""The table of data sets: classes, sizes, counts, channel statistics, checksums."""

from __future__ import annotations

from typing import NamedTuple

from ..core.errors import unknown

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and std of each channel
CIFAR10 = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CIFAR100 = (0.5070, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
SVHN = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
TINY_IMAGENET = (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)
POOLED = "pooled"  # official splits thrown together, to be split 70/15/15 again
SHARES = {"train": 0.7, "val": 0.15, "test": 0.15}  # times the images, rounded down as floating point has it: Dogs has
# 20,580 * 0.7 = 14,405.999..., and 14,405 training images in the public code

SUMS = {  # sha256 of the arrays' bytes, images as N x S x S x 3
    "cifar10-mini": {
        "train_images": "4e5ac895e46a9b569a45d0220f845bd1c317a6bbb96ae905af26bf5b6ca10a16",
        "train_labels": "cc4c5aa56e0ea34249936cd7a5956a98ebba578dba9473e0684b0d70ce1161df",
        "test_images": "cc2bd4479eda140793858a9ea7f9016e6870fefd7f69f172720267e933ec44a5",
        "test_labels": "bf5fd7ab55257c7eeece32a36d229c4767d2479b59c8d506b7e35494f9cbf574",
    },
    "cifar10": {
        "train_images": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "test_images": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    },
}


class DataSet(NamedTuple):
    """What is known of a data set before a file of it is read."""

    name: str
    classes: int
    size: int  # pixels of a side, as the models see it
    counts: dict[str, int]  # images of each split; the official validation set of (Tiny-)ImageNet is called test
    statistics: tuple[tuple[float, ...], tuple[float, ...]] = IMAGENET
    storage: str = "files"  # or "arrays": uint8, memory-mapped
    policy: str = ""  # of AutoAugment, in the gmm recipe

    @property
    def mean(self) -> tuple[float, ...]:
        return self.statistics[0]

    @property
    def std(self) -> tuple[float, ...]:
        return self.statistics[1]

    @property
    def sums(self) -> dict[str, str]:
        return SUMS.get(self.name, {})

    @property
    def pooled(self) -> bool:
        return POOLED in self.counts


_ALL = (
    DataSet("cifar10-mini", 10, 32, {"train": 2_000, "test": 1_000}, CIFAR10, "arrays", "cifar10"),
    DataSet("cifar10", 10, 32, {"train": 50_000, "test": 10_000}, CIFAR10, "arrays", "cifar10"),
    DataSet("cifar100", 100, 32, {"train": 50_000, "test": 10_000}, CIFAR100, "arrays", "cifar10"),
    DataSet("svhn", 10, 32, {"train": 73_257, "test": 26_032}, SVHN, "arrays", "svhn"),
    DataSet("tiny-imagenet", 200, 64, {"train": 100_000, "test": 10_000}, TINY_IMAGENET, "arrays", "imagenet"),
    DataSet("pets", 37, 224, {POOLED: 7_349}),
    DataSet("caltech101", 102, 224, {POOLED: 9_144}),
    DataSet("cars", 196, 224, {POOLED: 16_185}),
    DataSet("dogs", 120, 224, {POOLED: 20_580}),
    DataSet("imagenet", 1_000, 224, {"train": 1_281_167, "test": 50_000}),
)
SETS = {dataset.name: dataset for dataset in _ALL}


def find(name: str) -> DataSet:
    """The row of a data set; a ValueError names the nearest one."""
    if name not in SETS:
        raise ValueError(unknown("data set", name, SETS))
    return SETS[name]
