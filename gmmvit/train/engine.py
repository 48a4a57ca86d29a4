"""The engine that a run is made by: its modules and the versions of torch and timm, as one number."""

from __future__ import annotations

import hashlib
import modulefinder
from functools import cache
from pathlib import Path

import timm
import torch

PACKAGE = Path(__file__).parents[1]
BY_NAME = ("dense.checks", "dense.tasks")  # what rows of detection and segmentation look up beside the rest
FETCHING = {"data/fetch.py", "data/official_arrays.py", "data/official_files.py"}  # a set is known by its content


def modules(kind: str) -> list[str]:
    """The package's files that a row of this kind runs, as dvc.yaml lists them: a plot's colour is none of them."""
    finder = modulefinder.ModuleFinder(path=[])  # of this package alone
    finder.load_package(PACKAGE.name, str(PACKAGE))
    for name in ("train", *(BY_NAME if kind != "classification" else ())):
        finder.import_hook(f"{PACKAGE.name}.{name}")
    files = {module.__file__ for module in finder.modules.values()} - {None}  # of what Python has built in
    return sorted({Path(file).relative_to(PACKAGE).as_posix() for file in files} - FETCHING)


@cache
def engine(kind: str) -> dict[str, str]:
    """What a checkpoint remembers of the code it was made by, as this process found it when it first asked."""
    code = hashlib.sha256(b"".join((PACKAGE / name).read_bytes() for name in modules(kind)))
    return {"modules": code.hexdigest(), "torch": str(torch.__version__), "timm": timm.__version__}
