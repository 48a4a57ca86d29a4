"""What the notebooks share: parameters that are checked, the records of a profile, and the place of what they make.

Papermill only warns of a parameter that a notebook does not have, and DVC hands over booleans as text ("false").
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from IPython.display import HTML, Markdown, display

from ..analysis import drawn
from ..core.errors import unknown
from ..core.grids import Grid
from ..train import learned
from ..train.rows import Row
from . import charts, project
from . import runs as results
from .profiles import parse
from .tables import SMOKE, Table

INJECTED = "# Parameters"  # how papermill begins the cell that it puts behind the notebook's own parameters
SCRATCH = "runs"  # git-ignored; where a notebook that a person runs leaves what it makes
WORDS = {bool: "true or false", int: "a whole number"}


def checked(names: dict, **types: type) -> Path:
    """Turns the parameters among a notebook's globals into their types; the folder for what the notebook makes.

    The folder is `out`; where that is empty, reports/<profile> if papermill gave parameters, and else runs/, which git
    ignores. A notebook of a row has one of its own there; of a row with a record, that record's.
    """
    given = _given(names.get("In", ()))
    for name in given:
        if name not in types:
            raise ValueError(unknown("parameter", name, types))
    for name, kind in types.items():
        if name not in names:
            raise ValueError(f"{name}: expected this parameter in the cell of parameters, got none of that name")
        names[name] = _converted(name, names[name], kind)
    if names.get("out"):
        return project.root() / names["out"]
    scratch = project.root() / SCRATCH
    if "row" in types:
        record = project.runs_folder(names["profile"]) / names["row"]
        return record if given or (record / "metrics.json").is_file() else scratch / names["row"]
    return project.reports(names["profile"]) if given else scratch


def _given(cells: list[str]) -> list[str]:
    """The parameters that papermill put in."""
    trees = [ast.parse(cell) for cell in cells if cell.startswith(INJECTED)]
    return [target.id for tree in trees for line in tree.body for target in line.targets]


def _converted(name: str, given: object, kind: type) -> object:
    value = parse(given) if isinstance(given, str) and kind is not str else given
    value = str(value) if kind is str else value
    if type(value) is not kind:
        raise ValueError(f"{name}: expected {WORDS[kind]}, got {given!r}")
    return value


# ---- what there is ---------------------------------------------------------------------------------------------------


def note_of(profile: str) -> str:
    """What is to be printed with every number of a profile."""
    return SMOKE if profile == "smoke" else ""


def find_run(rows: pd.DataFrame, **fields: str) -> dict | None:
    """The run of a row with these fields (model="vit", mask="elm") that has the fewest settings of its own."""
    found = rows[(rows.state == results.DONE) & results.agree(rows, fields)]
    return found.loc[min(found.index, key=lambda name: len(found.row[name].set))].to_dict() if len(found) else None


def learned_masks(run: Mapping | None) -> dict[str, learned.LearnedMask]:
    """The masks of a run, by layer; none where there is no run."""
    masks = learned.read(run["folder"]) if run else []
    return {f"layer {number}": mask for number, mask in enumerate(masks, 1)}


def by_grid(masks: Mapping[str, learned.LearnedMask]) -> dict[Grid, dict[str, np.ndarray]]:
    """The weights of the masks on each token grid, by layer; masks without weights are left out."""
    grids: dict[Grid, dict[str, np.ndarray]] = {}
    for name, mask in masks.items():
        if (weight := mask.weight()) is not None:
            grids.setdefault(mask.grid, {})[name] = weight
    return grids


def arrays_drawn(run: Mapping | None) -> dict[str, np.ndarray]:
    """What was drawn of a run's images, by name; nothing where there is no run."""
    return drawn.arrays(run["folder"]) if run else {}


def bench(name: str) -> dict:
    """The record of a benchmark, reports/bench/<name>.json; empty where there is none."""
    path = project.root() / "reports" / "bench" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


# ---- what is made ----------------------------------------------------------------------------------------------------


def show(made: charts.Figure | Table | None, folder: Path, name: str, note: str = "", found: str = "") -> None:
    """Shows a figure or a table with a note and saves it below `folder`; what is empty has not been run.

    `found` is what its numbers say, or why nothing is drawn. Each output is marked for the report.
    """
    if found:
        display(Markdown(found), metadata=_mark(name, "found"))
    if not (made or found):
        display(Markdown(f"*{name}: not run*"), metadata=_mark(name, "not run", ran=False))
    elif isinstance(made, Table):
        table = replace(made, note=note or made.note)
        table.save(folder / "tables", name)
        show_table(table, name, _mark(name, "table", table.ran))
    elif made:
        figure = headed(made, note) if note else made
        charts.save(figure, folder / "figures", name)
        display(figure, metadata=_mark(name, "figure"))


def _mark(name: str, kind: str, ran: bool = True) -> dict:
    return {"gmmvit": {"name": name, "kind": kind, "ran": ran}}


@charts.styled
def headed(figure: charts.Figure, note: str, inches: float = 0.2) -> charts.Figure:
    """The figure with a line above all of it: also above legends outside the axes, on which a title would lie."""
    charts.settle(figure)  # everything has its place now, and keeps it in inches
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + inches)
    share = height / (height + inches)
    for axes in figure.axes:
        left, bottom, across, up = axes.get_position(original=True).bounds
        axes.set_position((left, bottom * share, across, up * share))
    for legend in figure.legends:
        legend.set_bbox_to_anchor((0, 0, 1, share), figure.transFigure)
    for words in figure.texts:  # names of the axes of all panels
        words.set_y(words.get_position()[1] * share)
    figure.text(0.5, 1 - 0.3 * (1 - share), note, ha="center", va="top", fontsize=7, color="#777777")
    return figure


def show_table(table: Table, name: str = "", metadata: dict | None = None) -> None:
    """Shows a table, as Markdown where HTML is not understood; `name` is that of its CSV file."""
    display({"text/html": table.html(name), "text/plain": table.md(name)}, raw=True, metadata=metadata)


def trained(row: Row, folder: Path, threads: int | None = None) -> tuple[dict, dict]:
    """Metrics and timing of a row: its record, or trained under a learning curve drawn anew after each epoch."""
    from ..train import train

    curve = display(HTML(""), display_id=True)

    def draw(history: list[dict]) -> None:
        curve.update(charts.learning_curve({name: [line[name] for line in history] for name in history[0]}))

    metrics = _recorded(row, folder)
    if metrics is None:  # the folder relative, for no path of this machine is to stand in what it says
        metrics = train(row, os.path.relpath(folder), threads=threads, on_epoch=draw)
    else:
        losses = (f"{name} {metrics[name]}" for name in ("train_loss", "test_loss") if name in metrics)
        print(f"{row.name} has ended; this is its record: {', '.join(losses)}")
    curve.update(charts.learning_curve(results.history(folder)))
    return metrics, json.loads((folder / "timing.json").read_text(encoding="utf-8"))


def _recorded(row: Row, folder: Path) -> dict | None:
    """The metrics of this very row, if it has ended here; neither its weights nor its data need be there."""
    path = folder / "metrics.json"
    metrics = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return metrics if metrics.get("row") == json.loads(json.dumps(vars(row))) else None
