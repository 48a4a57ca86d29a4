"""The masks by name, and their options."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .spatial import SpatialMask

PLACE = ("grid", "heads", "prefix", "key_grid")  # what a site tells its mask; the rest are options
MASKS: dict[str, type[SpatialMask]] = {}


def options_of(name: str) -> dict[str, tuple[object, str]]:
    """The options of a registered mask: what each is by default, and what the mask's docstring says of it."""
    said = dict(re.findall(r"^- `(\w+)`: (.*)$", inspect.getdoc(MASKS[name]) or "", re.M))
    parameters = inspect.signature(MASKS[name]).parameters.values()
    return {each.name: (each.default, said.get(each.name, "")) for each in parameters if each.name not in PLACE}
