"""What figures show of images, made of the weights of runs that have ended: reports/<profile>/analysis/<row>.npz.

Training knows nothing of it, so how a receptive field is computed may change without a row being trained again. A run
whose weights are not here keeps the file it has. Each file remembers what it was made of (`made_of`): a sum of the
weights and of the code of the rooms that were run, with the versions of torch and timm. As long as both are the same,
`analysed` passes over the run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch

from ..data.places import atomic
from ..train import devices, tasks
from ..train.engine import PACKAGE, engine
from ..train.processes import World
from ..train.rows import START_OPTIONS, Row
from .axes import axes
from .pictured import pictured
from .samples import samples

KEY = "made_of"


def file_of(run: Path) -> Path:
    """The file of a run's arrays, whose own folder is reports/<profile>/runs/<row>."""
    return run.parents[1] / "analysis" / f"{run.name}.npz"


def arrays(run: Path) -> dict[str, np.ndarray]:
    """The arrays that were drawn of a run, by name; {} where there are none."""
    if not file_of(run).is_file():
        return {}
    with np.load(file_of(run), allow_pickle=False) as file:
        return {name: file[name] for name in file if name != KEY}


def analyse(run: Path, device: str | None = None) -> dict[str, np.ndarray]:
    """The arrays of a run, made of its weights and written to their file; {}, and no file, where nothing is drawn."""
    task, model = trained(run / "weights.pt", device)
    found = samples(task, model) | axes(task, model) if task.row.kind == "classification" else pictured(task, model)
    if found:
        with atomic(file_of(run), "wb") as file:
            np.savez_compressed(file, **found, **{KEY: np.array(key(run))})
    else:
        file_of(run).unlink(missing_ok=True)
    return found


def analysed(runs: Iterable[Path]) -> Iterator[str]:
    """A line for each run whose weights are here, once its arrays are made; the others keep the file they have."""
    for run in runs:
        if not (run / "weights.pt").is_file():
            continue
        if _made_of(run) == key(run):
            yield f"{run.name}: as it was, with the weights and the code it was made of"
        else:
            yield f"{run.name}: {', '.join(analyse(run)) or 'nothing that a figure shows'}"


def key(run: Path) -> str:
    """A sum of a run's weights.pt, of the code that makes arrays of it, and of the versions of torch and timm."""
    content = hashlib.sha256((run / "weights.pt").read_bytes())
    content.update(_engine().encode())
    return content.hexdigest()


@cache
def _engine() -> str:
    code = b"".join(path.read_bytes() for path in sorted((PACKAGE / "analysis").glob("*.py")))
    return json.dumps([engine("dense"), hashlib.sha256(code).hexdigest()])


def _made_of(run: Path) -> str | None:
    """The key in the file of a run; None where there is no file, or one of before there were keys."""
    if not file_of(run).is_file():
        return None
    with np.load(file_of(run), allow_pickle=False) as file:
        return str(file[KEY]) if KEY in file else None


def trained(weights: Path, device: str | None = None) -> tuple:
    """The task of the run that left these weights, and its model with them, at rest."""
    content = torch.load(weights, map_location="cpu", weights_only=True)
    row = Row(**json.loads(content["row"]))
    unstarted = {name: value for name, value in row.set.items() if name not in START_OPTIONS}  # it began long ago
    world = World(device=devices.find(device))
    task = tasks.of(row.kind).task(dataclasses.replace(row, set=unstarted), world, workers=0)
    model = task.model()
    model.load_state_dict(content["model"])
    return task, model.to(world.device).eval()
