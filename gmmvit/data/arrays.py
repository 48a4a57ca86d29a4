"""Sets of 32 and 64 px: uint8 arrays in <data>/<name>/{train,test}_{images,labels}.npy, memory-mapped."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from torchvision.datasets.folder import pil_loader

from . import sums
from .places import MARKER, record_of, write_json
from .sets import DataSet

FILES = (
    *(f"{split}_{part}.npy" for split in ("train", "test") for part in ("images", "labels")),
    *("train.webp", "test.webp", "labels.json", MARKER),  # of the embedded sample
)


@dataclass(frozen=True)
class Arrays:
    """One split of a set of arrays; opened when first used, and again in every worker it is sent to."""

    folder: Path
    split: str

    @cached_property
    def images(self) -> np.ndarray:  # (N, S, S, 3) uint8
        mosaic = self.folder / f"{self.split}.webp"
        return untile(mosaic) if mosaic.is_file() else np.load(self.folder / f"{self.split}_images.npy", mmap_mode="r")

    @cached_property
    def labels(self) -> np.ndarray:  # (N,) uint8
        listed = self.folder / "labels.json"
        if listed.is_file():
            return np.array(json.loads(listed.read_text())[self.split], np.uint8)
        return np.load(self.folder / f"{self.split}_labels.npy")

    def __len__(self) -> int:
        return len(self.labels)

    def __reduce__(self):
        return Arrays, (self.folder, self.split)

    def read(self, indices: np.ndarray) -> np.ndarray:
        """The images (B, S, S, 3) with these numbers."""
        return self.images[indices]


def untile(mosaic: Path) -> np.ndarray:
    """The images of a mosaic of 32 px tiles, row by row."""
    pixels = np.asarray(pil_loader(str(mosaic)))
    rows, columns = pixels.shape[0] // 32, pixels.shape[1] // 32
    return pixels.reshape(rows, 32, columns, 32, 3).swapaxes(1, 2).reshape(rows * columns, 32, 32, 3)


def save(folder: Path, split: str, images: np.ndarray, labels: np.ndarray) -> None:
    """Both array files of a split."""
    np.save(folder / f"{split}_images.npy", np.ascontiguousarray(images, dtype=np.uint8))
    np.save(folder / f"{split}_labels.npy", np.asarray(labels, dtype=np.uint8))


def sum_of(array: np.ndarray) -> str:
    """sha256 of an array's bytes."""
    return hashlib.sha256(np.ascontiguousarray(array)).hexdigest()


def seal(dataset: DataSet, folder: Path, source: str) -> None:
    """Check what was laid out and write its record, which is what makes the set count as present."""
    splits = {split: Arrays(folder, split) for split in dataset.counts}
    found = {f"{s}_{part}": sum_of(getattr(splits[s], part)) for s in splits for part in ("images", "labels")}
    record = {"name": dataset.name, "source": source, "counts": {s: len(splits[s]) for s in splits}, "sha256": found}
    if wrong := problems(dataset, folder, record, deep=False) + differing(dataset.sums, found):
        raise ValueError(f"{dataset.name} from {source}: " + "; ".join(wrong))
    record["bytes"] = sum(path.stat().st_size for path in folder.iterdir() if path.name != MARKER)
    write_json(folder / MARKER, record)


def problems(dataset: DataSet, folder: Path, record: dict, deep: bool) -> list[str]:
    """What is wrong with a laid-out set, in sentences; `deep` reads every byte."""
    wrong = []
    for split, count in dataset.counts.items():
        arrays = Arrays(folder, split)
        try:
            images, labels = arrays.images, arrays.labels
            shape, listed = images.shape, labels.shape  # which an archive of arrays has not
        except (OSError, EOFError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            wrong.append(f"the {split} arrays in {folder} cannot be read ({error})")
            continue
        expected = (count, dataset.size, dataset.size, 3)
        if shape != expected or images.dtype != np.uint8:
            wrong.append(f"{split} images should be uint8 of shape {expected}, but are {images.dtype} {shape}")
        if listed != (count,):
            wrong.append(f"{split} should have {count:,} labels, but has {labels.size:,}")
        elif (present := len(np.unique(labels))) != dataset.classes or labels.max() >= dataset.classes:
            wrong.append(
                f"{split} should have the classes 0 to {dataset.classes - 1}, but {present} occur, up to {labels.max()}"
            )
        if deep:
            found = {f"{split}_{part}": sum_of(getattr(arrays, part)) for part in ("images", "labels")}
            known = (record.get("sha256") or {}) | dataset.sums
            wrong += differing({name: known.get(name) for name in found}, found)
    return wrong


def differing(expected: dict[str, str], found: dict[str, str]) -> list[str]:
    """A sentence for each array whose checksum is not the expected one."""
    return [
        f"{name} has the sha256 {found[name][:12]}…, not {str(wanted)[:12]}…: "
        "it was altered or is not the official data"
        for name, wanted in expected.items()
        if found[name] != wanted
    ]


def open_arrays(dataset: DataSet, folder: Path) -> dict[str, Arrays]:
    """{split: Arrays} of a laid-out set, every byte of it read if a file has another size or time than when it was
    last right; a ValueError says what is wrong with it."""
    now = sums.stats(folder, FILES)
    deep = len(sums.new(folder, now)) > 0
    if wrong := problems(dataset, folder, record_of(folder), deep):
        raise ValueError(
            f"{dataset.name} is damaged: {'; '.join(wrong)}. `gmmvit data {dataset.name}` mends what it can"
        )
    if deep:
        sums.remember(folder, now)
    return {split: Arrays(folder, split) for split in dataset.counts}
