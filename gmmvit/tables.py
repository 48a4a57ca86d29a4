"""Tables of results as Markdown, HTML and CSV, each number written in one way."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .results import Score
from .seeds import Gain, Summary

SMOKE = "smoke run: numbers mean nothing"


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
        kinds = ["" if self._words(column) else ' class="number"' for column in self.columns]

        def row(tag: str, cells: Iterable[str]) -> str:
            inside = zip(kinds, cells, strict=True)
            return "<tr>" + "".join(f"<{tag}{kind}>{html.escape(cell)}</{tag}>" for kind, cell in inside) + "</tr>"

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
        return any(isinstance(line.get(column.key), str) for line in self.lines)


def text(value: object, form: str = ".2f") -> str:
    """A value as every table and figure writes it: "–" for none, a true minus, mean ± sd (n), gain [95 % interval]."""
    if isinstance(value, Score) and not value.n:
        return "failed" if value.failed else "not run"
    if isinstance(value, Gain):
        between = "–" if value.low is None else f"{text(value.low, form)} to {text(value.high, form)}"
        return f"{text(value.mean, form)} [{between}] ({value.n})"
    if isinstance(value, Summary):
        some = f"{value.n}"
        if isinstance(value, Score) and value.n < value.planned:
            some += f" of {value.planned}" + (f", {value.failed} failed" if value.failed else "")
        return f"{text(value.mean, form)} ± {text(value.sd, form.lstrip('+'))} ({some})"
    if value is None:
        return "–"
    return format(value, form).replace("-", "\N{MINUS SIGN}") if isinstance(value, int | float) else str(value)


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
