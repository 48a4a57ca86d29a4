"""Published numbers by table, read from published.toml, with the source of each and what is known to be wrong in it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pandas as pd

from ..core.errors import unknown
from .names import DATASETS


def tables() -> dict[str, dict]:
    """Every published table: {name: {title, source, note, rows}}."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def table(name: str) -> dict:
    """One published table: title, source, note and rows."""
    known = tables()
    if name not in known:
        raise ValueError(unknown("published table", name, known))
    return known[name]


def numbers(rows: list[dict]) -> pd.DataFrame:
    """The numbers of published rows one by one: their keys, "dataset" and "published", data set after data set."""
    names = {name.replace("-", "_"): name for name in DATASETS}
    found = pd.DataFrame(rows)
    places = [column for column in found if column in names]
    found = found.melt([column for column in found if column not in names], places, "dataset", "published")
    return found.assign(dataset=found.dataset.map(names)).dropna(subset="published")
