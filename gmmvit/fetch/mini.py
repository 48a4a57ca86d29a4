"""cifar10-mini, the embedded sample: the first 200 training and 100 test images of each class of CIFAR-10, in the
official order, as lossless WebP mosaics. `python -m gmmvit.fetch.mini` makes it again from the full set."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from torchvision.transforms.v2.functional import to_pil_image

from ..data import arrays
from ..data.places import CHECKOUT, folder_of, staged
from ..data.sets import find

PER_CLASS = {"train": 200, "test": 100}
COLUMNS = 40  # of a mosaic


def first_of_each_class(labels: np.ndarray, count: int) -> np.ndarray:
    """Numbers of the first `count` images of each class, in ascending order."""
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[:count] for c in np.unique(labels)]))


def tile(images: np.ndarray) -> np.ndarray:
    """A mosaic of 32 px images, row by row; what `arrays.untile` takes apart."""
    rows = len(images) // COLUMNS
    return images.reshape(rows, COLUMNS, 32, 32, 3).swapaxes(1, 2).reshape(rows * 32, COLUMNS * 32, 3)


def make(target: Path) -> None:
    """Write the sample into a folder, from the full CIFAR-10."""
    full = arrays.open_arrays(find("cifar10"), folder_of("cifar10"))
    with staged(target) as folder:
        labels = {}
        for split, source in full.items():
            chosen = first_of_each_class(source.labels, PER_CLASS[split])
            labels[split] = source.labels[chosen].tolist()
            mosaic = to_pil_image(tile(source.images[chosen]))
            mosaic.save(folder / f"{split}.webp", lossless=True, quality=100, method=6)
        lines = ",\n".join(f' "{split}": {json.dumps(values)}' for split, values in labels.items())
        (folder / "labels.json").write_text(f"{{\n{lines}\n}}\n")
        arrays.seal(find("cifar10-mini"), folder, "embedded in the repository, cut from the full CIFAR-10")


if __name__ == "__main__":
    make(CHECKOUT / "data" / "cifar10-mini")
