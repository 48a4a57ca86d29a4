"""The parts of a report as files hold them: a table in Markdown, a figure as PNG."""

from __future__ import annotations

import base64
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from .tables import ABSENT, NOT_RUN

UNRUN = (NOT_RUN, ABSENT)
INCH = 115  # pixels of the page for an inch of a figure: its text of 8 points is as large as that of a table


@dataclass(frozen=True)
class MarkdownTable:
    """What gmmvit.paper.tables.Table.md wrote: the note, and cells of text; numbers are aligned to the right."""

    note: str
    head: list[str]
    numeric: list[bool]
    body: list[list[str]]

    @classmethod
    def read(cls, path: Path) -> Self:
        rows = path.read_text(encoding="utf-8").splitlines()
        note = "".join(row.strip("*") for row in rows if row and not row.startswith("|"))
        cells = [_cells(row) for row in rows if row.startswith("|")]
        if len(cells) < 2 or any(len(row) != len(cells[0]) for row in cells):
            raise ValueError(f"{path}: expected a Markdown table whose rows have equally many cells")
        head, rule, *body = cells
        return cls(note, head, [cell.endswith(":") for cell in rule], body)

    @property
    def idle(self) -> list[bool]:
        """Whether a row tells nothing of ours: all that its columns of ours have is that it was not run.

        Where no title speaks of ours, these are the columns in which something was not run.
        """
        columns = range(len(self.head))
        ours = [number for number in columns if re.search(r"\bours?\b", self.head[number])]
        ours = ours or [number for number in columns if any(row[number] in UNRUN for row in self.body)]
        return [bool(ours) and all(row[number] in ("–", *UNRUN) for number in ours) for row in self.body]

    @property
    def ran(self) -> bool:
        """Whether it tells something of ours."""
        return not all(self.idle)


def _cells(row: str) -> list[str]:
    inside = row.strip().removeprefix("|").removesuffix("|")
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", inside)]


@dataclass(frozen=True)
class Figure:
    """A PNG as a data address, and its size on the page."""

    source: str
    width: int
    height: int
    note: str = ""  # what there is to say of its numbers stands in the picture
    ran: bool = True

    @classmethod
    def read(cls, path: Path) -> Self:
        content = path.read_bytes()
        if not content.startswith(b"\x89PNG\r\n\x1a\n"):
            raise ValueError(f"{path}: expected a PNG, got a file that begins with {content[:8]!r}")
        return cls("data:image/png;base64," + base64.b64encode(content).decode(), *page_size(content))


def page_size(png: bytes) -> tuple[int, int]:
    """Width and height of a figure in pixels of the page, whatever the density of its file."""
    pixels = struct.unpack(">II", png[16:24])
    start = png.find(b"pHYs", 0, 200) + 4  # the chunk that says how many pixels are a metre
    density = 0.0254 * struct.unpack(">I", png[start : start + 4])[0] if start > 3 else INCH
    width, height = (round(number / density * INCH) for number in pixels)
    return width, height
