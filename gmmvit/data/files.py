"""Sets that stay image files: an index of what lies where, and the 70/15/15 split.

<data>/<name>/ holds images.tsv (label, bytes, file), complete.json, and split.json where official splits are pooled.
The images themselves stay where they were unpacked or put.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import sums
from .images import Files, verify_images
from .places import MARKER, record_of, root, write_json
from .sets import SHARES, DataSet

INDEX, SPLIT = "images.tsv", "split.json"
SPLIT_SEED = 0


class Listing(NamedTuple):
    """What the official files say: where the images are, the sorted classes, and (label, file) of each split."""

    home: Path
    classes: list[str]
    images: dict[str, list[tuple[int, str]]]


def seal(dataset: DataSet, folder: Path, listing: Listing, source: str) -> None:
    """Check a listing against the set's counts, decode its images, and write index, split and record."""
    wrong = []
    if len(listing.classes) != dataset.classes:
        wrong.append(f"{dataset.classes} classes were expected, {len(listing.classes)} are there")
    for split, count in dataset.counts.items():
        found = listing.images[split]
        if len(found) != count:
            wrong.append(f"{count:,} {split} images were expected, {len(found):,} are there")
        if empty := sorted(set(range(len(listing.classes))) - {label for label, _ in found}):
            wrong.append(f"no {split} image is of the class {listing.classes[empty[0]]} (and {len(empty) - 1} more)")
    everything = [row for split in dataset.counts for row in listing.images[split]]
    missing = [name for _, name in everything if not (listing.home / name).is_file()]
    if missing:
        wrong.append(f"{len(missing):,} listed images are missing, {missing[0]} for one")
    if not wrong:
        wrong = _first(verify_images([listing.home / name for _, name in everything], dataset.name))
    if wrong:
        raise ValueError(f"{dataset.name} in {listing.home}: {'; '.join(wrong)}")
    sizes = [os.path.getsize(listing.home / name) for _, name in everything]
    rows = [f"{label}\t{size}\t{name}\n" for (label, name), size in zip(everything, sizes, strict=True)]
    (folder / INDEX).write_text("".join(rows))
    names = [name for _, name in everything]
    sums.write(folder, names, sums.sums(listing.home, names, dataset.name))
    if dataset.pooled:
        write_json(folder / SPLIT, resplit([name for _, name in everything]))
    record = {"name": dataset.name, "source": source, "home": os.path.relpath(listing.home, root())}
    record |= {"counts": dataset.counts, "bytes": sum(sizes), "classes": listing.classes}
    write_json(folder / MARKER, record)


def resplit(names: list[str]) -> dict[str, list[str]]:
    """70/15/15 by one unstratified permutation with numpy's seed 0; what the floors leave over belongs to no split."""
    order, at, splits = np.random.RandomState(SPLIT_SEED).permutation(len(names)), 0, {}
    for split, share in SHARES.items():
        count = int(len(names) * share)
        splits[split] = [names[number] for number in order[at : at + count]]
        at += count
    return splits


def _first(sentences: list[str], most: int = 3) -> list[str]:
    rest = len(sentences) - most
    return sentences[:most] + [f"and {rest:,} more"] if rest > 0 else sentences


def home_of(folder: Path) -> Path:
    """The folder that an index's file names start from."""
    return Path(os.path.normpath(root() / record_of(folder)["home"]))


def _read_index(folder: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    lines = (folder / INDEX).read_text().splitlines()
    labels, sizes, names = zip(*(line.split("\t") for line in lines), strict=True)
    return list(names), np.array(labels, np.int64), np.array(sizes, np.int64)


def problems(dataset: DataSet, folder: Path) -> list[str]:
    """What is wrong with an indexed set, in sentences: files that went or changed, a split that is not the index's."""
    try:
        names, labels, sizes = _read_index(folder)
        split = json.loads((folder / SPLIT).read_text()) if dataset.pooled else {}
    except (OSError, ValueError) as error:
        return [f"the index or split in {folder} cannot be read ({error})"]
    wrong = []
    if len(names) != sum(dataset.counts.values()):
        wrong.append(f"the index lists {len(names):,} images, not {sum(dataset.counts.values()):,}")
    used = [name for part in split.values() for name in part]
    if len(set(used)) < len(used):
        wrong.append(f"{SPLIT} names {len(used) - len(set(used)):,} images twice")
    if foreign := set(used) - set(names):
        wrong.append(f"{SPLIT} names {len(foreign):,} images that are not in the index, {min(foreign)} for one")
    if dataset.pooled and list(split) != list(SHARES):
        wrong.append(f"{SPLIT} should have the parts {', '.join(SHARES)}, but has {', '.join(split)}")
    if len(labels) and not 0 <= labels.min() <= labels.max() < dataset.classes:
        wrong.append(
            f"the index should have the labels 0 to {dataset.classes - 1}, but has {labels.min()} to {labels.max()}"
        )
    home, known = home_of(folder), sums.read(folder)
    if list(known) != names:
        wrong.append(f"the sums of its files are not kept in {folder / sums.SUMS}")
    there = sums.stats(home, names)[:, 0]
    for number in np.flatnonzero(there != sizes):
        path = home / names[number]
        was = f"is not the file that was checked: its size was {sizes[number]:,} bytes"
        wrong.append(f"{path} {'is missing' if there[number] < 0 else was}")
    if not wrong:
        wrong = [f"{home / name} was altered: its sha256 is another" for name in sums.altered(folder, home, known)]
    return _first(wrong)


def open_files(dataset: DataSet, folder: Path) -> dict[str, Files]:
    """{split: Files} of an indexed set; a ValueError says what is wrong with it."""
    if wrong := problems(dataset, folder):
        raise ValueError(
            f"{dataset.name} is damaged: {'; '.join(wrong)}. `gmmvit data {dataset.name}` mends what it can"
        )
    names, labels, _ = _read_index(folder)
    files = partial(_subset, home_of(folder), np.array([name.encode() for name in names]), labels)
    if dataset.pooled:
        number = {name: row for row, name in enumerate(names)}
        parts = json.loads((folder / SPLIT).read_text())
        return {split: files([number[name] for name in part]) for split, part in parts.items()}
    ends = np.cumsum([0, *dataset.counts.values()])
    return {split: files(np.arange(*ends[at : at + 2])) for at, split in enumerate(dataset.counts)}


def _subset(home: Path, names: np.ndarray, labels: np.ndarray, rows: Sequence[int]) -> Files:
    return Files(home, names[rows], labels[rows])
