"""Tables of results as Markdown, HTML and CSV: titles and formats of columns by key, each number written in one way.

A number of ours is `key`, with `key_sd`, `key_n`, `key_low` and `key_high` where it is of several seeds; `key_state` is
the word that stands where it is missing: "not run", "failed", "not in this profile"; `key_note` is said behind it.
"""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from ..train.rows import Row
from .names import DATASETS, SCORES, readable
from .runs import FAILED, LARGER, NOT_RUN, WITHIN

SMOKE = "smoke run: numbers mean nothing"
ABSENT, UNKNOWN = "not in this profile", "not established"  # states beside those of gmmvit.paper.runs
SHORT = 40  # letters of a cell that is not broken into lines
AHEAD, BEHIND = "ahead by more than the seeds' spread", "behind by more than the seeds' spread"
LEVEL, SINGLE = "not to be told from zero", "of one seed, of which nothing can be said"
MEAN, GAIN = "ours, mean ± sd (n)", "gain: ours [95 % interval] (n)"
TITLES = {  # of columns, by key; a format stands beside a title where it is not .2f
    "dataset": "data set",
    "group": "what is varied",
    "label": ("arm", "d"),
    "series": "of these",
    "ours": "ours: mean ± sd (n)",
    "difference": ("difference", "+.2f"),
    "gain": ("our gain [95 % interval] (n)", "+.2f"),
    "verdict": "paired over seeds",
    "parameters": ("parameters", ",d"),
    "parameters_M": ("parameters (M): published", ".1f"),
    "macs_M": ("MACs, all (M)", ".1f"),
    "macs_paper_M": ("MACs, paper's count (M)", ".1f"),
    "depth": ("depth", "d"),
    "kernels": ("kernels, as published", "d"),
    "layer": ("layer", "d"),
} | {key.replace("-", "_"): title for key, title in (DATASETS | SCORES).items()}


class Column:
    """A column: its key in the lines, its title, and the format of its numbers; as in TITLES where none is given."""

    def __init__(self, key: str, title: str | None = None, form: str = ""):
        known = TITLES.get(key, key)
        known = (known, ".2f") if isinstance(known, str) else known
        self.key, self.title, self.form = key, known[0] if title is None else title, form or known[1]


