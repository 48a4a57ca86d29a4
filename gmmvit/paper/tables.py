"""Tables of results as Markdown, HTML and CSV, each number written in one way."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .runs import Score
from .seeds import Gain, Summary

SMOKE = "smoke run: numbers mean nothing"
NOT_RUN, FAILED, ABSENT, UNKNOWN = "not run", "failed", "not in this profile", "not established"
STATES = (NOT_RUN, FAILED, ABSENT, UNKNOWN)  # words that stand where a number would
SHORT = 40  # letters of a cell that is not broken into lines


@dataclass(frozen=True)
class Column:
    """A column: its key in the lines, its title, and the format of its numbers."""

    key: str
    title: str
    form: str = ".2f"


@dataclass(frozen=True)
class Table:
    """Lines {key: text, number, Summary, Score or Gain} under columns, and a note that is printed with them."""

    columns: list[Column]
    lines: list[dict]
    note: str = ""

    def cells(self) -> list[list[str]]:
        """Every cell as text."""
        return [[text(line.get(column.key), column.form) for column in self.columns] for line in self.lines]

    def md(self) -> str:
        """GitHub's Markdown."""
        head = [[c.title for c in self.columns], ["---" if self._words(c) else "---:" for c in self.columns]]
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in head + self.cells()]
        return "\n".join([*([f"**{self.note}**", ""] if self.note else []), *lines]) + "\n"

    def html(self) -> str:
        """A <table>, its note as caption; cells of numbers have the class "number"."""
        aligned = {True: ' style="text-align: left"', False: ' class="number" style="text-align: right"'}
        kinds = [aligned[self._words(column)] for column in self.columns]

        def row(tag: str, cells: Iterable[str]) -> str:
            inside = zip(kinds, cells, strict=True)
            return (
                "<tr>"
                + "".join(f"<{tag}{kind}{_whole(tag, c)}>{html.escape(c)}</{tag}>" for kind, c in inside)
                + "</tr>"
            )

        lines = ["<table>"] + ([f"<caption>{html.escape(self.note)}</caption>"] if self.note else [])
        lines += ["<thead>", row("th", [column.title for column in self.columns]), "</thead>"]
        lines += ["<tbody>", *(row("td", cells) for cells in self.cells()), "</tbody>", "</table>"]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """For programs: plain numbers; a Score as <key>, <key>_sd and <key>_n; the note in a column of its own."""
        lines = []
        for line in self.lines:
            cells = [_plain(column, line.get(column.key)) for column in self.columns]
            note = {"note": self.note} if self.note else {}
            lines.append({name: value for cell in cells for name, value in cell.items()} | note)
        buffer = io.StringIO()
        names = dict.fromkeys(name for line in lines for name in line)
        writer = csv.DictWriter(buffer, names or [column.key for column in self.columns], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return buffer.getvalue()

    def save(self, folder: str | Path, name: str) -> None:
        """Writes <name>.md and <name>.csv."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        for suffix, content in (("md", self.md()), ("csv", self.csv())):
            (Path(folder) / f"{name}.{suffix}").write_text(content, encoding="utf-8")

    def _repr_html_(self) -> str:  # how Jupyter shows it
        return self.html()

    def _words(self, column: Column) -> bool:
        """Whether a column has words of its own: where they only stand for a number they are aligned like one."""
        values = [line.get(column.key) for line in self.lines]
        return any(isinstance(value, str) and value not in STATES for value in values)


def text(value: object, form: str = ".2f") -> str:
    """A value as every table and figure writes it: "–" for none, a true minus, mean ± sd (n), gain [95 % interval].

    One seed has neither sd nor interval: its number and (1) alone.
    """
    if isinstance(value, Summary):
        return _summary(value, form) if value.n else FAILED if getattr(value, "failed", 0) else NOT_RUN
    if value is None:
        return "–"
    return _number(value, form) if isinstance(value, int | float) else str(value)


def _summary(value: Summary, form: str) -> str:
    some, spread = f"{value.n}", ""
    if isinstance(value, Score) and value.n < value.planned:
        some += f" of {value.planned}" + (f", {value.failed} failed" if value.failed else "")
    if isinstance(value, Gain):
        spread = "" if value.low is None else f" [{text(value.low, form)} to {text(value.high, form)}]"
    elif value.sd is not None:
        spread = f" ± {text(value.sd, form.lstrip('+'))}"
    return f"{text(value.mean, form)}{spread} ({some})"


def _number(value: float, form: str) -> str:
    """With a true minus, which a number that is rounded to zero does not have."""
    written = format(value, form)
    if value < 0 and not set(written) & set("123456789"):
        written = format(0 * abs(value), form)
    return written.replace("-", "\N{MINUS SIGN}")


def _whole(tag: str, cell: str) -> str:
    """Keeps a short cell of a notebook's table in one line: Jupyter and GitHub understand the old attribute alone."""
    return " nowrap" if tag == "td" and len(cell) <= SHORT else ""


def span(values: Iterable[float], form: str = ".2f") -> str:
    """The least and the most of some numbers, "−0.47 to 0.17"; one of them where both are written alike."""
    known = [value if isinstance(value, int) else float(value) for value in values if not math.isnan(value)]
    ends = dict.fromkeys(text(each, form) for each in (min(known), max(known))) if known else ("–",)
    return " to ".join(ends)


def _plain(column: Column, value: object) -> dict:
    """A cell as columns of a CSV file."""
    key, form = column.key, column.form.replace(",", "").lstrip("+")
    if isinstance(value, Summary):
        state = "" if value.n else text(value)
        named = {key: state if value.mean is None else value.mean, f"{key}_sd": value.sd, f"{key}_n": value.n}
        if isinstance(value, Gain):
            named |= {f"{key}_low": value.low, f"{key}_high": value.high}
    else:
        named = {key: value}
    return {
        name: "" if each is None else format(each, form) if isinstance(each, float) else each
        for name, each in named.items()
    }


def pivot(lines: Iterable[Mapping], by: str, columns: Iterable[Column], index: Iterable[Column]) -> Table:
    """One line for each value of the index, and the columns once for each value of `by`, which heads their titles."""
    lines, columns, index, wide = list(lines), list(columns), list(index), {}
    values = list(dict.fromkeys(line[by] for line in lines))
    for line in lines:
        row = wide.setdefault(tuple(line[column.key] for column in index), {c.key: line[c.key] for c in index})
        row |= {f"{line[by]} {column.key}": line[column.key] for column in columns}
    spread = [Column(f"{v} {c.key}", f"{v} {c.title}".strip(), c.form) for v in values for c in columns]
    return Table([*index, *spread], list(wide.values()))
