"""What rows and backbones cost, counted before and kept in counted.json, so that no model is built to tell it.

A row is looked up by all that it says but its seed; the rows of the profiles are there, and a test runs their checks,
counts them anew and compares. Whatever is not there is checked and counted when it is asked for.
`python -m gmmvit.paper.counted` writes the file anew.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

from ..train import tasks
from ..train.rows import Row

FILE = Path(__file__).with_name("counted.json")


def arm(row: Row) -> str:
    """All that a row says but its seed, as text."""
    return json.dumps([row.dataset, row.model, row.mask, row.recipe, dict(sorted(row.set.items()))])


def macs(row: Row) -> int:
    """Full MACs of one image of a row."""
    return rows().get(arm(row)) or count(row)


def count(row: Row) -> int:
    """The same, counted now; once for the rows that differ in nothing that it depends on, such as their masks."""
    settings = row.model_options if row.kind == "classification" else row.set
    return _counted(arm(replace(row, mask="none", set=settings)))


@cache
def _counted(arm: str) -> int:
    dataset, model, mask, recipe, settings = json.loads(arm)
    row = Row(dataset, model, mask, recipe, set=settings)
    return tasks.of(row.kind).macs(row)


@cache
def rows() -> dict[str, int]:
    """{arm: full MACs} of the rows that are known."""
    return {json.dumps(said): macs for *said, macs in _known()["rows"]}


def backbones() -> list[list]:
    """The lines of the table that `gmmvit models` prints."""
    return _known()["backbones"]


@cache
def _known() -> dict:
    return json.loads(FILE.read_text(encoding="utf-8"))


def text() -> str:
    """What belongs into counted.json."""
    from . import project
    from .backbones import costs
    from .profiles import read

    planned = [Row("cifar10", "vit")]  # by which speeds are told
    for file in sorted((project.root() / "profiles").glob("*.yaml")):
        planned += read(file).rows.values()
    arms = [json.loads(each) for each in dict.fromkeys(map(arm, planned))]
    found = {
        "rows": [[*said, count(Row(*said[:4], set=said[4]))] for said in arms],
        "backbones": [list(line) for line in costs()],
    }
    parts = (f'"{name}": [\n' + ",\n".join(map(json.dumps, lines)) + "\n]" for name, lines in found.items())
    return "{" + ",\n".join(parts) + "}\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
