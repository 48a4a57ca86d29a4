"""What rows cost before they run: runs, images, FLOPs, hours on a device of a given speed and on an A100."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass

from ..train import tasks
from ..train.checks import BadRow, problems
from ..train.rows import Row
from . import counted
from .hours import a100_speed

FORWARD, TRAINING = 2, 6  # FLOPs of a MAC: a product and a sum; a training step costs three forward passes


@dataclass(frozen=True)
class Line:
    """The cost of the rows that share a data set, a model, a mask and a recipe."""

    dataset: str
    model: str
    mask: str
    recipe: str
    runs: int = 0
    trained: int = 0  # images seen in training
    evaluated: int = 0  # images seen in evaluation
    flops: int = 0
    hours: float = 0.0
    gpu_hours: float = 0.0  # of an A100, as gmmvit.paper.hours assumes it


@dataclass(frozen=True)
class Plan:
    lines: tuple[Line, ...]
    total: Line
    vit: int  # MACs of the plain vit
    work: dict[str, float]  # images that the plain vit would train on in the time of a row


def plan(rows: Mapping[str, Row], images_per_second: float = 350.0) -> Plan:
    """The cost of rows; the speed is that of training the plain `vit` (2.7 M parameters, 184.6 M MACs) at 32 px."""
    if not images_per_second > 0:
        raise ValueError(f"images_per_second: expected a speed above 0, got {images_per_second!r}")
    unseen = {name: row for name, row in rows.items() if counted.arm(row) not in counted.rows()}
    if wrong := [f"row {name}: {problem}" for name, row in unseen.items() for problem in problems(row)]:
        raise BadRow("\n".join([f"{len(wrong)} problems in the rows to plan:", *wrong]))
    work, vit = {}, counted.macs(Row("cifar10", "vit"))
    costs: dict[tuple[str, ...], list[tuple[float, ...]]] = {}
    for row in rows.values():
        trained, evaluated = images_seen(row)
        macs = counted.macs(row)
        flops = (TRAINING * trained + FORWARD * evaluated) * macs
        work[row.name] = flops / (TRAINING * vit)
        hours = work[row.name] / images_per_second / 3600
        gpu_hours = flops / a100_speed(row.recipe_settings.precision, macs) / 3600
        group = row.dataset, row.model, row.mask, row.recipe
        costs.setdefault(group, []).append((1, trained, evaluated, flops, hours, gpu_hours))
    lines = tuple(_line(group, runs) for group, runs in costs.items())
    total = _line(("total", "", "", ""), [run for runs in costs.values() for run in runs])
    return Plan(lines, total, vit, work)


def _line(group: tuple[str, ...], runs: list[tuple[float, ...]]) -> Line:
    return Line(*group, *(sum(column) for column in zip(*runs, strict=True)))


def images_seen(row: Row) -> tuple[int, int]:
    """Images of all training steps, and of the evaluation after each epoch."""
    recipe, images = row.recipe_settings, tasks.of(row.kind).images(row)
    evaluated = images["test"] + (images["val"] if recipe.select == "validation" else 0)
    steps = recipe.total_epochs * recipe.steps_per_epoch(images["train"])
    return steps * recipe.batch, recipe.total_epochs * evaluated


def plan_table(plan: Plan) -> tuple[list[tuple[object, ...]], tuple[str, ...]]:
    """Rows and head for gmmvit.cli.table, the total last."""
    rows = []
    for *group, runs, trained, evaluated, flops, hours, gpu_hours in map(astuple, (*plan.lines, plan.total)):
        millions = (f"{images / 1e6:,.2f}" for images in (trained, evaluated))
        rows.append((*group, f"{runs:,}", *millions, f"{flops / 1e15:,.3f}", f"{hours:,.1f}", f"{gpu_hours:,.1f}"))
    head = ("data set", "model", "mask", "recipe", "runs", "trained M", "evaluated M", "PFLOPs", "hours", "A100 hours")
    return rows, head
