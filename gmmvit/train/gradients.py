"""The float32 gradients of a step: collected from the working copy at once, averaged over processes in one piece."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn as nn

from .devices import sent
from .processes import World

ALIGNED = 16  # numbers; kernels read whole vectors where a gradient begins at a multiple of these
REPORTED = 3  # loss, whether somebody asked to stop, and how far off the next look is


class Gradients:
    """Views of one tensor, one for each weight: what a backward pass leaves is copied there by one kernel.

    One process in float32 needs none of it: its weights keep the gradients that autograd made. With `owned`, gradients
    never stay where autograd made them: replayed CUDA graphs write there again.
    """

    def __init__(self, pairs: Sequence[tuple[nn.Parameter, nn.Parameter]], world: World, owned: bool = False):
        self.pairs, self.world, self.agreed = list(pairs), world, False  # (weight, the one that a step computes with)
        self.owned = owned or world.size > 1
        sizes = [-(-full.numel() // ALIGNED) * ALIGNED for full, _ in self.pairs]
        if not self.owned and all(full is low for full, low in self.pairs):
            self.views = [None] * len(sizes)
            return
        self.flat = torch.zeros(sum(sizes) + REPORTED, device=world.device)
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        self.views = [
            self.flat.as_strided(full.shape, full.stride(), start)
            for (full, _), start in zip(self.pairs, starts, strict=True)
        ]

    def collect(self) -> None:
        """Adds what a backward pass left in the copies to the gradients of the weights."""
        made = [
            (full, low, view) for (full, low), view in zip(self.pairs, self.views, strict=True) if self._new(low, view)
        ]
        copied = [each for each in made if each[0] is not each[1]]
        first = [each for each in copied if each[0].grad is None]
        more = [each for each in copied if each[0].grad is not None]
        _copy([view for *_, view in first], [low.grad for _, low, _ in first])
        if more:
            lifted = [torch.empty_like(view) for *_, view in more]  # kernels of many tensors add numbers of one type
            _copy(lifted, [low.grad for _, low, _ in more])
            torch._foreach_add_([view for *_, view in more], lifted)
        own = [each for each in made if each[0] is each[1] and self.owned]
        _copy([view for *_, view in own], [low.grad for _, low, _ in own])
        for full, low, view in (*copied, *own):
            low.grad = None
            full.grad = view

    @staticmethod
    def _new(low: nn.Parameter, view: torch.Tensor | None) -> bool:
        return low.grad is not None and low.grad is not view

    def exchange(self, loss: torch.Tensor, *flags: float) -> torch.Tensor:
        """Averages the gradients over all processes, and loss and flags with them, (1 + flags); left on the device."""
        report = torch.cat([loss.view(1), sent(torch.tensor(flags), self.world.device)])
        if self.world.size == 1:
            return report
        silent = [view for (full, _), view in zip(self.pairs, self.views, strict=True) if full.grad is None]
        if not self.agreed:  # once: the sentence here, or an update that differs between processes later
            reached = [number for number, (full, _) in enumerate(self.pairs) if full.grad is not None]
            self.world.agreed(f"gradients of {len(reached)} of {len(self.pairs)} weights, the last one {reached[-1:]}")
            self.agreed = True
        if silent:
            torch._foreach_zero_(silent)
        self.flat[-REPORTED:].copy_(report)
        self.world.average(self.flat)
        return self.flat[-REPORTED:].clone()


def _copy(into: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    if into:
        torch._foreach_copy_(into, values)
