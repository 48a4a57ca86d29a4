"""The resumable state of a run: on the disk whole or not at all, with its row, its engine and a checksum in it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import torch

from ..data.places import PARTIAL, alone, atomic, lock_of

BEFORE = "before.pt"  # beside last.pt
MARK = b"gmmvit checkpoint, sha256 "  # what stands between torch's own file and the checksum of it
PARTS = {"row": str, "engine": dict, "threads": int, "state": dict, "place": dict, "best": (dict, type(None))}


class OtherRun(ValueError):
    """A folder belongs to another row."""


class Damaged(ValueError):
    """A checkpoint is not what was written."""


def folder_for(out: Path) -> Path:
    """Beside the results and not among them: DVC deletes a stage's results before it runs the stage again."""
    return out.parent / ".checkpoints" / out.name


class Summed:
    """A file that is being written, and the checksum of what was written so far."""

    def __init__(self, file: IO[bytes]):
        self.file, self.sum = file, hashlib.sha256()

    def write(self, content: bytes) -> int:
        self.sum.update(content)
        return self.file.write(content)

    def flush(self) -> None:
        self.file.flush()


def write(path: Path, content: dict) -> None:
    """Writes a state with its checksum at the end, and keeps the one before it."""

    def keep() -> None:
        if path.exists():
            os.replace(path, path.with_name(BEFORE))

    with atomic(path, "wb", before=keep) as file:
        summed = Summed(file)
        torch.save(content, summed)
        file.write(MARK + summed.sum.digest())  # torch's reader passes over it


def read(last: Path, row: Mapping, engine: Mapping, say: Callable[[str], None]) -> dict | None:
    """The newest whole state of this row made by this engine; None where the run begins anew."""
    damages = []
    for path in filter(Path.exists, (last, last.with_name(BEFORE))):
        try:
            content = _content(path)
        except Damaged as error:
            damages.append(str(error))
            continue
        differing(path, json.loads(content["row"]), row)
        for damage in damages:
            say(f"{damage}: the run goes on from {path.name}, the one before it")
            last.unlink(missing_ok=True)  # it would take the place of the good one
        if changed := [key for key, value in engine.items() if content["engine"].get(key) != value]:
            say(f"{path} was made by another engine (other {' and '.join(changed)}): the run begins anew")
            return None
        return content
    if damages:
        raise Damaged(f"{' and '.join(damages)}: delete {last.parent} and the run begins anew")
    return None


def _content(path: Path) -> dict:
    """What a file was given to keep, once its checksum says that it still has it."""
    found = hashlib.sha256()
    end = len(MARK) + found.digest_size
    with open(path, "rb") as file:
        left = path.stat().st_size - end
        while left > 0 and (part := file.read(min(left, 1 << 24))):
            found.update(part)
            left -= len(part)
        if left < 0 or file.read() != MARK + found.digest():
            raise Damaged(f"{path} is damaged, or no checkpoint of gmmvit")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        json.loads(content["row"])
        fitting = all(isinstance(content[name], kind) for name, kind in PARTS.items())
    except Exception as error:  # of torch's, pickle's and json's readers
        raise Damaged(f"{path} is no checkpoint of gmmvit ({type(error).__name__})") from error
    if not fitting:
        raise Damaged(f"{path} is no checkpoint of gmmvit: expected {', '.join(PARTS)}")
    return content


def differing(path: Path, theirs: Mapping, row: Mapping) -> None:
    """Raises OtherRun where a file belongs to another row than this one."""
    if theirs != row:
        names = sorted(key for key in row.keys() | theirs.keys() if row.get(key) != theirs.get(key))
        differences = ", ".join(f"{key} {theirs.get(key)!r} instead of {row.get(key)!r}" for key in names)
        raise OtherRun(
            f"{path} belongs to the row {theirs.get('name')!r}, which has {differences}: "
            f"give another --out, or delete {path.parent}"
        )


def remove(last: Path) -> None:
    """Takes a run's checkpoints away, and their folder where nothing else is in it."""
    for path in (last, last.with_name(BEFORE), *last.parent.glob(f".*{PARTIAL}")):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        last.parent.rmdir()


def left(out: Path) -> bool:
    """Whether something is left of a process that trained into a folder, or still does."""
    folder = folder_for(out)
    return folder.exists() or lock_of(folder).exists()


@contextmanager
def held(out: Path, say: Callable[[str], None]) -> Iterator[None]:
    """One process at a time trains into a folder; the other waits for it and says so."""
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out} is a file: expected a folder, or none yet, for the results")
    if out.exists() and not os.access(out, os.W_OK | os.X_OK):
        raise PermissionError(f"{out} cannot be written to: expected a folder for the results")
    folder = folder_for(out)
    try:
        with alone(folder, lambda: say(f"another process trains into {out}: waiting until it ends")):
            yield
    finally:
        with suppress(OSError):  # of others
            folder.parent.rmdir()
