"""What the masks of a model learned, in one file (npz without pickle): each mask's place and its parameters.

Learned scalars (sigma, alpha, amplitude) are kept in float32: the mask is rebuilt exactly from its formula. Free-form
elements are kept in float16; the largest there are, T2T's at 64 px, take 2 MB.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn

from ..core.attach import masks_of
from ..core.grids import Grid
from ..core.masks import MASKS, SpatialMask
from ..core.trace import plain

FILE = "masks.npz"  # in the folder of a run
MANY = 4_096  # numbers; a parameter with as many is kept in float16
RECORD = "masks"  # the array that holds the masks' places, as JSON


@dataclass(frozen=True, eq=False)
class LearnedMask:
    """One mask as it was learned: where it sits, and its parameters by name."""

    name: str  # of the attention module
    kind: str  # gmm, elm, gab
    grid: Grid
    key_grid: Grid
    prefix: tuple[int, int]  # class and register tokens among queries and keys, which the mask leaves alone
    heads: int
    share_heads: bool
    reaches_output: bool
    where: str  # "scores" or "probabilities"
    parameters: dict[str, np.ndarray]
    options: dict = field(default_factory=dict)  # that change the weights

    def weight(self) -> np.ndarray:
        """The mask without prefix tokens, (heads or 1, Nq, Nk)."""
        place = {"prefix": self.prefix, "key_grid": self.key_grid, "share_heads": self.share_heads} | self.options
        mask = MASKS[self.kind](self.grid, self.heads, **place)
        for name, values in self.parameters.items():
            setattr(mask, name, nn.Parameter(torch.from_numpy(values)))
        with torch.no_grad():
            return mask.weight().numpy()


def save(model: nn.Module, run: str | Path) -> None:
    """Writes the masks of a model, in forward order, into the folder of its run; equal masks make equal bytes."""
    model = plain(model)
    places = {id(site.mask): site for site in getattr(model, "spatial_sites", ())}
    masks = masks_of(model)
    arrays = {RECORD: np.array(json.dumps([_record(name, each, places[id(each)]) for name, each in masks.items()]))}
    for i, mask in enumerate(masks.values()):
        for name, parameter in mask.named_parameters():
            values = parameter.detach().cpu().float().numpy()
            arrays[f"{RECORD}/{i}/{name}"] = values.astype(np.float16) if values.size >= MANY else values
    np.savez_compressed(Path(run) / FILE, **arrays)


def read(run: str | Path) -> list[LearnedMask]:
    """The masks in the folder of a run, in forward order."""
    with np.load(Path(run) / FILE, allow_pickle=False) as file:
        masks = []
        for i, record in enumerate(json.loads(str(file[RECORD]))):
            names = record.pop("parameters")
            parameters = {name: file[f"{RECORD}/{i}/{name}"].astype(np.float32, copy=False) for name in names}
            pairs = {key: tuple(record.pop(key)) for key in ("grid", "key_grid", "prefix")}
            masks.append(LearnedMask(**record, **pairs, parameters=parameters))
        return masks


def _record(name: str, mask: nn.Module, site) -> dict:
    kind = next((kind for kind, each in MASKS.items() if type(mask) is each), None)
    if kind is None or not isinstance(mask, SpatialMask):
        known = ", ".join(each.__name__ for each in MASKS.values())
        raise TypeError(f"{name}: expected one of the masks that can be rebuilt ({known}), got {type(mask).__name__}")
    options = {"underflow": True} if getattr(mask, "underflow", False) else {}
    if getattr(mask, "base", None) is not None:
        options["base"] = mask.base.item()
    return {
        "name": site.name,
        "kind": kind,
        "grid": mask.grid,
        "key_grid": mask.key_grid,
        "prefix": mask.prefix,
        "heads": mask.heads,
        "share_heads": mask.share_heads,
        "reaches_output": site.reaches_output,
        "where": mask.where,
        "parameters": [parameter for parameter, _ in mask.named_parameters()],
    } | ({"options": options} if options else {})
