"""Executed notebooks as light HTML: their prose, tables, figures and errors; no code, nothing that runs or loads."""

from __future__ import annotations

import base64
import copy
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import bleach
import nbformat
from jinja2 import FileSystemLoader
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from PIL import Image

from .charts import Figure

SHOWN = "text/html text/markdown image/png text/plain".split()  # of outputs: no scripts
TAGS = frozenset(bleach.ALLOWED_TAGS) | frozenset(
    "h1 h2 h3 h4 h5 h6 p br hr pre div span sub sup del table caption thead tbody tr th td".split()
)
KEPT = {"*": ["class", "id"], "a": ["href", "title"], "td": ["nowrap"]}
STOPPED = "papermill-error-cell-tag"  # of cells that papermill puts in where a notebook broke off
INCH = 115  # pixels of the page for an inch of a figure: its text of 8 points is as large as that of a table
Files = Callable[[str, str], dict[str, str]]  # name and kind of what a notebook made: {suffix: link}


@dataclass(frozen=True)
class Section:
    """What stands below a heading of a notebook."""

    title: str
    place: str  # its id on the page
    body: str
    ran: bool  # whether it tells something of ours


def read(path: Path) -> NotebookNode | None:
    """A notebook, unless there is none or its writing was cut short."""
    try:
        return nbformat.read(path, as_version=4)
    except (OSError, ValueError):
        return None


def last_error(notebook: NotebookNode | None) -> str:
    """The last error of a notebook in one line; empty where there is none."""
    errors = [o for cell in (notebook.cells if notebook else ()) for o in _outputs(cell) if o.output_type == "error"]
    words = " ".join(f"{errors[-1].ename}: {errors[-1].evalue}".split()) if errors else ""
    return words if len(words) <= 200 else words[:199] + "…"


def sections(notebook: NotebookNode, name: str, files: Files) -> list[Section]:
    """The notebook cut at its headings, without what its code prints; the first section is its title and claim."""
    found: list[tuple[str, list[NotebookNode]]] = []
    for cell in copy.deepcopy(notebook).cells:
        if cell.cell_type == "markdown" and cell.source.startswith("#"):
            title, _, cell.source = cell.source.partition("\n")
            found.append((title.lstrip("# "), []))
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.output_type != "stream"]
        if found and STOPPED not in cell.metadata.get("tags", ()):
            found[-1][1].append(cell)
    made = [[output for cell in cells for output in _outputs(cell)] for _, cells in found]
    return [
        Section(title, f"{name}-{number}", body(cells, title, f"{name}-{number}", files), not all(map(_idle, outputs)))
        for number, ((title, cells), outputs) in enumerate(zip(found, made, strict=True))
    ]


def body(cells: list[NotebookNode], title: str, place: str, files: Files = lambda name, kind: {}) -> str:
    """The cells as HTML; a table or an image is described by the title, or by the heading above it."""
    cells, about = copy.deepcopy(cells), title
    for number, cell in enumerate(cells):
        cell.id = f"{place}-cell-{number}"  # its place, for equal bytes
        if cell.cell_type == "markdown":
            headings = [row.lstrip("# ") for row in cell.source.splitlines() if row.startswith("#")]
            about = f"{headings[0]} ({title})" if headings else about
        for output in _outputs(cell):
            if "data" in output:
                output.data = {kind: output.data[kind] for kind in SHOWN if kind in output.data}
                output.metadata = _described(output, about, files)
    notebook = nbformat.v4.new_notebook(cells=cells)
    return _exporter().from_notebook_node(notebook)[0]


def _described(output: NotebookNode, title: str, files: Files) -> NotebookNode:
    """What report_cells.html needs to know of an output."""
    mark = _mark(output)
    about = {"kind": mark.get("kind", "said").replace(" ", "-"), "title": title, "idle": _idle(output)}
    about["files"] = files(mark["name"], mark["kind"]) if mark else {}
    if "image/png" in output.data:
        about["width"], about["height"] = page_size(base64.b64decode(output.data["image/png"]))
    return nbformat.from_dict({"report": about})


def _idle(output: NotebookNode) -> bool:
    """Whether an output tells of no run: it says so, or is a table none of whose lines was run."""
    table = output.get("data", {}).get("text/html", "")
    return _mark(output).get("kind") == "not run" or "<table" in table and "<td" not in table


def _mark(output: NotebookNode) -> dict:
    """What gmmvit.paper.notebook.show has put down about an output: its name and kind."""
    return output.get("metadata", {}).get("gmmvit", {})


def _outputs(cell: NotebookNode) -> list[NotebookNode]:
    return cell.get("outputs", [])


@cache
def _exporter() -> HTMLExporter:
    return HTMLExporter(
        template_name="basic",
        template_file="report_cells.html",
        extra_loaders=[FileSystemLoader(Path(__file__).parent)],
        exclude_input=True,
        exclude_anchor_links=True,
        exclude_output_prompt=True,
        sanitize_html=True,
        filters={"clean_html": harmless},
    )


def harmless(markup: str | bytes) -> str:
    """Markup of which only text, tables and headings are left; what might run, load or send something becomes text."""
    text = markup.decode() if isinstance(markup, bytes) else str(markup)
    return bleach.clean(text, tags=TAGS, attributes=KEPT)


def image(figure: Figure) -> dict:
    """A figure for an <img>: data (base64), width, height."""
    png = figure._repr_png_()
    return {"data": base64.b64encode(png).decode()} | dict(zip(("width", "height"), page_size(png), strict=True))


def page_size(png: bytes) -> tuple[int, int]:
    """Width and height of a figure in pixels of the page, whatever the density of its file."""
    image = Image.open(io.BytesIO(png))
    density = image.info.get("dpi", (INCH,))[0]
    return tuple(round(number / density * INCH) for number in image.size)