@dataclass
class Table:
    """Lines {key: text or number} under columns (keys, or Columns), and a note that is printed with them.

    A line that tells nothing of ours is counted instead of printed, unless all are to be shown: a published table's.
    """

    columns: list
    lines: list
    note: str = ""
    shown: bool = field(default=False, kw_only=True)  # also lines that were not run

    def __post_init__(self):
        self.columns = [Column(each) if isinstance(each, str) else each for each in self.columns]
        self.lines = self.lines.to_dict("records") if isinstance(self.lines, pd.DataFrame) else list(self.lines)

    def __bool__(self) -> bool:
        return bool(self.lines)

    def cells(self) -> list[list[str]]:
        """Every cell as text."""
        return [[cell(line, column.key, column.form) for column in self.columns] for line in self.lines]

    def _printed(self) -> list[list[str]]:
        return [cells for cells, line in zip(self.cells(), self.lines, strict=True) if self.shown or not _idle(line)]

    @property
    def ran(self) -> bool:
        """Whether a number of ours stands in it, or a failure; where none is to, it is a table of published ones."""
        keys = {key for line in self.lines for key in line}
        ours = {key.removesuffix(part) for part in ("_n", "_state") for key in keys if key.endswith(part)}
        known = (not missing(line.get(key)) or _state(line, key) == FAILED for line in self.lines for key in ours)
        return not ours or any(known)

    def rest(self, link: str = "") -> str:
        """A sentence on the lines that are not printed; `link` is where all of them are."""
        hidden = len(self.lines) - len(self._printed())
        where = f"; all are in {link}" if link else ""
        return f"{hidden} of {len(self.lines)} lines {not_run(hidden)}{where}." if hidden else ""

    def md(self, name: str = "") -> str:
        """GitHub's Markdown; `name` is that of the CSV file beside it."""
        head = [[c.title for c in self.columns], ["---" if self._words(c) else "---:" for c in self.columns]]
        lines = ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in head + self._printed()]
        rest = self.rest(f"[{name}.csv]({name}.csv)" if name else "")
        return "\n".join([*([f"**{self.note}**", ""] * bool(self.note)), *lines, *(["", rest] * bool(rest))]) + "\n"

    def html(self, name: str = "") -> str:
        """A <table>, its note as caption; cells of numbers have the class "number"."""
        aligned = {True: ' style="text-align: left"', False: ' class="number" style="text-align: right"'}
        kinds = [aligned[self._words(column)] for column in self.columns]

        def row(tag: str, cells: Iterable[str]) -> str:
            inside = zip(kinds, cells, strict=True)
            made = "".join(f"<{tag}{kind}{_whole(tag, c)}>{html.escape(c)}</{tag}>" for kind, c in inside)
            return f"<tr>{made}</tr>"

        lines = ["<table>"] + ([f"<caption>{html.escape(self.note)}</caption>"] if self.note else [])
        lines += ["<thead>", row("th", [column.title for column in self.columns]), "</thead>"]
        lines += ["<tbody>", *(row("td", cells) for cells in self._printed()), "</tbody>", "</table>"]
        rest = self.rest(f"<code>tables/{html.escape(name)}.csv</code>" if name else "")
        return "\n".join(lines + [f"<p>{rest}</p>"] * bool(rest)) + "\n"

    def csv(self) -> str:
        """For programs: numbers, and states in columns of their own; the note too."""
        parts = ("", "_sd", "_n", "_low", "_high", "_state", "_note")
        keys = [(c.key + part, c.form) for c in self.columns for part in parts]
        lines = [
            {key: _plain(line[key], "d" if key.endswith("_n") else form) for key, form in keys if key in line}
            | ({"note": self.note} if self.note else {})
            for line in self.lines
        ]
        there = {key for line in lines for key in line}
        own = {column.key for column in self.columns}
        names = [key for key, _ in keys if key in there | own] + ["note"] * bool(self.note and lines)
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return buffer.getvalue()

    def save(self, folder: str | Path, name: str) -> None:
        """Writes <name>.md and <name>.csv."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        for suffix, content in (("md", self.md(name)), ("csv", self.csv())):
            (Path(folder) / f"{name}.{suffix}").write_text(content, encoding="utf-8")

    def _repr_html_(self) -> str:  # how Jupyter shows it
        return self.html()

    def _words(self, column: Column) -> bool:
        """Whether a column has words: where they only stand for a number they are aligned like one."""
        return any(isinstance(line.get(column.key), str) for line in self.lines)


def cell(line: Mapping, key: str, form: str = ".2f") -> str:
    """A cell as text: a number, its mean ± sd (n), its gain [95 % interval] (n), its note, or the word in its place.

    One seed has neither sd nor interval: its number and (1) alone.
    """
    value, sd, low, n = (line.get(key + part) for part in ("", "_sd", "_low", "_n"))
    state = _state(line, key)
    if missing(value):
        return state or "–"
    if missing(n):
        return text(value, form)
    spread = "" if missing(sd) else f" ± {text(sd, form.lstrip('+'))}"
    if f"{key}_low" in line:
        spread = "" if missing(low) else f" [{text(low, form)} to {text(line[f'{key}_high'], form)}]"
    note = line.get(f"{key}_note")
    return f"{text(value, form)}{spread} ({state or int(n)})" + (f", {note}" if note and not missing(note) else "")


def text(value: object, form: str = ".2f") -> str:
    """A value as every table and figure writes it: "–" for none, a true minus, which a rounded zero does not have."""
    if missing(value):
        return "–"
    if isinstance(value, str):
        return value
    written = format(_whole_number(value, form), form)
    if value < 0 and not set(written) & set("123456789"):
        written = format(0 * abs(value), form)
    return written.replace("-", "\N{MINUS SIGN}")


def missing(value: object) -> bool:
    """Whether there is no value: None or NaN."""
    return value is None or value != value


def not_run(count: int) -> str:
    """What is said of so many lines or rows without a run."""
    return f"{'was' if count == 1 else 'were'} not run"


def span(values: Iterable[float], form: str = ".2f") -> str:
    """The least and the most of some numbers, "−0.47 to 0.17"; one of them where both are written alike."""
    known = [value if isinstance(value, int) else float(value) for value in values if not math.isnan(value)]
    ends = dict.fromkeys(text(each, form) for each in (min(known), max(known))) if known else ("–",)
    return " to ".join(ends)


def _idle(line: Mapping) -> bool:
    """Whether a line has nothing of ours, because it was not run."""
    ours = [key.removesuffix("_n") for key in line if key.endswith("_n")]
    states = {_state(line, key) for key in ours if missing(line[key])}
    return NOT_RUN in states and states <= {NOT_RUN, ""} and all(missing(line[key]) for key in ours)


def _state(line: Mapping, key: str) -> str:
    """The word in place of a number; a frame has NaN where a line has none."""
    state = line.get(f"{key}_state")
    return "" if missing(state) else state


def _plain(value: object, form: str) -> object:
    """A value in a CSV file."""
    if missing(value):
        return ""
    if isinstance(value, str):
        return value
    return format(_whole_number(value, form), form.replace(",", "").lstrip("+"))


def _whole_number(value: float, form: str) -> float:
    """A column of whole numbers of which some are missing is one of floats."""
    return int(value) if form.endswith("d") else value


def _whole(tag: str, cell: str) -> str:
    """Keeps a short cell of a notebook's table in one line: Jupyter and GitHub understand the old attribute alone."""
    return " nowrap" if tag == "td" and len(cell) <= SHORT else ""


