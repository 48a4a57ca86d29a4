"""The report of a profile: reports/<profile>/index.html, one page that loads nothing, and one for each run's notebook.

It reads runs/, and tables/*.md and figures/*.png as the notebooks named in report.toml left them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .. import __version__
from .names import DATASETS
from .profiles import Params
from .report_parts import Figure, MarkdownTable
from .report_rows import Line, lines, notebook_body
from .scores import write_curves
from .tables import SMOKE

OURS = "Ours"  # how a sentence on our results begins; others say why nothing is drawn
HERE = Path(__file__).parent
PAGES = Environment(
    loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
)


def write(params: Params, folder: Path, out: Path | None = None, *, partial: bool = False) -> Path:
    """Writes index.html, rows/*.html and epochs.csv of the profile whose runs are in the folder; returns index.html.

    A partial report shows the tables and figures of folder/partial, which were made without the rows that failed.
    """
    made = folder / "partial" if partial else folder
    out = out or made
    (out / "rows").mkdir(parents=True, exist_ok=True)
    table = lines(params, folder)
    shared = {"css": (HERE / "report.css").read_text(encoding="utf-8"), "profile": params.profile}
    shared |= {"smoke": SMOKE if params.profile == "smoke" else "", "partial": partial}
    for line in table:
        if line.shown:
            body = notebook_body(line.notebook, f"run {line.name}")
            _save(out / line.page, "report_row.html", line=line, body=body, **shared)
    pages = {line.name: quote(line.page) for line in table if line.linked(out)}
    for page in (out / "rows").glob("*.html"):
        if page.stem not in pages:  # of a row that is no more
            page.unlink()
    if not partial:
        write_curves(params, folder)
    content = {"facts": facts(table, folder), "sections": sections(made, out), "lines": table, "pages": pages}
    content["told"] = [part for each in content["sections"] for part in each["parts"] if part["found"].startswith(OURS)]
    return _save(out / "index.html", "report.html", **content, **shared)


def _save(path: Path, template: str, **content) -> Path:
    path.write_text(PAGES.get_template(template).render(content), encoding="utf-8")
    return path


# ---- what was run ---------------------------------------------------------------------------------------------------


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


PAGES.filters["duration"] = duration


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


# ---- tables and figures ---------------------------------------------------------------------------------------------


def listed() -> list[dict]:
    """The notebooks and what they make, in the order of the page: report.toml."""
    return tomllib.loads((HERE / "report.toml").read_text(encoding="utf-8"))["notebook"]


def sections(made: Path, out: Path) -> list[dict]:
    """For each notebook its title, claim and parts; what it made and report.toml does not list comes last."""
    found = []
    for notebook in listed():
        name, parts = notebook["name"], list(notebook["parts"])
        known = {(kind, part[kind]) for part in parts for kind in part if kind in ("table", "figure")}
        for kind, pattern in (("table", "tables/*.md"), ("figure", "figures/*.png")):
            for path in sorted(made.glob(pattern)):
                if path.stem.startswith(f"{name}-") and (kind, path.stem) not in known:
                    title = path.stem.removeprefix(f"{name}-").replace("-", " ").replace("_", " ").capitalize()
                    parts.append({kind: path.stem, "title": title, "claim": ""})
        stems = [part.get("table") or part["figure"] for part in parts]
        first = [stem not in stems[:number] for number, stem in enumerate(stems)]
        parts = [_part(part, told, made, out) for part, told in zip(parts, first, strict=True)]
        found.append(notebook | {"parts": parts})
    return found


def _part(part: dict, told: bool, made: Path, out: Path) -> dict:
    """A part with its content, a MarkdownTable or a Figure, or None; what was found, if it is `told` here; links."""
    kind = "table" if "table" in part else "figure"
    folder, shown, others = {"table": ("tables", "md", ("csv",)), "figure": ("figures", "png", ("pdf",))}[kind]
    path = made / folder / f"{part[kind]}.{shown}"
    content = {"table": MarkdownTable, "figure": Figure}[kind].read(path) if path.is_file() else None
    files = [each for each in (path, *(path.with_suffix(f".{other}") for other in others)) if each.is_file()]
    links = {each.suffix[1:]: quote(Path(os.path.relpath(each, out)).as_posix()) for each in files}
    words = made / "tables" / f"{part[kind]}.txt"  # what its numbers say, by gmmvit.paper.notebook.show
    found = words.read_text(encoding="utf-8").strip() if told and words.is_file() else ""
    shown = {"content": content, "links": links, "found": found, "ran": content is not None and content.ran}
    return {"kind": kind, "name": part[kind], "wide": []} | shown | part
