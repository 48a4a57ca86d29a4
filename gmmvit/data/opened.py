"""A set that is there, opened by its name; what it lacks is said, and mended by gmmvit.fetch."""

from __future__ import annotations

from . import arrays, files
from .arrays import Arrays
from .images import Files
from .places import MARKER, folder_of, record_of
from .sets import DataSet, find

SAID = {"arrays": {"counts", "source", "sha256"}, "files": {"counts", "source", "home"}}  # by complete.json


def load(name: str) -> dict[str, Arrays | Files]:
    """{split: samples} of a set that is there: train and test, and val where the set has been split again."""
    dataset, folder = find(name), folder_of(name)
    if (record := record_of(folder)) is None:
        raise FileNotFoundError(f"{name} is not in {folder}: fetch it with `gmmvit data {name}`")
    if wrong := unsaid(dataset, record):
        raise ValueError(f"{name} is damaged: {wrong}. `gmmvit data {name}` mends what it can")
    return (arrays.open_arrays if dataset.storage == "arrays" else files.open_files)(dataset, folder)


def unsaid(dataset: DataSet, record: dict) -> str:
    """A sentence where complete.json leaves out what is needed."""
    lacking = sorted(SAID[dataset.storage] - record.keys())
    return f"{folder_of(dataset.name) / MARKER} does not say its {' and '.join(lacking)}" if lacking else ""