def pivot(lines: pd.DataFrame, by: str, columns: Iterable[Column], index: Iterable) -> Table:
    """One line for each value of the index, and the columns once for each value of `by`, which heads their titles."""
    index, wide = [Column(each) if isinstance(each, str) else each for each in index], {}
    for line in lines.to_dict("records"):
        keys = {column.key: line.pop(column.key) for column in index}
        value, row = line.pop(by), wide.setdefault(tuple(keys.values()), keys)
        row |= {f"{value} {key}": each for key, each in line.items()}
    values = lines[by].unique()
    spread = [Column(f"{v} {c.key}", f"{v} {c.title}".strip(), c.form) for v in values for c in columns]
    return Table([*index, *spread], list(wide.values()))


# ---- gains, of every paper ------------------------------------------------------------------------------------------


def gains_table(points: pd.DataFrame, arm: str = "arm") -> Table:
    """Published gain | our gain with its 95 % interval | whether it is larger than the seeds' spread."""
    columns = ["dataset", "model", Column("arm", arm), Column("published", "published gain", "+.2f"), "gain", "verdict"]
    return Table(columns, readable(points))


def gains_told(points: pd.DataFrame) -> dict[str, list[str]]:
    """Gains in words, by AHEAD, BEHIND, LEVEL, SINGLE and NOT_RUN; with the published one where its sign is another."""
    kinds: dict[str, list[str]] = {kind: [] for kind in (AHEAD, BEHIND, LEVEL, SINGLE, NOT_RUN)}
    for point in points.to_dict("records"):
        gain, published = point["gain"], point.get("published")
        kind = {LARGER: AHEAD if gain > 0 else BEHIND, WITHIN: LEVEL}.get(point["verdict"], SINGLE)
        other = point["verdict"] == LARGER and not missing(published) and published * gain < 0
        words = f" {cell(point, 'gain', '+.2f')}" + (f", published {text(published, '+.2f')}" if other else "")
        kinds[NOT_RUN if missing(gain) else kind].append(point["label"] + words * (not missing(gain)))
    return kinds


def gains_found(points: pd.DataFrame, ours: Iterable[int], theirs: int = 0) -> str:
    """A sentence on gains: which are larger than the seeds' spread, and which have another sign than published.

    `ours` and `theirs` are the passes over the training images; `theirs` 0 where that is nothing to be said.
    """
    kinds = {kind: gains for kind, gains in gains_told(points).items() if gains and kind != NOT_RUN}
    if not kinds:
        return ""
    found = " ".join(f"{kind.capitalize()}: {'; '.join(gains)}." for kind, gains in kinds.items())
    ours = set(ours)
    short = f" The paper makes {theirs}, so this is no test of its claim." * (max(ours) < theirs)
    return f"Ours, {after(ours)}. {found}{short}"


def after(passes: Iterable[int]) -> str:
    """After how many passes over the images, in words."""
    passes = set(passes)
    return f"after {span(passes, 'd')} pass{'es' * (passes != {1})} over the images"


def passes(rows: pd.DataFrame) -> set[int]:
    """How many passes the rows that were run made over their training images."""
    return {passes_of(row) for row, state in zip(rows.row, rows.state, strict=True) if state == "done"}


def passes_of(row: Row) -> int:
    """How many passes a row makes over its training images."""
    return row.recipe_settings.total_epochs * row.recipe_settings.passes
