"""The sets of detection and segmentation: found where they were put, or drawn, and every file looked at once."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from ..data import sums
from ..data.places import MARKER, alone, downloads, folder_of, locate, record_of, root, scratch, write_json
from ..dense import ade, coco
from ..dense.opened import LAYOUTS, changed, files_of, load
from ..dense.sets import DenseSet, find
from . import shapes

DRAWN: dict[str, tuple[Callable[[Path], None], str]] = {  # what draws a set, and the file that it makes last
    "coco-shapes": (shapes.write_coco, coco.LAST),
    "ade20k-shapes": (shapes.write_ade, ade.CLASSES),
}
MOST = 20  # sentences of an error


def obtain(name: str, say: Callable[[str], None] = print) -> dict[str, coco.Coco | ade.Ade]:
    """Look at every file of a set, if it is not as it was looked at, and remember that it is whole; {split: samples}.

    Shapes are drawn first, and drawn again where they are not as they were drawn.
    """
    dataset, folder = find(name), folder_of(name)
    with alone(folder):
        record = record_of(folder)
        if record is None or (wrong := changed(name, record)):
            if name in DRAWN and record is not None:
                say(f"{wrong}; they are drawn again")
                _draw(dataset)
            _look_at(dataset, say)
    return load(name)


def _draw(dataset: DenseSet) -> None:
    """Draws shapes beside their folder and moves them there, what is made last at the end."""
    folder, (draw, last) = folder_of(dataset.name), DRAWN[dataset.name]
    with scratch(folder) as drawn:
        draw(drawn)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARKER).unlink(missing_ok=True)
        _clear(folder / last)
        for part in sorted(drawn.iterdir(), key=lambda part: part.name == Path(last).parts[0]):
            _clear(folder / part.name)
            os.replace(part, folder / part.name)


def _clear(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _look_at(dataset: DenseSet, say: Callable[[str], None]) -> None:
    name, folder = dataset.name, folder_of(dataset.name)
    if name in DRAWN and not (folder / DRAWN[name][1]).exists():
        _draw(dataset)
    found = locate(*(f"{home}/annotations" for home in dataset.homes))
    if found is None:
        raise FileNotFoundError(
            f"{name} was not found: put the official files into {downloads() / dataset.homes[0]}, so that "
            "annotations/ lies in it"
        )
    home, kind = found.parent, LAYOUTS[dataset.kind]
    now = sums.stats(home, files_of(dataset, home))  # before the look: what changes meanwhile is looked at again
    wrong, left_out = kind.problems(home)
    if wrong and name in DRAWN:
        say(f"{name} is drawn again: {wrong[0]}")
        _draw(dataset)
        now = sums.stats(home, files_of(dataset, home))
        wrong, left_out = kind.problems(home)
    for sentence in left_out:
        say(f"{name}: {sentence}; left out of training")
    if wrong:
        rest = [f"and {len(wrong) - MOST:,} more"] if len(wrong) > MOST else []
        raise ValueError("\n".join([f"{name} in {home} has {len(wrong):,} problems:", *wrong[:MOST], *rest]))
    folder.mkdir(parents=True, exist_ok=True)
    names = files_of(dataset, home)
    sums.write(folder, names, sums.sums(home, names, name))
    sums.remember(folder, now)
    record = {"name": name, "home": os.path.relpath(home, root()), "left_out": left_out}
    write_json(folder / MARKER, record | {"files": len(names), "bytes": int(now[:, 0].sum())})


def wrong(name: str) -> str:
    """A sentence where a set is not there, or not what was looked at; no file is read again."""
    record = record_of(folder_of(name))
    if record is None:
        return f"not there; `gmmvit data {name}` {'draws it' if name in DRAWN else 'looks for it, or says what to do'}"
    return changed(name, record)


def content(name: str) -> dict:
    """{name, counts, sha256} of a set that is there: of the sums of its files."""
    files = {"files": hashlib.sha256((folder_of(name) / sums.SUMS).read_bytes()).hexdigest()}
    return {"name": name, "counts": {split: len(source) for split, source in load(name).items()}, "sha256": files}
