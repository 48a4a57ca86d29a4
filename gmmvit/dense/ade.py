"""ADE20K's SceneParse150 in its official layout: <home>/{images,annotations}/{training,validation}, objectInfo150.txt.

An annotation is a PNG of numbers: 0 is no class and not counted, 1 to 150 are the classes.
"""

from __future__ import annotations

import csv
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from ..data.images import opened
from ..data.progress import bar

SPLITS = {"train": "training", "test": "validation"}
CLASSES = "objectInfo150.txt"
PLACES = ("images", "annotations", CLASSES)  # of its files
IGNORED = 255  # of pixels that have no class


@dataclass(frozen=True)
class Ade:
    """One split."""

    home: Path
    split: str
    names: np.ndarray  # (N,) bytes, without their ends
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def labels(self) -> np.ndarray:
        """The number of each sample: what a batch carries beside the images."""
        return np.arange(len(self))

    def read(self, indices: np.ndarray) -> list[tuple[Image.Image, np.ndarray]]:
        """The RGB images with these numbers and their classes (H, W) uint8, from 0; 255 where there is none."""
        samples = []
        for index in indices:
            image, annotation = files(self.home, self.split, self.names[index].decode())
            samples.append((opened(image), numbers(annotation) - np.uint8(1)))  # 0 becomes 255
        return samples


def files(home: Path, split: str, name: str) -> tuple[Path, Path]:
    """Image and annotation of a sample."""
    folder = SPLITS[split]
    return home / "images" / folder / f"{name}.jpg", home / "annotations" / folder / f"{name}.png"


def numbers(path: Path) -> np.ndarray:
    """The numbers of an annotation, (H, W) uint8; a ValueError names a file that has none."""
    try:
        with Image.open(path) as file:
            if file.mode not in ("L", "P"):
                raise ValueError(f"its mode is {file.mode}, not one number a pixel")
            return np.asarray(file)
    except Exception as error:  # of Pillow, whose every format has its own
        raise ValueError(f"{path} cannot be decoded ({error or type(error).__name__})") from error


def read_split(home: Path, split: str) -> Ade:
    """A split that was checked."""
    names = sorted(path.stem for path in (home / "images" / SPLITS[split]).glob("*.jpg"))
    return Ade(home, split, np.array([name.encode() for name in names]), class_names(home))


def class_names(home: Path) -> tuple[str, ...]:
    """The first word of each class, in the order of their numbers."""
    with open(home / CLASSES, newline="") as file:
        return tuple(row["Name"].partition(",")[0] for row in csv.DictReader(file, delimiter="\t"))


def problems(home: Path) -> tuple[list[str], list[str]]:
    """What is wrong with a set, by name; every file is looked at. Nothing is left out of its training."""
    try:
        classes = len(class_names(home))
    except (OSError, LookupError, AttributeError, ValueError, csv.Error) as error:  # without a column, or not text
        return [f"{home / CLASSES} cannot be read ({error})"], []
    wrong = []
    for split, folder in SPLITS.items():
        images = {path.stem for path in (home / "images" / folder).glob("*.jpg")}
        annotations = {path.stem for path in (home / "annotations" / folder).glob("*.png")}
        wrong += [f"{files(home, split, name)[1]} is missing" for name in sorted(images - annotations)]
        wrong += [
            f"{files(home, split, name)[0]} is missing, though it is annotated" for name in sorted(annotations - images)
        ]
        if not images:
            wrong.append(f"{home / 'images' / folder} has no images")
        both = sorted(images & annotations)
        with ThreadPoolExecutor() as pool:  # decoding releases the interpreter's lock
            found = pool.map(lambda name, split=split: _problem(*files(home, split, name), classes), both)
            wrong += [sentence for sentence in bar(found, total=len(both), desc=f"looking at {folder}") if sentence]
    return wrong, []


def _problem(image: Path, annotation: Path, classes: int) -> str:
    """What is wrong with one sample."""
    try:
        labels, size = numbers(annotation), opened(image).size
    except ValueError as error:
        return str(error)
    if labels.shape[::-1] != size:
        rows, columns = labels.shape
        return f"{annotation} is {columns} x {rows}, its image {size[0]} x {size[1]}"
    if labels.max(initial=0) > classes:
        return f"{annotation} has the label {labels.max()}: expected 0 to {classes}"
    return ""
