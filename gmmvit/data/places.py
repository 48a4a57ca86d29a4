"""Where data sets lie on the disk, and how a folder of one comes into being whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: two processes that lay out one set at the same time do the work twice
    fcntl = None

MARKER = "complete.json"
CHECKOUT = Path(__file__).parents[2]


def root() -> Path:
    """GMMVIT_DATA, else data/ of the project around the working directory, of the checkout, or right here."""
    if os.environ.get("GMMVIT_DATA"):
        return Path(os.environ["GMMVIT_DATA"]).expanduser()
    checkout = CHECKOUT if (CHECKOUT / "pyproject.toml").is_file() else None
    return (project() or checkout or Path.cwd()) / "data"


def project() -> Path | None:
    """The nearest folder from the working directory upwards that holds a dvc.yaml."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / "dvc.yaml").is_file()), None)


def downloads() -> Path:
    """Where archives are downloaded to, unpacked, and put by hand."""
    return root() / "downloads"


def folder_of(name: str) -> Path:
    """The folder of a laid-out set; the embedded sample is found in the checkout whatever GMMVIT_DATA says."""
    here, embedded = root() / name, CHECKOUT / "data" / name
    return embedded if name == "cifar10-mini" and embedded.is_dir() and not here.is_dir() else here


def locate(*relative: str) -> Path | None:
    """The first of these files or folders that lies in data/downloads/ or in data/ itself."""
    places = [base / part for part in relative for base in (downloads(), root())]
    return next((place for place in places if place.exists()), None)


@contextmanager
def alone(target: Path) -> Iterator[None]:
    """One process at a time works on a target; the lock of a killed process is free again."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / f".{target.name}.lock", "w") as lock:
        if fcntl:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """An empty hidden folder beside a target, gone when the block ends."""
    folder = target.parent / f".{target.name}.partial"
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A folder whose files move into the target when the block ends without an error, the record last of all.

    What else lies in the target stays there: it may be somebody's images.
    """
    with scratch(target) as folder:
        yield folder
        target.mkdir(exist_ok=True)
        (target / MARKER).unlink(missing_ok=True)
        for file in sorted(folder.iterdir(), key=lambda file: file.name == MARKER):
            os.replace(file, target / file.name)


def write_json(path: Path, content: object) -> None:
    """A JSON file that is there whole or not at all."""
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
    os.chmod(partial, 0o644)
    os.replace(partial, path)


def record_of(folder: Path) -> dict | None:
    """What complete.json says of a laid-out set; None where the set is not there."""
    try:
        return json.loads((folder / MARKER).read_text())
    except (OSError, ValueError):
        return None
