"""The sentence of an error: what was expected, what came, and the nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(what: str, got: object, valid: Iterable[str]) -> str:
    """One sentence for a name that is not among the valid ones."""
    valid = sorted(valid)
    near = difflib.get_close_matches(str(got), valid, n=1, cutoff=0.4)
    hint = f"; the nearest is {near[0]!r}" if near else ""
    return f"unknown {what} {got!r}: expected one of {', '.join(valid)}{hint}"


def shown(value: object, longest: int = 200) -> str:
    """A value as Python writes it, cut where that is long."""
    text = repr(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"
