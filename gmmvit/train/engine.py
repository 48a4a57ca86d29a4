"""The engine that a run is made by: its modules and the versions of torch and timm, as one number."""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from pathlib import Path

import timm
import torch

PACKAGE = Path(__file__).parents[1]
ROOMS = ("core", "data", "models", "train")  # dvc.yaml: what a run depends on; a set is known by its content


def rooms(kind: str) -> tuple[str, ...]:
    """The folders of the package that a row of this kind may run."""
    return (*ROOMS, *(() if kind == "classification" else ("dense",)))


def modules(kind: str) -> list[str]:
    """The package's files that a row of this kind may run: a plot's colour is none of them."""
    files = (
        path for room in rooms(kind) for path in (PACKAGE / room).rglob("*") if path.suffix in (".py", ".toml", ".c")
    )
    return sorted(path.relative_to(PACKAGE).as_posix() for path in files)


@cache
def engine(kind: str) -> dict[str, str]:
    """What a checkpoint remembers of the code it was made by, as this process found it when it first asked."""
    code = hashlib.sha256(b"".join((PACKAGE / name).read_bytes() for name in modules(kind)))
    return {"modules": code.hexdigest(), "torch": str(torch.__version__), "timm": timm.__version__}


@cache
def made_by(kind: str) -> dict[str, str | None]:
    """What a record says of the code it was made by: a sum of its modules, and the last commit that changed them."""
    return {"modules": engine(kind)["modules"][:16], "commit": _commit(kind)}


def _commit(kind: str) -> str | None:
    """None where the modules are not those of a commit, or not in git."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words, "--", *rooms(kind)], cwd=PACKAGE, capture_output=True, text=True).stdout

    try:
        return None if git("status", "--porcelain") else git("log", "-1", "--format=%H").strip() or None
    except OSError:  # no git
        return None
