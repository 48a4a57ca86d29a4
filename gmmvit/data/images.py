"""Image files: reading them, and finding the corrupt ones before a training does."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torchvision.datasets.folder import pil_loader

from .progress import bar


@dataclass(frozen=True)
class Files:
    """One split of a set of image files. Names are kept as one array of bytes: workers then share it."""

    home: Path
    names: np.ndarray  # (N,) bytes, relative to home
    labels: np.ndarray  # (N,)

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> Path:
        return self.home / self.names[index].decode()

    def read(self, indices: np.ndarray) -> list:
        """The RGB images (PIL) with these numbers."""
        return [opened(self.path(index)) for index in indices]


def opened(path: Path):
    """A decoded RGB image (PIL); a ValueError names the file that cannot be."""
    try:
        return pil_loader(str(path))
    except Exception as error:  # of Pillow, whose every format has its own
        raise ValueError(f"{path} cannot be decoded ({error or type(error).__name__})") from error


def verify_images(paths: Sequence[Path], label: str = "images") -> list[str]:
    """Decode every image, and give a sentence for each that cannot be."""

    def complaint(path: Path) -> str | None:
        try:
            opened(path)
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor() as pool:  # decoding releases the interpreter's lock
        complaints = list(bar(pool.map(complaint, paths), total=len(paths), desc=f"decoding {label}", unit="image"))
    return [sentence for sentence in complaints if sentence]
