"""What a machine has, and what the engine makes of it, for `gmmvit doctor`; obstacles.py knows what would stop a row.

It looks and does not try: no kernel is compiled, no byte of a data set is read, no host is asked.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path

import timm
import torch

from .. import __version__
from ..core.masks import MASKS
from ..core.ways import way_of
from ..data.places import folder_of, record_of
from ..data.places import root as data_root
from ..data.sets import SETS
from ..data.workers import SHARED, cores, loading_processes, neighbours, shared_memory_free, shared_memory_needed
from ..train import precision
from ..train.machine import machine
from ..train.rows import Row

LENGTHS = (49, 64, 197)  # keys: a window of Swin, the small backbones at 32 px, a ViT of 16 px patches at 224


def findings(device: torch.device, rows: Collection[Row]) -> list[tuple[str, str]]:
    """What there is, and what the engine chooses for these rows: (name, words)."""
    chosen = precision.resolve("auto", device)
    return [
        ("device", device_words(device)),
        ("versions", versions(device)),
        ("precision", f"auto is {chosen.name} ({chosen.why})"),
        ("attention", "; ".join(attention(device))),
        ("cores", f"{cores()} for a process of a row, of {os.cpu_count()}; threads: {torch.get_num_threads()}"),
        ("loading", loading(device)),
        ("shared memory", shared_memory(device, rows)),
        ("disk", f"{shutil.disk_usage(there(Path.cwd())).free / 2**30:,.1f} GB free here, {data_room()}"),
        (
            "C compiler",
            compiler()
            or "none: torch.compile and FlexAttention need one, and so does attention at full speed on a CPU",
        ),
        *([("data sets", data_sets(rows))] if rows else []),
    ]


# ---- the machine -----------------------------------------------------------------------------------------------------


def device_words(device: torch.device) -> str:
    """The device and what kind it is."""
    if device.type != "cuda":
        return f"{device.type}: {machine()['processor'] or platform.machine()}"
    found = torch.cuda.get_device_properties(device)
    count, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    others = f"1 of {count}" + (f", CUDA_VISIBLE_DEVICES={visible}" if visible is not None else "")
    return (
        f"{device}: {found.name}, {found.total_memory / 2**30:.0f} GB, compute capability "
        f"{found.major}.{found.minor} ({others})"
    )


def versions(device: torch.device) -> str:
    """Of all that a result may depend on."""
    names = {"gmmvit": __version__, "Python": platform.python_version(), "torch": torch.__version__}
    names |= {"timm": timm.__version__, "CUDA": torch.version.cuda or "none", "cuDNN": torch.backends.cudnn.version()}
    return ", ".join(f"{name} {version or 'none'}" for name, version in names.items()) + f", driver {driver(device)}"


def driver(device: torch.device) -> str:
    """NVIDIA's, as its own tool tells it."""
    if not (tool := shutil.which("nvidia-smi")):
        return "none" if device.type != "cuda" else "not known"
    words = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=3).stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        return "silent"
    return said[0] if said else "none"


def compiler() -> str | None:
    """Where a C compiler is, which Triton and torch's CPU code want."""
    names = filter(None, (os.environ.get("CC"), "cc", "gcc", "clang"))
    return next(filter(None, map(shutil.which, names)), None)


def data_room() -> str:
    """Where data sets lie, and the room there."""
    place = data_root()
    return f"{shutil.disk_usage(there(place)).free / 2**30:,.1f} GB for data in {place}"


def there(path: Path) -> Path:
    """The nearest folder that exists."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


# ---- what the engine makes of it -------------------------------------------------------------------------------------


def attention(device: torch.device) -> list[str]:
    """The way that each mask takes on this device, by the number of keys where that matters."""
    words = []
    for name, kind in MASKS.items():
        ways: dict[str, list[str]] = {}
        for keys in LENGTHS:
            ways.setdefault(way_of(kind, device.type, keys), []).append(str(keys))
        lengths = (f"{way} ({', '.join(keys)} keys)" for way, keys in ways.items())
        words.append(f"{name} {next(iter(ways)) if len(ways) == 1 else ', '.join(lengths)}")
    return words


def loading(device: torch.device) -> str:
    """The processes that load images for a row."""
    arrays, files = (loading_processes(device, kind) for kind in (True, False))
    shares = neighbours()
    beside = f", with {shares} processes training side by side" if shares > 1 else ""
    return f"{arrays} processes for a row on small images, {files} on files{beside}"


def shared_memory(device: torch.device, rows: Collection[Row]) -> str:
    """What is free for loaded images, beside what a row takes at most."""
    free = shared_memory_free()
    there = f"{SHARED} is no file system of its own" if free is None else f"{free / 2**20:,.0f} MB free in {SHARED}"
    taken = [neighbours() * shared_memory_needed(*loaded(row, device)) for row in rows if row.dataset in SETS]
    return there + (f", the rows need up to {max(taken) / 2**20:,.0f} MB" if taken else "")


def loaded(row: Row, device: torch.device) -> tuple[int, int, int, bool]:
    """Images that a process of a row takes at a time, their pixels, the processes that load them, whether pinned."""
    recipe, dataset = row.recipe_settings, SETS[row.dataset]
    workers = loading_processes(device, dataset.storage == "arrays")
    return recipe.batch // recipe.accumulate, dataset.size, workers, device.type == "cuda"


def data_sets(rows: Iterable[Row]) -> str:
    """Which of the rows' sets have been laid out, or looked at."""
    names = dict.fromkeys(row.dataset for row in rows)
    words = {True: "there", False: "not there"}
    return ", ".join(f"{name} {words[record_of(folder_of(name)) is not None]}" for name in names)
