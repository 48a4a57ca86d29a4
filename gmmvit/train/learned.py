"""What the masks of a model learned, in one file (npz without pickle): each mask's place, options and numbers.

Parameters are kept in float32, and the mask is rebuilt exactly by the class that has its name in MASKS, one's own too.
Those of many numbers are kept in float16; the largest there are, the free elements of T2T at 64 px, take 2 MB.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn

from ..core.attach import Site, masks_of
from ..core.errors import unknown
from ..core.grids import Grid, prefixes
from ..core.masks import MASKS, SpatialMask, options_of
from ..core.trace import plain
from .moved import weight_of

FILE = "masks.npz"  # in the folder of a run
MANY = 4_096  # numbers; a parameter with as many is kept in float16
RECORD = "masks"  # the array that holds the masks' places, as JSON


@dataclass(frozen=True, eq=False)
class LearnedMask:
    """One mask as it was learned: where it sits, and its parameters and buffers by name."""

    name: str  # of the attention module
    kind: str  # its name in MASKS
    grid: Grid
    key_grid: Grid
    prefix: tuple[int, int]  # class and register tokens among queries and keys, which the mask leaves alone
    heads: int
    share_heads: bool
    reaches_output: bool
    where: str  # "scores", "probabilities" or another place in the attention
    parameters: dict[str, np.ndarray]
    buffers: dict[str, np.ndarray] = field(default_factory=dict)
    options: dict = field(default_factory=dict)  # as attach was told them

    def weight(self) -> np.ndarray | None:
        """The mask without prefix tokens, (heads or 1, Nq, Nk); None of a mask that has no such weights."""
        with torch.no_grad():
            weight = weight_of(self.rebuilt())
        return None if weight is None else weight.detach().numpy()

    def rebuilt(self) -> nn.Module:
        """The mask itself, made by the class of its name."""
        if self.kind not in MASKS:
            raise ValueError(unknown("mask", self.kind, MASKS))
        kind, options = MASKS[self.kind], dict(self.options)
        if "share_heads" in options_of(self.kind):
            options["share_heads"] = self.share_heads
        if options.pop("start", None) == "neutral":
            options = kind.neutral(**options)
        with torch.random.fork_rng(devices=[]):
            mask = kind(self.grid, self.heads, prefix=self.prefix, key_grid=self.key_grid, **options)
        for name, values in (self.parameters | self.buffers).items():
            owner, _, own = name.rpartition(".")
            learned = torch.from_numpy(values)
            part = mask.get_submodule(owner)
            setattr(part, own, nn.Parameter(learned) if name in self.parameters else learned)
        return mask


def save(model: nn.Module, run: str | Path) -> None:
    """Writes the masks of a model, in forward order, into the folder of its run; equal masks make equal bytes."""
    model = plain(model)
    places = {id(site.mask): site for site in getattr(model, "spatial_sites", ())}
    masks = masks_of(model)
    arrays = {RECORD: np.array(json.dumps([_record(name, each, places[id(each)]) for name, each in masks.items()]))}
    for i, mask in enumerate(masks.values()):
        for name, values in mask.state_dict().items():
            values = values.cpu()
            values = (values.float() if values.is_floating_point() else values).numpy()
            many = values.size >= MANY and values.dtype == np.float32
            arrays[f"{RECORD}/{i}/{name}"] = values.astype(np.float16) if many else values
    np.savez_compressed(Path(run) / FILE, **arrays)


def read(run: str | Path) -> list[LearnedMask]:
    """The masks in the folder of a run, in forward order."""
    with np.load(Path(run) / FILE, allow_pickle=False) as file:
        masks = []
        for i, record in enumerate(json.loads(str(file[RECORD]))):
            numbers = {
                part: {name: _lifted(file[f"{RECORD}/{i}/{name}"]) for name in record.pop(part, ())}
                for part in ("parameters", "buffers")
            }
            pairs = {key: tuple(record.pop(key)) for key in ("grid", "key_grid", "prefix")}
            masks.append(LearnedMask(**record, **pairs, **numbers))
        return masks


def _lifted(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32) if values.dtype == np.float16 else values


def _record(name: str, mask: nn.Module, site: Site) -> dict:
    kind, options = getattr(mask, "made_of", (None, {}))
    if kind is None:
        known = ", ".join(MASKS)
        raise TypeError(f"{name}: expected a mask attached by its name ({known}), got a {type(mask).__name__}")
    if getattr(mask, "needs_width", False):
        options = {"width": mask.width} | options  # of a head, which attach has told it
    parameters = [parameter for parameter, _ in mask.named_parameters()]
    place = mask if isinstance(mask, SpatialMask) else site
    return {
        "name": site.name,
        "kind": kind,
        "grid": place.grid,
        "key_grid": place.key_grid,
        "prefix": prefixes(place.prefix),
        "heads": site.heads,
        "share_heads": getattr(mask, "share_heads", False),
        "reaches_output": site.reaches_output,
        "where": getattr(mask, "where", "scores"),
        "parameters": parameters,
        "buffers": [each for each in mask.state_dict() if each not in parameters],
        "options": options,
    }
