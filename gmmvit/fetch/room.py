"""The data room: fetch a set by its name, open it, and say of every set whether it is there and whole."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NamedTuple

from ..data import arrays, files
from ..data.arrays import Arrays
from ..data.images import Files
from ..data.opened import load, unsaid
from ..data.places import alone, folder_of, lock_of, record_of, staged
from ..data.sets import SETS, DataSet, find
from . import official_arrays, official_files
from .download import NotObtained


class Row(NamedTuple):
    """One line of `gmmvit data --check`."""

    name: str
    present: bool
    complete: bool
    bytes: int
    source: str
    problem: str  # "" where there is none


def obtain(name: str) -> dict[str, Arrays | Files]:
    """Fetch, check and lay out a set unless it is there and whole to the last byte; {split: samples}."""
    dataset, folder = find(name), folder_of(name)
    wrong = _problems(dataset, deep=True)
    if not wrong and not lock_of(folder).exists():
        return load(name)
    if wrong and name not in official_files.LIST and name not in official_arrays.LAY_OUT:
        raise NotObtained(f"expected {name}, whole, in {folder}: it comes with the repository, where git restores it")
    with alone(folder):
        if wrong := _problems(dataset, deep=True):  # still: nobody else has done it while we waited
            if record_of(folder) is not None:
                print(f"{name} is laid out anew: {'; '.join(wrong)}", file=sys.stderr)
            try:
                _lay_out(dataset)
            except FileNotFoundError as error:
                raise NotObtained(f"{name}: {error.filename} is missing from the official files") from error
            except OSError as error:  # NotObtained, or a full disk
                raise NotObtained(f"{name} could not be obtained: {error}") from error
    return load(name)


def _lay_out(dataset: DataSet) -> None:
    if dataset.name in official_files.LIST:
        listing, source = official_files.LIST[dataset.name](dataset)
        with staged(folder_of(dataset.name)) as folder:
            files.seal(dataset, folder, listing, source)
    else:
        with staged(folder_of(dataset.name)) as folder:
            arrays.seal(dataset, folder, official_arrays.LAY_OUT[dataset.name](dataset, folder))


def _problems(dataset: DataSet, deep: bool) -> list[str]:
    folder = folder_of(dataset.name)
    record = record_of(folder)
    if record is None:
        return [f"not there; `gmmvit data {dataset.name}` fetches it, or says what to do"]
    if wrong := unsaid(dataset, record):
        return [wrong]
    if dataset.storage == "arrays":
        return arrays.problems(dataset, folder, record, deep)
    return files.problems(dataset, folder)


def check(names: Iterable[str] = ()) -> list[Row]:
    """Look at every byte of the named sets (of all, if none is named)."""
    rows = []
    for name in names or SETS:
        wrong = _problems(find(name), deep=True)
        record = record_of(folder_of(name)) or {}
        known = record.get("bytes", 0), record.get("source", "")
        rows.append(Row(name, bool(record), not wrong, *known, "; ".join(wrong)))
    return rows
