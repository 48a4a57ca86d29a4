"""The Gaussians of all layers with one grid, computed at once in a forward pass of the whole model.

A mixture is some twenty small operators a layer, forward and backward; on a GPU each is a launch. A layer that is
called by itself, or inside a compiled graph, computes its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch

if TYPE_CHECKING:
    from .gaussians import GaussianMask

_computed: WeakKeyDictionary[GaussianMask, torch.Tensor] = WeakKeyDictionary()  # weights of the last forward pass
_running: list[dict[GaussianMask, None]] = []  # the masks of each forward pass that is under way


def on_gpu(tensor: torch.Tensor) -> bool:
    """Whether each small operator is a launch, and threads add in no fixed order."""
    return tensor.device.type != "cpu"


@contextmanager
def computed_together(masks: Iterable[GaussianMask]) -> Iterator[None]:
    """Inside, these masks find their weights computed."""
    masks = dict.fromkeys(masks)  # in forward order
    for group in _groups(masks):
        for mask, weight in zip(group, group[0].weights_of(group), strict=True):
            _computed[mask] = weight
    _running.append(masks)
    try:
        yield
    finally:
        _running.pop()


def found(mask: GaussianMask) -> torch.Tensor | None:
    """The weight of a mask, where this forward pass has computed it, or is being recomputed for backward."""
    if torch.compiler.is_compiling():
        return None
    if not any(mask in masks for masks in _running) and torch._C._current_graph_task_id() == -1:
        return None
    weight = _computed.get(mask)
    if weight is not None and weight.requires_grad and not torch.is_grad_enabled():
        del _computed[mask]  # reentrant checkpointing: its second pass wants a graph of its own
        return weight.detach()
    return weight


def _groups(masks: Iterable[GaussianMask]) -> list[list[GaussianMask]]:
    """Masks that differ in nothing but their numbers; those that are alone compute for themselves."""
    groups: dict[tuple, list[GaussianMask]] = {}
    for mask in masks:
        if on_gpu(mask.pair):
            groups.setdefault(mask.kind, []).append(mask)
        _computed.pop(mask, None)
    return [group for group in groups.values() if len(group) > 1]
