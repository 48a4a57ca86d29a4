"""The masks by name, and their options."""

from __future__ import annotations

import inspect
import re

import torch.nn as nn

from .errors import shown

PLACE = ("grid", "heads", "prefix", "key_grid")  # what a site tells its mask; the rest are options
MASKS: dict[str, type[nn.Module]] = {}


def register_mask(name: str, cls: type[nn.Module]) -> None:
    """Gives a class of masks a name: for attach, save and load, the rows of the pipeline and its pictures.

    It is called as `cls(grid, heads, prefix=..., key_grid=..., **options)`; its other arguments are its options, and
    a line "- `option`: words" of its docstring says what one does.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"name: expected a word such as 'fade', got {name!r}")
    if name in MASKS or name == "none":
        taken = f"the mask {MASKS[name].__name__}" if name in MASKS else "no mask"
        raise ValueError(f"name: expected one that is free, got {name!r}, which stands for {taken}")
    if not isinstance(cls, type) or not issubclass(cls, nn.Module):
        raise TypeError(f"cls: expected a class of modules, as SpatialMask is, got {shown(cls)}")
    parameters, told = inspect.signature(cls).parameters, _told(cls)
    wrong = [f"no {each}" for each in told if each not in parameters]
    wrong += [
        f"{each} without a default" for each, p in parameters.items() if each not in PLACE and p.default is p.empty
    ]
    if wrong:
        places = ", ".join(told)
        raise TypeError(
            f"cls: expected a class that takes {places} and options, got {cls.__name__}: {', '.join(wrong)}"
        )
    MASKS[name] = cls


def options_of(name: str) -> dict[str, tuple[object, str]]:
    """The options of a registered mask: what each is by default, and what the mask's docstring says of it."""
    said = dict(re.findall(r"^- `(\w+)`: (.*)$", inspect.getdoc(MASKS[name]) or "", re.M))
    parameters, told = inspect.signature(MASKS[name]).parameters.values(), _told(MASKS[name])
    return {each.name: (each.default, said.get(each.name, "")) for each in parameters if each.name not in told}


def _told(cls: type[nn.Module]) -> tuple[str, ...]:
    """What a site tells a mask of this class."""
    return (*PLACE, "width") if getattr(cls, "needs_width", False) else PLACE
