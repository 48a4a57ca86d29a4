"""Published numbers by table, read from published.toml, with the source of each and what is known to be wrong in it."""

from __future__ import annotations

import tomllib
from pathlib import Path

from ..core.errors import unknown


def tables() -> dict[str, dict]:
    """Every published table: {name: {title, source, note, rows}}."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def table(name: str) -> dict:
    """One published table: title, source, note and rows."""
    known = tables()
    if name not in known:
        raise ValueError(unknown("published table", name, known))
    return known[name]
