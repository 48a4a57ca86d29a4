"""The data sets of detection and segmentation, opened; gmmvit.fetch finds, draws and looks at them.

What was found is written in <data>/<name>/complete.json: the home, and how many files of how many bytes it had.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..data import sums
from ..data.places import MARKER, folder_of, record_of, root
from . import ade, coco
from .sets import DenseSet, find

LAYOUTS = {"detection": coco, "segmentation": ade}


def load(name: str) -> dict[str, coco.Coco | ade.Ade]:
    """{"train": ..., "test": ...} of a set that was looked at and has not changed since."""
    dataset, folder = find(name), folder_of(name)
    if (record := record_of(folder)) is None:
        raise FileNotFoundError(f"{name} is not in {folder}: fetch it with `gmmvit data {name}`")
    if wrong := changed(name, record):
        raise ValueError(wrong)
    return {split: LAYOUTS[dataset.kind].read_split(home_of(record), split) for split in ("train", "test")}


def home_of(record: dict) -> Path:
    """The folder of a set's official files."""
    return Path(os.path.normpath(root() / record["home"]))


def files_of(dataset: DenseSet, home: Path) -> list[str]:
    """The files of a set, relative to its home."""
    return list(sums.below(home, LAYOUTS[dataset.kind].PLACES))


def changed(name: str, record: dict) -> str:
    """A sentence where a set is not what was looked at."""
    folder = folder_of(name)
    again = f". Remove {folder / MARKER} to look again"
    if not {"home", "files", "bytes"} <= record.keys():
        return f"{folder / MARKER} does not say where the files of {name} are{again}"
    home, known = home_of(record), sums.read(folder)
    names = files_of(find(name), home)
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
