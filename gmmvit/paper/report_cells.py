"""Executed notebooks as light HTML: their prose, tables, figures and errors; no code, nothing that runs or loads."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

import bleach
import nbformat
from jinja2 import FileSystemLoader
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from PIL import Image
from traitlets.config import Config

SHOWN = "text/html text/markdown image/png text/plain".split()  # of outputs: no scripts
TAGS = frozenset(bleach.ALLOWED_TAGS) | frozenset(
    "h1 h2 h3 h4 h5 h6 p br hr pre div span sub sup del table caption thead tbody tr th td".split()
)
KEPT = {"*": ["class", "id"], "a": ["href", "title"], "td": ["nowrap"]}
LONGEST = 48  # letters of a place in a cell's id, which nbformat allows 64
STOPPED = "papermill-error-cell-tag"  # of cells that papermill puts in where a notebook broke off
INCH = 115  # pixels of the page for an inch of a figure: its text of 8 points is as large as that of a table
Files = Callable[[str, str], dict[str, str]]  # name and kind of what a notebook made: {suffix: link}


def read(path: Path) -> NotebookNode | None:
    """A notebook, unless there is none or its writing was cut short."""
    try:
        return nbformat.read(path, as_version=4)
    except (OSError, ValueError):
        return None


def outputs(cells: Iterable[NotebookNode]) -> list[NotebookNode]:
    """What cells have shown, printed and raised."""
    return [output for cell in cells for output in cell.get("outputs", [])]


def last_error(notebook: NotebookNode | None) -> str:
    """The last error of a notebook in one line; empty where there is none."""
    errors = [each for each in outputs(notebook.cells if notebook else ()) if each.output_type == "error"]
    words = " ".join(f"{errors[-1].ename}: {errors[-1].evalue}".split()) if errors else ""
    return words if len(words) <= 200 else words[:199] + "…"


def sections(notebook: NotebookNode, name: str, files: Files) -> list[dict]:
    """The notebook cut at its headings: title, place (its id), body, and whether it ran; the first is the claim."""
    parts: list[list[NotebookNode]] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("#"):
            parts.append([])
        if parts and STOPPED not in cell.metadata.get("tags", ()):
            parts[-1].append(cell)
    found = []
    for number, (head, *cells) in enumerate(parts):
        title, _, prose = head.source.partition("\n")
        title, place, cells = title.lstrip("# "), f"{name}-{number}", [head | {"source": prose}, *cells]
        told = [each.get("metadata", {}).get("gmmvit", {}) for each in outputs(cells) if each.output_type != "stream"]
        ran, text = any(mark.get("ran", True) for mark in told), body(cells, title, place, files, printed=False)
        found.append({"title": title, "place": place, "body": text, "ran": ran})
    return found


def body(cells: Iterable[Mapping], title: str, place: str, files: Files | None = None, printed: bool = True) -> str:
    """Cells as HTML, with what they print or without; tables and images are described by title and heading."""
    numbered, about = [], title
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "markdown" and cell["source"].startswith("#"):
            about = f"{cell['source'].splitlines()[0].lstrip('# ')} ({title})"
        identity = f"{place[-LONGEST:]}-cell-{number}"  # for equal bytes
        known = {"id": identity, "metadata": {"about": about}}
        numbered.append(nbformat.from_dict({**cell, **known}))
    resources = {"files": files or (lambda name, kind: {}), "printed": printed}
    return _exporter().from_notebook_node(nbformat.v4.new_notebook(cells=numbered), resources)[0]


@cache
def _exporter() -> HTMLExporter:
    return HTMLExporter(
        config=Config({"NbConvertBase": {"display_data_priority": SHOWN}}),
        template_name="basic",
        template_file="report_cells.html",
        extra_loaders=[FileSystemLoader(Path(__file__).parent)],
        exclude_input=True,
        exclude_anchor_links=True,
        exclude_output_prompt=True,
        sanitize_html=True,
        filters={"clean_html": harmless, "page_size": page_size},
    )


def harmless(markup: str | bytes) -> str:
    """Markup of which only text, tables and headings are left; what might run, load or send something becomes text."""
    text = markup.decode() if isinstance(markup, bytes) else str(markup)
    return bleach.clean(text, tags=TAGS, attributes=KEPT)


def page_size(png: str) -> dict[str, int]:
    """Width and height, in pixels of the page, of a figure as base64, whatever the density of its file."""
    image = Image.open(io.BytesIO(base64.b64decode(png)))
    density = image.info.get("dpi", (INCH,))[0]
    return {name: round(number / density * INCH) for name, number in zip(("width", "height"), image.size, strict=True)}
