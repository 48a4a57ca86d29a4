"""The data sets of detection and segmentation by name: found, looked at once, opened.

What was found is written to <data>/<name>/complete.json: the home, and how many files of how many bytes it had.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from ..core.errors import unknown
from ..data import sums
from ..data.places import MARKER, alone, downloads, folder_of, locate, record_of, root, scratch, write_json
from ..fetch.room import Row
from . import ade, coco, shapes
from .detector import ANCHORS


class DenseSet(NamedTuple):
    """What is known of a data set before a file of it is read."""

    name: str
    kind: str  # detection or segmentation
    homes: tuple[str, ...]  # where its official files may lie, under data/downloads/ or data/
    images: dict[str, int]  # of each split, in training those with objects
    classes: int
    size: int  # the shorter side of an image, to which the recipe's sizes are scaled (coco: 800, ade20k: 512)
    anchors: tuple[int, ...] = ANCHORS
    make: Callable[[Path], None] | None = None
    last: str = ""  # the file that it makes last


SMALL_ANCHORS = (8, 16, 32, 64, 128)
_ALL = (
    DenseSet("coco", "detection", ("coco", "coco2017"), {"train": 117_266, "test": 5_000}, 80, 800),
    DenseSet("ade20k", "segmentation", ("ADEChallengeData2016", "ade20k"), {"train": 20_210, "test": 2_000}, 150, 512),
    DenseSet(
        *("coco-shapes", "detection", ("coco-shapes",), shapes.COUNTS, len(shapes.NAMES), shapes.SIDE, SMALL_ANCHORS),
        make=shapes.write_coco,
        last=coco.LAST,
    ),
    DenseSet(  # the ground is a class
        *("ade20k-shapes", "segmentation", ("ade20k-shapes",), shapes.COUNTS, 1 + len(shapes.NAMES), shapes.SIDE),
        make=shapes.write_ade,
        last=ade.CLASSES,
    ),
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
    """Look at every file of a set, if it is not as it was looked at, and remember that it is whole; {split: samples}.

    Shapes are drawn first, and drawn again where they are not as they were drawn.
    """
    dataset, folder = find(name), folder_of(name)
    with alone(folder):
        record = record_of(folder)
        if record is None or (wrong := _changed(name, folder, record)):
            if dataset.make and record is not None:
                say(f"{wrong}; they are drawn again")
                _draw(dataset)
            _look_at(dataset, say)
    return load(name)


def _draw(dataset: DenseSet) -> None:
    """Draws shapes beside their folder and moves them there, what is made last at the end."""
    folder = folder_of(dataset.name)
    with scratch(folder) as drawn:
        dataset.make(drawn)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARKER).unlink(missing_ok=True)
        _clear(folder / dataset.last)
        last = Path(dataset.last).parts[0]
        for part in sorted(drawn.iterdir(), key=lambda part: part.name == last):
            _clear(folder / part.name)
            os.replace(part, folder / part.name)


def _clear(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _look_at(dataset: DenseSet, say: Callable[[str], None]) -> None:
    name, folder = dataset.name, folder_of(dataset.name)
    if dataset.make and not (folder / dataset.last).exists():
        _draw(dataset)
    found = locate(*(f"{home}/annotations" for home in dataset.homes))
    if found is None:
        raise FileNotFoundError(
            f"{name} was not found: put the official files into {downloads() / dataset.homes[0]}, so that "
            "annotations/ lies in it"
        )
    home, kind = found.parent, ROOMS[dataset.kind]
    now = sums.stats(home, _names(dataset, home))  # before the look, so that what changes meanwhile is looked at again
    wrong, left_out = kind.problems(home)
    if wrong and dataset.make:
        say(f"{name} is drawn again: {wrong[0]}")
        _draw(dataset)
        now = sums.stats(home, _names(dataset, home))
        wrong, left_out = kind.problems(home)
    for sentence in left_out:
        say(f"{name}: {sentence}; left out of training")
    if wrong:
        rest = [f"and {len(wrong) - MOST:,} more"] if len(wrong) > MOST else []
        raise ValueError("\n".join([f"{name} in {home} has {len(wrong):,} problems:", *wrong[:MOST], *rest]))
    folder.mkdir(parents=True, exist_ok=True)
    names = _names(dataset, home)
    sums.write(folder, names, sums.sums(home, names, name))
    sums.remember(folder, now)
    record = {"name": name, "home": os.path.relpath(home, root()), "left_out": left_out}
    write_json(folder / MARKER, record | {"files": len(names), "bytes": int(now[:, 0].sum())})


def _names(dataset: DenseSet, home: Path) -> list[str]:
    """The files of a set, relative to its home."""
    return list(sums.below(home, ROOMS[dataset.kind].PLACES))


def check(names: Iterable[str] = ()) -> list[Row]:
    """The line of each named set (of all, if none is named), as gmmvit.fetch.room has it; no file is read again."""
    rows = []
    for name in names or SETS:
        dataset, folder = find(name), folder_of(name)
        record = record_of(folder)
        if record is None:
            way = "draws it" if dataset.make else "looks for it, or says what to do"
            wrong = f"not there; `gmmvit data {name}` {way}"
            rows.append(Row(name, False, False, 0, "", wrong))
        else:
            wrong = _changed(name, folder, record)
            rows.append(Row(name, True, not wrong, record.get("bytes", 0), record.get("home", ""), wrong))
    return rows


def content(name: str) -> dict:
    """{name, counts, sha256} of a set that is there: of the sums of its files."""
    files = {"files": hashlib.sha256((folder_of(name) / sums.SUMS).read_bytes()).hexdigest()}
    return {"name": name, "counts": {split: len(source) for split, source in load(name).items()}, "sha256": files}


def load(name: str) -> dict[str, coco.Coco | ade.Ade]:
    """{"train": ..., "test": ...} of a set that was looked at, now if never before, and has not changed since."""
    dataset, folder = find(name), folder_of(name)
    if record_of(folder) is None:
        with alone(folder):
            if record_of(folder) is None:  # still: no other process has looked while we waited
                _look_at(dataset, print)
    record = record_of(folder)
    if changed := _changed(name, folder, record):
        raise ValueError(changed)
    return {split: ROOMS[dataset.kind].read_split(_home(record), split) for split in ("train", "test")}


def _home(record: dict) -> Path:
    return Path(os.path.normpath(root() / record["home"]))


def _changed(name: str, folder: Path, record: dict) -> str:
    """A sentence where a set is not what was looked at."""
    again = f". Remove {folder / MARKER} to look again"
    if not {"home", "files", "bytes"} <= record.keys():
        return f"{folder / MARKER} does not say where the files of {name} are{again}"
    home, known = _home(record), sums.read(folder)
    names = _names(find(name), home)
    now = int(sums.stats(home, names)[:, 0].sum())
    if (len(names), now) != (record["files"], record["bytes"]):
        return (
            f"{name} in {home} is not what was looked at: it had {record['files']:,} files of {record['bytes']:,} "
            f"bytes, and has {len(names):,} of {now:,}{again}"
        )
    if list(known) != names:
        return f"{name} in {home} is not what was looked at: {folder / sums.SUMS} does not list its files{again}"
    if wrong := sums.altered(folder, home, known):
        more = f", and {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
        return f"{name} in {home} is not what was looked at: {wrong[0]} was altered{more}{again}"
    return ""
