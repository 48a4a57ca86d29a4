"""The data sets of detection and segmentation by name: found, looked at once, opened.

What was found is written to <data>/<name>/complete.json: the home, and how many files of how many bytes it had.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..data.places import MARKER, alone, downloads, folder_of, locate, record_of, root, write_json
from ..errors import unknown
from . import ade, coco, shapes
from .detector import ANCHORS


class DenseSet(NamedTuple):
    """What is known of a data set before a file of it is read."""

    name: str
    kind: str  # detection or segmentation
    homes: tuple[str, ...]  # where its official files may lie, under data/downloads/ or data/
    size: int  # the shorter side of an image, to which the recipe's sizes are scaled (coco: 800, ade20k: 512)
    anchors: tuple[int, ...] = ANCHORS
    make: Callable[[Path], None] | None = None
    last: str = ""  # the file that it makes last


SMALL_ANCHORS = (8, 16, 32, 64, 128)
_ALL = (
    DenseSet("coco", "detection", ("coco", "coco2017"), 800),
    DenseSet("ade20k", "segmentation", ("ADEChallengeData2016", "ade20k"), 512),
    DenseSet("coco-shapes", "detection", ("coco-shapes",), shapes.SIDE, SMALL_ANCHORS, shapes.write_coco, coco.LAST),
    DenseSet("ade20k-shapes", "segmentation", ("ade20k-shapes",), shapes.SIDE, make=shapes.write_ade, last=ade.CLASSES),
)
SETS = {each.name: each for each in _ALL}
ROOMS = {"detection": coco, "segmentation": ade}
MOST = 20  # sentences of an error


def find(name: str) -> DenseSet:
    """The row of a data set; a ValueError names the nearest one."""
    if name not in SETS:
        raise ValueError(unknown("data set of detection and segmentation", name, SETS))
    return SETS[name]


def obtain(name: str, say: Callable[[str], None] = print) -> dict[str, coco.Coco | ade.Ade]:
    """Look at every file of a set and remember that it is whole; {split: samples}. Shapes are drawn first."""
    with alone(folder_of(find(name).name)):
        _look_at(find(name), say)
    return load(name)


def _look_at(dataset: DenseSet, say: Callable[[str], None]) -> None:
    name, folder = dataset.name, folder_of(dataset.name)
    if dataset.make and not (folder / dataset.last).exists():
        dataset.make(folder)
    found = locate(*(f"{home}/annotations" for home in dataset.homes))
    if found is None:
        raise FileNotFoundError(
            f"{name} was not found: put the official files into {downloads() / dataset.homes[0]}, so that "
            "annotations/ lies in it"
        )
    home = found.parent
    wrong, left_out = ROOMS[dataset.kind].problems(home)
    for sentence in left_out:
        say(f"{name}: {sentence}; left out of training")
    if wrong:
        rest = [f"and {len(wrong) - MOST:,} more"] if len(wrong) > MOST else []
        raise ValueError("\n".join([f"{name} in {home} has {len(wrong):,} problems:", *wrong[:MOST], *rest]))
    folder.mkdir(parents=True, exist_ok=True)
    record = {"name": name, "home": os.path.relpath(home, root()), "left_out": left_out}
    write_json(folder / MARKER, record | _weight(home))


def load(name: str) -> dict[str, coco.Coco | ade.Ade]:
    """{"train": ..., "test": ...} of a set that was looked at, now if never before, and has not changed since."""
    dataset, folder = find(name), folder_of(name)
    if record_of(folder) is None:
        with alone(folder):
            if record_of(folder) is None:  # still: no other process has looked while we waited
                _look_at(dataset, print)
    record = record_of(folder)
    home = Path(os.path.normpath(root() / record["home"]))
    now = _weight(home)
    if any(record[key] != value for key, value in now.items()):
        raise ValueError(
            f"{name} in {home} is not what was looked at: it had {record['files']:,} files of {record['bytes']:,} "
            f"bytes, and has {now['files']:,} of {now['bytes']:,}. Remove {folder / MARKER} to look again"
        )
    return {split: ROOMS[dataset.kind].read_split(home, split) for split in ("train", "test")}


def _weight(home: Path) -> dict[str, int]:
    """Files and bytes below a folder, without the record itself."""
    sizes = [
        os.path.getsize(os.path.join(folder, name))
        for folder, _, names in os.walk(home)
        for name in names
        if name != MARKER
    ]
    return {"files": len(sizes), "bytes": sum(sizes)}
