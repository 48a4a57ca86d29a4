"""The report of a profile: reports/<profile>/index.html, one page that loads nothing, and one for each run's notebook.

It is what was found and what was run, then the executed notebooks of reports/<profile>/notebooks without their code.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .. import __version__
from . import headline, notebook, report_cells
from .names import BACKBONES, DATASETS
from .profiles import Params, parse
from .project import root
from .report_rows import Line, lines
from .runs import of
from .scores import write_curves
from .tables import not_run, passes

HERE = Path(__file__).parent
FILES = {"table": ("tables", ("csv", "md")), "figure": ("figures", ("pdf", "png"))}  # what `show` saves, and where
PAGES = Environment(
    loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
)


def write(params: Params, folder: Path, out: Path | None = None, *, partial: bool = False) -> Path:
    """Writes index.html, rows/*.html and epochs.csv of the profile whose runs are in the folder; returns index.html.

    A partial report shows the notebooks of folder/partial, which were executed without the rows that failed.
    """
    made = folder / "partial" if partial else folder
    out = out or made
    told = notebooks(made if partial else made / "notebooks", lambda name, kind: _files(made, out, name, kind))
    (out / "rows").mkdir(parents=True, exist_ok=True)
    table = lines(params, folder)
    shared = {"css": (HERE / "report.css").read_text(encoding="utf-8"), "profile": params.profile}
    shared |= {"smoke": notebook.note_of(params.profile), "partial": partial}
    for line in table:
        if line.shown:
            body = report_cells.body(line.notebook.cells, f"run {line.row.name}", line.row.name)
            _save(out / line.page, "report_row.html", line=line, body=body, **shared)
    pages = {line.row.name: quote(line.page) for line in table if line.linked(out)}
    for page in (out / "rows").glob("*.html"):
        if page.stem not in pages:  # of a row that is no more
            page.unlink()
    if not partial:
        write_curves(params, folder)
    content = {"facts": facts(table, folder), "notebooks": told, "lines": table, "pages": pages}
    return _save(out / "index.html", "report.html", found=found(params, table), **content, **shared)


def _save(path: Path, template: str, **content) -> Path:
    path.write_text(PAGES.get_template(template).render(content), encoding="utf-8")
    return path


def facts(table: Iterable[Line], folder: Path) -> dict[str, list[str]]:
    """What was run, where, with what and for how long: {term: descriptions}."""
    table = list(table)
    times = [line.run["timing"] for line in table if line.run and line.run["timing"]]
    seconds = [time["seconds"] for time in times]
    states = Counter(line.state for line in table)
    done = f"{states.pop('done', 0)} of {len(table)} done"
    hours = [f"{duration(sum(seconds))} of training in all; {duration(max(seconds, default=0))} for the longest row"]
    return {
        "rows": [", ".join([done, *(f"{count} {state}" for state, count in states.items())])],
        "data sets": [", ".join(dict.fromkeys(DATASETS.get(line.row.dataset, line.row.dataset) for line in table))],
        "hours": hours if seconds else ["nothing is timed"],
        "device": _counted(map(device, times)),
        "versions": _counted(f"Python {t['python']}, torch {t['torch']}, timm {t['timm']}" for t in times),
        "code": [f"gmmvit {__version__}, {commit(folder)}"],
    }


def duration(seconds: float) -> str:
    """47 s, 12 min or 3.4 h."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


PAGES.filters |= {"duration": duration, "page_size": report_cells.page_size, "not_run": not_run}


def device(timing: dict) -> str:
    """What a row was trained on."""
    name = timing["gpu"] if timing["device"] == "cuda" else timing["processor"]
    counts = [(timing["threads"], "thread", "threads"), (timing["processes"], "process", "processes")]
    return ", ".join([f"{timing['device']}: {name}", *(f"{n} {one if n == 1 else many}" for n, one, many in counts)])


def _counted(values: Iterable[str]) -> list[str]:
    """Each value once; with the number of rows that have it, where there are several."""
    found = Counter(values)
    many = len(found) > 1
    return [f"{value} ({n} row{'s' * (n > 1)})" if many else value for value, n in found.items()] or ["not known"]


def commit(folder: Path) -> str:
    """The commit that last changed the package or the notebooks, and whether they differ from it now."""
    if not shutil.which("git"):
        return "no commit known"
    git = ["git", "-C", str(folder)]
    code = [":(top)gmmvit", ":(top)notebooks"]
    last = ["log", "-1", "--abbrev=10", "--format=%h", "--", *code]
    found = subprocess.run([*git, *last], capture_output=True, text=True)
    if not found.stdout.strip():
        return "no commit known"
    changed = subprocess.run([*git, "status", "--porcelain", "--", *code], capture_output=True, text=True).stdout
    return f"commit {found.stdout.strip()}" + (" with changes that are not committed" if changed else "")


# ---- what was found, and the notebooks -------------------------------------------------------------------------------


def found(params: Params, table: list[Line]) -> dict:
    """The opening: how long was trained, three sentences, a table, and a figure or None."""
    rows = of(params.rows, [line.run for line in table if line.run])
    rows = rows[rows.kind == "classification"]
    note, points = notebook.note_of(params.profile), headline.gains(rows)
    without = Counter(line.state for line in table if not line.run)
    drawn = headline.figure(points)
    drawn = notebook.headed(drawn, note) if drawn and note else drawn
    return {
        "length": headline.length(passes(rows[rows.model.isin(BACKBONES)])),
        "sentences": headline.sentences(points, len(table), without),
        "table": headline.table(points, note).html() if (points.gain_n > 0).any() else "",
        "figure": base64.b64encode(drawn._repr_png_()).decode() if drawn else "",
    }


def notebooks(folder: Path, files: report_cells.Files) -> list[dict]:
    """The notebooks of dvc.yaml in its order, then others: name, sections (none where it was not executed), error."""
    stages = (parse((root() / "dvc.yaml").read_text(encoding="utf-8")) or {}).get("stages", {})
    there = {path.stem: report_cells.read(path) for path in sorted(folder.glob("*.ipynb"))}
    if not there:
        raise FileNotFoundError(f"{folder}: expected the executed notebooks that `make repro` leaves there, got none")
    names = dict.fromkeys([*stages.get("notebook", {}).get("matrix", {}).get("name", ()), *there])
    return [
        {
            "name": name,
            "sections": report_cells.sections(there[name], name, files) if there.get(name) else [],
            "error": report_cells.last_error(there.get(name)),
        }
        for name in names
    ]


def _files(made: Path, out: Path, name: str, kind: str) -> dict[str, str]:
    """Links from a page in `out` to the files of a table or a figure, by their suffix; {} where there are none."""
    folder, suffixes = FILES.get(kind, ("", ()))
    paths = [made / folder / f"{name}.{suffix}" for suffix in suffixes]
    return {path.suffix[1:]: quote(Path(os.path.relpath(path, out)).as_posix()) for path in paths if path.is_file()}
