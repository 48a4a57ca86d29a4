"""What figures show of images, made of the weights of runs that have ended: reports/<profile>/analysis/<row>.npz.

Training knows nothing of it, so how a receptive field is computed may change without a row being trained again. A run
whose weights are not here keeps the file it has.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from ..data.places import atomic
from ..train import devices, tasks
from ..train.processes import World
from ..train.rows import START_OPTIONS, Row
from .pictured import pictured
from .samples import samples


def file_of(run: Path) -> Path:
    """The file of a run's arrays, whose own folder is reports/<profile>/runs/<row>."""
    return run.parents[1] / "analysis" / f"{run.name}.npz"


def arrays(run: Path) -> dict[str, np.ndarray]:
    """The arrays that were drawn of a run, by name; {} where there are none."""
    if not file_of(run).is_file():
        return {}
    with np.load(file_of(run), allow_pickle=False) as file:
        return dict(file)


def analyse(run: Path, device: str | None = None) -> dict[str, np.ndarray]:
    """The arrays of a run, made of its weights and written to their file; {}, and no file, where nothing is drawn."""
    task, model = trained(run / "weights.pt", device)
    found = (samples if task.row.kind == "classification" else pictured)(task, model)
    if found:
        with atomic(file_of(run), "wb") as file:
            np.savez_compressed(file, **found)
    else:
        file_of(run).unlink(missing_ok=True)
    return found


def analysed(runs: Iterable[Path]) -> Iterator[str]:
    """A line for each run whose weights are here, once its arrays are made; the others keep the file they have."""
    for run in runs:
        if (run / "weights.pt").is_file():
            yield f"{run.name}: {', '.join(analyse(run)) or 'nothing that a figure shows'}"


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
