"""Where data sets lie on the disk, and how a folder of one comes into being whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows: two processes that lay out one set at the same time do the work twice
    fcntl = None

MARKER = "complete.json"
PARTIAL = ".partial"  # the end of a file's name while it is being written
CHECKOUT = Path(__file__).parents[2]


def root() -> Path:
    """GMMVIT_DATA, else data/ of the project."""
    given = os.environ.get("GMMVIT_DATA")
    return Path(given).expanduser() if given else project() / "data"


def project() -> Path:
    """The nearest folder from the working directory upwards with a dvc.yaml, else the checkout, else right here."""
    here = Path.cwd()
    around = (folder for folder in (here, *here.parents) if (folder / "dvc.yaml").is_file())
    return next(around, CHECKOUT if (CHECKOUT / "pyproject.toml").is_file() else here)


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
def alone(target: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """One process at a time works on a target, `waiting` being called before it waits for another.

    The lock of a killed process is free again; on a file system without locks there is none.
    """
    path = lock_of(target)
    lock = _locked(path, waiting)
    try:
        shutil.rmtree(_scratch_of(target), ignore_errors=True)  # of a process that was killed
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.close()


def lock_of(target: Path) -> Path:
    """The file that is there while a process works on a target, or was killed at it."""
    return target.parent / f".{target.name}.lock"


def _locked(path: Path, waiting: Callable[[], None]) -> IO:
    """The open lock file, held; one that its last holder took away while we waited is no lock any more."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock = open(path, "w")
        except FileNotFoundError:  # the folder was taken away as empty
            continue
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(lock, fcntl.LOCK_EX)
        except (AttributeError, OSError):  # without fcntl, or on a file system without locks
            return lock
        except BaseException:
            lock.close()
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                return lock
        lock.close()


def _scratch_of(target: Path) -> Path:
    return target.parent / f".{target.name}{PARTIAL}"


@contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """An empty hidden folder beside a target, gone when the block ends."""
    folder = _scratch_of(target)
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


@contextmanager
def atomic(path: Path, mode: str = "w", before: Callable[[], None] = lambda: None) -> Iterator[IO]:
    """A file to write that takes its place when the block ends: it is there whole or not at all.

    A killed process or a full disk leaves the previous one; `before` is called when the new one is safe on the disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{path.name}.*{PARTIAL}"):
        if not _runs(left.name.removesuffix(PARTIAL).rpartition(".")[2]):
            left.unlink(missing_ok=True)  # of a process that was killed
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        with open(partial, mode, newline=None if "b" in mode else "") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        before()
        os.replace(partial, path)
    except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError when the disk is full
        partial.unlink(missing_ok=True)
        previous = f"the previous one is whole: {path}" if path.exists() else "there is no previous one"
        raise OSError(f"{path} could not be written ({_reason(error)}); {previous}") from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _reason(error: BaseException) -> str:
    """The system's own words, which torch's writer hides behind a failed check of its own."""
    seen = error
    while seen is not None:
        if isinstance(seen, OSError):
            return seen.strerror or str(seen)
        seen = seen.__cause__ or seen.__context__
    return str(error).splitlines()[0]


def _runs(number: str) -> bool:
    """Whether a process of this machine has this number; on Windows, where asking would end it, said of each."""
    try:
        return os.name == "nt" or os.kill(int(number), 0) is None
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    except OSError:  # somebody else's
        return True


def write_json(path: Path, content: object) -> None:
    """A JSON file that is there whole or not at all; numbers that are not finite are no JSON and refused."""
    with atomic(path) as file:
        json.dump(content, file, indent=1, allow_nan=False)
        file.write("\n")


def record_of(folder: Path) -> dict | None:
    """What complete.json says of a laid-out set; None where the set is not there, or the file no such record."""
    try:
        record = json.loads((folder / MARKER).read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and "name" in record else None
