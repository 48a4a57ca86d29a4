"""Whether files are still those that were looked at: the sha256 of each, asked for again where size or time changed.

The sums stand in <data>/<set>/sums.tsv (sha256, file); sizes and times, of this machine alone, beside it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np

from .places import atomic
from .progress import bar

SUMS = "sums.tsv"
ABSENT = (-1, -1)


def stats(home: Path, names: Sequence[str]) -> np.ndarray:
    """Size in bytes and time of the last change in ns of each file, (N, 2); -1 where it is not there."""
    return np.array([_stat(os.path.join(home, name)) for name in names], np.int64).reshape(-1, 2)


def _stat(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return ABSENT
    return found.st_size, found.st_mtime_ns


def sums(home: Path, names: Sequence[str], label: str = "files") -> list[str]:
    """The sha256 of each file."""

    def one(name: str) -> str:
        with open(home / name, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    with ThreadPoolExecutor() as pool:  # hashing releases the interpreter's lock
        return list(bar(pool.map(one, names), total=len(names), desc=f"sums of {label}", unit="file"))


def write(folder: Path, names: Sequence[str], found: Sequence[str]) -> None:
    """Keeps the sums of a set's files with it."""
    with atomic(folder / SUMS) as file:
        file.write("".join(f"{each}\t{name}\n" for name, each in zip(names, found, strict=True)))


def read(folder: Path) -> dict[str, str]:
    """{file: sha256} of a set; {} where none were kept."""
    try:
        lines = (folder / SUMS).read_text().splitlines()
    except OSError:
        return {}
    return {name: each for each, _, name in (line.partition("\t") for line in lines)}


def new(folder: Path, now: np.ndarray) -> np.ndarray:
    """Numbers of the files whose size or time is not that of when they were last found right."""
    try:
        seen = np.load(_seen(folder), allow_pickle=False)
    except (OSError, ValueError, EOFError):
        seen = now[:0]
    return np.arange(len(now)) if seen.shape != now.shape else np.flatnonzero((seen != now).any(1))


def remember(folder: Path, now: np.ndarray) -> None:
    """Writes down sizes and times at which the files of a set were right; where nothing can be written, all is read
    again the next time."""
    with suppress(OSError), atomic(_seen(folder), "wb") as file:
        np.save(file, now)


def _seen(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.seen.npy"


def altered(folder: Path, home: Path, known: dict[str, str]) -> list[str]:
    """The files of a set that do not have the sums they had; what has its old size and time is not read again."""
    names = list(known)
    now = stats(home, names)
    asked = [names[number] for number in new(folder, now)]
    there = [name for name in asked if (home / name).is_file()]
    found = dict(zip(there, sums(home, there, folder.name), strict=True))
    wrong = [name for name in asked if found.get(name) != known[name]]
    if asked and not wrong:
        remember(folder, now)
    return wrong


def below(home: Path, parts: Sequence[str]) -> Iterator[str]:
    """The files among some parts of a folder and below them, in order and without hidden ones; links are followed."""
    for part in parts:
        if (home / part).is_file():
            yield part
        entered = set()
        for folder, folders, names in os.walk(home / part, followlinks=True):
            real = os.path.realpath(folder)
            folders[:] = sorted(folders) if real not in entered else []
            entered.add(real)
            yield from (os.path.relpath(os.path.join(folder, name), home) for name in sorted(names) if name[0] != ".")
