"""The resumable state of a run: on the disk whole or not at all, with its row in it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch


class OtherRun(ValueError):
    """A checkpoint belongs to another row."""


def folder_for(out: Path) -> Path:
    """Beside the results and not among them: DVC deletes a stage's results before it runs the stage again."""
    return out.parent / ".checkpoints" / out.name


def write(path: Path, content: dict) -> None:
    """Writes under another name and renames, so that a killed process or a full disk leaves the previous file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError when the disk is full
        partial.unlink(missing_ok=True)
        previous = f"the previous one is whole: {path}" if path.exists() else "there is no previous one"
        raise OSError(f"{path} could not be written ({_reason(error)}); {previous}") from error


def _reason(error: BaseException) -> str:
    """The system's own words, which torch's writer hides behind a failed check of its own."""
    seen = error
    while seen is not None:
        if isinstance(seen, OSError):
            return seen.strerror or str(seen)
        seen = seen.__cause__ or seen.__context__
    return str(error).splitlines()[0]


def read(path: Path, row: dict) -> dict | None:
    """The content of a checkpoint of this row; None where there is none."""
    if not path.exists():
        return None
    content = torch.load(path, map_location="cpu", weights_only=True)
    theirs = json.loads(content["row"])
    if theirs != row:
        names = sorted(key for key in row.keys() | theirs.keys() if row.get(key) != theirs.get(key))
        differences = ", ".join(f"{key} {theirs.get(key)!r} instead of {row.get(key)!r}" for key in names)
        raise OtherRun(
            f"{path} belongs to the row {theirs.get('name')!r}, which has {differences}: "
            "give another --out, or delete that folder"
        )
    return content


def remove(path: Path) -> None:
    """Takes a checkpoint away, and its folder where nothing else is in it."""
    path.unlink(missing_ok=True)
    path.with_name(path.name + ".partial").unlink(missing_ok=True)
    if path.parent.is_dir() and not any(path.parent.iterdir()):
        path.parent.rmdir()
