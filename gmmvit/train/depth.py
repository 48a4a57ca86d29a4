"""Stochastic depth drawn from (seed, sample): the same branches are dropped for any number of processes or restarts."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn as nn
from timm.layers import DropPath

from ..core.products import at_rest
from ..data import draws
from .devices import sent

DEPTH = 3  # the stream of draws that belongs to this room (data.draws has ORDER = 1 and AUGMENTATION = 2)


class SeededDropPath(DropPath):
    """timm's DropPath, whose draws are handed to it before the forward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        factor = self.depth.factors[self.first_draw + self.call]  # (B,)
        if self.calls > 1:  # so that a pass that is recomputed (gradient checkpointing) draws the same
            self.call = (self.call + 1) % self.calls
        return x * factor.view(-1, *[1] * (x.ndim - 1))


class Depth:
    """The draws of every DropPath of a model, made at once for each batch."""

    def __init__(self, model: nn.Module, image: torch.Tensor, seed: int):
        self.seed = seed
        self.factors = torch.empty(0, 1)  # (draws, B)
        self.rates, self.scales = [], []
        paths = [m for m in model.modules() if isinstance(m, DropPath) and m.drop_prob]
        for path, calls in _calls(model, paths, image).items():
            path.__class__, path.depth, path.call = SeededDropPath, self, 0
            path.first_draw, path.calls = len(self.rates), calls
            self.rates += [path.drop_prob] * calls
            self.scales += [1 - path.drop_prob if path.scale_by_keep else 1.0] * calls

    def draw(self, keys: np.ndarray, device: torch.device, dtype: torch.dtype) -> None:
        """Decides for the samples with these keys which branches they keep."""
        if not self.rates:
            return
        seeds = draws.sample_seeds(self.seed, keys, DEPTH)
        uniform = np.stack([draws.uniform(seeds, number) for number in range(len(self.rates))])  # (draws, B)
        factors = (uniform >= np.array(self.rates)[:, None]) / np.array(self.scales)[:, None]
        self.factors = sent(torch.from_numpy(factors).to(dtype), device)


def _calls(model: nn.Module, paths: list[DropPath], image: torch.Tensor) -> dict[DropPath, int]:
    """How often a forward pass calls each of these modules (CaiT's blocks call theirs twice)."""
    counts = dict.fromkeys(paths, 0)

    def count(path, *_):
        counts[path] += 1

    hooks = [path.register_forward_hook(count) for path in paths]
    try:
        with at_rest(model):
            model(image)
    finally:
        for hook in hooks:
            hook.remove()
    return counts
