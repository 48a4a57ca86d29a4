"""Obtains, verifies and lays out every data set; says what is to be put where by hand.

splits = gmmvit.fetch.obtain("cifar10")                      # {"train": ..., "test": ...}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from ..core.errors import unknown
from ..data import SETS
from ..data.places import folder_of, record_of, write_json
from ..dense.sets import SETS as DENSE
from . import annotated, labelled
from .download import NotObtained

__all__ = ["KEEPERS", "Found", "NotObtained", "check", "content", "keeper", "obtain", "record", "sentences"]
KEEPERS: dict[str, ModuleType] = dict.fromkeys(SETS, labelled) | dict.fromkeys(DENSE, annotated)


class Found(NamedTuple):
    """One line of `gmmvit data --check`."""

    name: str
    present: bool
    complete: bool
    bytes: int
    source: str
    problem: str  # "" where there is none


def obtain(name: str) -> dict:
    """{split: samples} of a set, which is fetched or drawn, checked and laid out unless it is there and whole."""
    return keeper(name).obtain(name)


def check(names: Iterable[str] = ()) -> list[Found]:
    """Whether the named sets (all, if none is named) are there and whole."""
    found = []
    for name in names or KEEPERS:
        wrong, record = keeper(name).wrong(name), record_of(folder_of(name)) or {}
        source = record.get("source") or record.get("home", "")
        found.append(Found(name, bool(record), not wrong, record.get("bytes", 0), source, wrong))
    return found


def sentences(found: Sequence[Found]) -> list[str]:
    """A sentence for each set that is not whole; those that are not there share one where they are several."""
    lines = [f"{each.name}: {each.problem}" for each in found if each.present and each.problem]
    absent = [each for each in found if not each.present]
    if len(absent) > 1:
        names = ", ".join(each.name for each in absent)
        return [*lines, f"not there: {names}; `gmmvit data NAME` fetches or draws a set, or says what to do"]
    return lines + [f"{each.name}: {each.problem}" for each in absent]


def content(name: str) -> dict:
    """{name, counts, sha256} of a set that is there, wherever it came from: the record that runs depend on."""
    return keeper(name).content(name)


def record(name: str, path: Path) -> dict:
    """Obtains a set and writes down what it contains; {split: samples}."""
    sources = obtain(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content(name))
    return sources


def keeper(name: str) -> ModuleType:
    """The module that obtains a set; a ValueError names the nearest one."""
    if name not in KEEPERS:
        raise ValueError(f"{unknown('data set', name, KEEPERS)}; `gmmvit data` lists them all")
    return KEEPERS[name]
