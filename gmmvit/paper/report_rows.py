"""The rows of a report: what became of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from ..train.rows import UNLEARNED, Row
from . import report_cells
from .names import SCORES
from .profiles import Params
from .runs import its_own, runs, unsound


@dataclass(frozen=True)
class Line:
    """A row of the profile."""

    row: Row
    run: dict | None  # its metrics
    notebook: NotebookNode | None  # executed; None: there is none that can be read
    error: str  # what is wrong with its record, else the last error in the notebook
    wanted: bool  # whether its notebook is to become a page although nothing went wrong

    @property
    def page(self) -> str:
        return f"rows/{self.row.name}.html"

    @property
    def state(self) -> str:
        """What became of the row; "failed after training" has its numbers, but an error further down the notebook."""
        if self.run:
            return "failed after training" if self.error else "done"
        return "failed" if self.error else "not finished" if self.notebook else "not run"

    @property
    def result(self) -> str:
        """The score of the run, in per cent; with its name where it is not the accuracy."""
        score = self.row.recipe_settings.score
        words = f"{'' if score == 'top1' else SCORES[score] + ' '}{self.run[score]:.2f}"
        return words if self.run.get("learned", True) else f"{words}, {UNLEARNED}"

    @property
    def settings(self) -> str:
        return ", ".join(f"{key} = {value}" for key, value in sorted(self.row.set.items()))

    @property
    def shown(self) -> bool:
        """Whether the notebook becomes a page."""
        return self.notebook is not None and (self.wanted or self.state != "done")

    def linked(self, out: Path) -> bool:
        """Whether there is a page of this run: one just made, or one that came with the repository."""
        return self.shown or (self.run is not None and (out / self.page).is_file())


def lines(params: Params, folder: Path) -> list[Line]:
    """Every row of a profile; `report_pages: [row, ...]` in its params file chooses the notebooks that become pages."""
    found = {run["row"]["name"]: run for run in its_own(params.rows, runs(folder))}
    wrong = unsound(folder)
    wanted, table = params.rest.get("report_pages", params.rows), []
    for name, row in params.rows.items():
        notebook = report_cells.read(folder / "runs" / name / "run.ipynb")
        error = wrong.get(name) or report_cells.last_error(notebook)
        table.append(Line(row, found.get(name), notebook, error, name in wanted))
    return table
