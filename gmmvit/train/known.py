"""The masks as rows name them, known without loading torch: what is read of a row wants their options alone.

They stand in masks.json, which a test compares with the masks and `python -m gmmvit.train.known` writes anew. Where the
masks have been loaded, and perhaps some of one's own with a name, they are asked themselves.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, NamedTuple, get_args, get_type_hints

FILE = Path(__file__).with_name("masks.json")


class Known(NamedTuple):
    """What a row may say of a mask."""

    options: dict[str, object]  # the type of each
    neutral: bool  # whether it has a start that changes nothing


def masks() -> Mapping[str, Known]:
    """The registered masks by name."""
    loaded = sys.modules.get("gmmvit.core.masks")
    return {name: _asked(name, kind) for name, kind in loaded.MASKS.items()} if loaded else _written()


@cache
def _asked(name: str, kind: type) -> Known:
    from ..core.masks import options_of

    hints = get_type_hints(kind.__init__)
    or_none = {option: get_args(hint)[0] for option, hint in hints.items() if type(None) in get_args(hint)}
    options = {option: or_none.get(option, hints[option]) for option in options_of(name)}
    return Known(options, getattr(kind, "neutral", None) is not None)


@cache
def _written() -> Mapping[str, Known]:
    content = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: Known(_types(said["options"]), said["neutral"]) for name, said in content.items()}


def _types(words: dict[str, str]) -> dict[str, object]:
    return get_type_hints(SimpleNamespace(__annotations__=words), {"Literal": Literal})


def text() -> str:
    """What belongs into masks.json."""
    from ..core import masks as _  # noqa: F401, so that they are asked

    said = {
        name: {"options": {option: _word(hint) for option, hint in each.options.items()}, "neutral": each.neutral}
        for name, each in masks().items()
    }
    return json.dumps(said, indent=1) + "\n"


def _word(hint: object) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
