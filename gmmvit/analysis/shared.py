"""Weights that people can load: a run's, as float16 beside its record: gmmvit.load("reports/cpu/runs/ROW")."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import torch

from ..core import keep
from ..train.precision import Working, resolve
from .drawn import trained

NEAR = 0.1  # points of top-1 between a record and what is loaded


def shared(runs: Iterable[Path], names: Collection[str]) -> Iterator[str]:
    """A line for each of the named runs whose weights are here and were not shared yet, once they are."""
    for run in runs:
        if run.name in names and (run / keep.RUN).is_file() and not (run / keep.CONFIG).is_file():
            yield share(run)


def share(run: Path, device: str | None = None) -> str:
    """Writes a run's config.json and model.safetensors, which a new training removes; says how accurate they are.

    What is loaded of them is tested on all test images, and has to be as accurate as the record.
    """
    (run / keep.CONFIG).unlink(missing_ok=True)
    task, _ = trained(run / keep.RUN, device)
    keep.save(keep.load(run), run, stored=torch.float16)
    loaded = keep.load(run).to(task.world.device)
    working = Working(loaded, resolve(task.recipe.precision, task.world.device).dtype, task.world.device)
    with working.context():
        found = task.test(working.module.eval())["top1"]
    task.close()
    recorded = json.loads((run / "metrics.json").read_text())["top1"]
    if abs(found - recorded) > NEAR:
        (run / keep.CONFIG).unlink()
        raise ValueError(
            f"{run.name}: expected the top-1 of its record, {recorded}, of weights in float16, got {found}"
        )
    return f"{run.name}: weights shared as float16, top-1 {found:.2f} % (in its record {recorded:.2f} %)"
