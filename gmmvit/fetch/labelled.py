"""The sets of labelled images: fetched, checked, and laid out as arrays or as an index of files."""

from __future__ import annotations

import hashlib
import sys

from ..data import arrays, files
from ..data.arrays import Arrays
from ..data.files import INDEX, SPLIT
from ..data.images import Files
from ..data.opened import load, unsaid
from ..data.places import alone, folder_of, lock_of, record_of, staged
from ..data.sets import DataSet, find
from ..data.sums import SUMS
from . import official_arrays, official_files
from .download import NotObtained


def obtain(name: str) -> dict[str, Arrays | Files]:
    """Fetch, check and lay out a set unless it is there and whole to the last byte; {split: samples}."""
    dataset, folder = find(name), folder_of(name)
    wrong = _problems(dataset)
    if not wrong and not lock_of(folder).exists():
        return load(name)
    if wrong and name not in official_files.LIST and name not in official_arrays.LAY_OUT:
        raise NotObtained(f"expected {name}, whole, in {folder}: it comes with the repository, where git restores it")
    with alone(folder):
        if wrong := _problems(dataset):  # still: nobody else has done it while we waited
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


def _problems(dataset: DataSet) -> list[str]:
    folder = folder_of(dataset.name)
    record = record_of(folder)
    if record is None:
        return [f"not there; `gmmvit data {dataset.name}` fetches it, or says what to do"]
    if wrong := unsaid(dataset, record):
        return [wrong]
    if dataset.storage == "arrays":
        return arrays.problems(dataset, folder, record, deep=True)
    return files.problems(dataset, folder)


def wrong(name: str) -> str:
    """What is wrong with a set, every byte of which is looked at; "" where nothing is."""
    return "; ".join(_problems(find(name)))


def content(name: str) -> dict:
    """{name, counts, sha256} of a set that is there: of its arrays, or of its index, split and sums."""
    folder = folder_of(name)
    record = record_of(folder)
    sums = record.get("sha256") or {
        part: hashlib.sha256((folder / part).read_bytes()).hexdigest()
        for part in (INDEX, SPLIT, SUMS)
        if (folder / part).is_file()
    }
    return {"name": name, "counts": record["counts"], "sha256": sums}
