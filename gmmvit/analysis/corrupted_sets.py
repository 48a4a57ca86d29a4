"""Corrupted images, which are drawn once and kept beside their set."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from ..data.places import atomic, root
from ..data.progress import bar
from . import corruptions
from .corruptions import CORRUPTIONS, SEVERITIES, corrupted

SEED = 0  # of every draw


def corrupted_set(name: str, images: np.ndarray) -> dict[str, np.ndarray]:
    """{kind: (5, N, S, S, 3) uint8} of images (N, S, S, 3), memory-mapped from <data>/<name>-c/.

    A file's name carries the number of images and a sum of them and of the code that corrupts: what has another is
    drawn again. Beside the set and not in it: a set's own folder is what the pipeline knows it by.
    """
    folder, count = root() / f"{name}-c", len(images)
    code = Path(corruptions.__file__).read_bytes()
    content = hashlib.sha256(code + np.ascontiguousarray(images).tobytes()).hexdigest()[:16]
    files = {kind: folder / f"{kind}-{count}-{content}.npy" for kind in CORRUPTIONS}
    for kind in bar([kind for kind, file in files.items() if not file.is_file()], desc=f"corrupting {name}"):
        drawn = np.stack([corrupted(images, kind, severity, SEED) for severity in SEVERITIES])
        old = list(folder.glob(f"{kind}-{count}-*.npy"))
        with atomic(files[kind], "wb") as file:
            np.save(file, drawn)
        for each in old:
            each.unlink(missing_ok=True)
    return {kind: np.load(file, mmap_mode="r") for kind, file in files.items()}
