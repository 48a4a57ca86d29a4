"""The rows of a report: what became of each, and its executed notebook as light HTML."""

from __future__ import annotations

import base64
import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import bleach
import nbformat
from nbconvert import HTMLExporter

from ..core.errors import unknown
from ..train.rows import Row
from .names import SCORES
from .profiles import Params
from .report_parts import page_size
from .runs import runs, unsound

SHOWN = "text/html text/markdown image/png image/jpeg text/plain".split()  # of outputs: no scripts
TAGS = frozenset(bleach.ALLOWED_TAGS) | frozenset(
    "h1 h2 h3 h4 h5 h6 p br hr pre div span sub sup del table caption thead tbody tr th td".split()
)


@dataclass(frozen=True)
class Line:
    """A row of the profile with its run (None: no metrics) and its executed notebook (None: none can be read)."""

    row: Row
    run: dict | None
    notebook: nbformat.NotebookNode | None
    wanted: bool  # whether its notebook is to become a page although nothing went wrong
    unsound: str = ""  # what is wrong with its record

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def page(self) -> str:
        return f"rows/{self.name}.html"

    @cached_property
    def error(self) -> str:
        """What is wrong with the record, else the last error in the notebook, in one line."""
        if self.unsound:
            return self.unsound
        cells = self.notebook.cells if self.notebook else []
        errors = [o for cell in cells for o in cell.get("outputs", []) if o.output_type == "error"]
        words = " ".join(f"{errors[-1].ename}: {errors[-1].evalue}".split()) if errors else ""
        return words if len(words) <= 200 else words[:199] + "…"

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
        return f"{'' if score == 'top1' else SCORES[score] + ' '}{self.run[score]:.2f}"

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
    wanted = params.rest.get("report_pages", list(params.rows))
    for name in wanted:
        if name not in params.rows:
            raise ValueError(unknown("row in report_pages", name, params.rows))
    found, wrong = {run["row"]["name"]: run for run in runs(folder)}, unsound(folder)
    return [
        Line(
            row,
            found.get(name),
            _notebook(folder / "runs" / name / "run.ipynb"),
            name in wanted,
            "" if name in found else wrong.get(name, ""),
        )
        for name, row in params.rows.items()
    ]


def _notebook(path: Path) -> nbformat.NotebookNode | None:
    """A notebook, unless there is none or its writing was cut short."""
    try:
        return nbformat.read(path, as_version=4)
    except (OSError, ValueError):
        return None


def harmless(markup: str | bytes) -> str:
    """Markup of which only text, tables and headings are left; what might run, load or send something becomes text."""
    text = markup.decode() if isinstance(markup, bytes) else str(markup)
    return bleach.clean(text, tags=TAGS, attributes={"*": ["class", "id"], "a": ["href", "title"]})


def notebook_body(notebook: nbformat.NotebookNode, name: str) -> str:
    """The cells of a notebook as HTML for the body of a page; every image is described by the heading above it."""
    notebook, heading = copy.deepcopy(notebook), name
    notebook.nbformat_minor = 5  # where cells have an id: here their place, for equal bytes
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        if cell.cell_type == "markdown":
            heading = next((row.lstrip("# ") for row in cell.source.splitlines() if row.startswith("#")), heading)
        cell.metadata.setdefault("alt", f"{heading} ({name})")
        for output in cell.get("outputs", []):
            if "data" in output:
                output.data = {kind: output.data[kind] for kind in SHOWN if kind in output.data}
            if "image/png" in output.get("data", {}):
                width, height = page_size(base64.b64decode(output.data["image/png"]))
                output.metadata["image/png"] = {"width": width, "height": height}
    exporter = HTMLExporter(
        template_name="basic",
        exclude_anchor_links=True,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        sanitize_html=True,
        filters={"clean_html": harmless},
    )
    return exporter.from_notebook_node(notebook)[0]
