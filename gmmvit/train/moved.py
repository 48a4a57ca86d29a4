"""How far masks can move in a run, how far they have moved, and what shape they have."""

from __future__ import annotations

import math

import torch
import torch.nn as nn

from ..core.attach import masks_of
from ..core.grids import squared_distances
from ..core.masks import SpatialMask
from ..core.rewrite import CHILD
from .recipes import Recipe


def reach(recipe: Recipe, steps_per_epoch: int) -> str:
    """The line that says how far a mask can move: the learning rates of all steps, summed, times mask_lr."""
    if recipe.freeze_masks:
        return "masks: frozen as they start"
    lender = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=recipe.lr)
    set_lr, steps = recipe.schedule(lender, steps_per_epoch), recipe.total_epochs * steps_per_epoch
    total = math.fsum(map(set_lr, range(steps)))
    rule = {"adamw": "moves by about that at most", "sgd": "moves by its gradients times these"}[recipe.optimizer]
    summed = f"the learning rates of {steps:,} steps sum to {total:.3g}, times mask_lr {recipe.mask_lr:g} that is"
    return f"masks: {summed} {total * recipe.mask_lr:.3g}; under {recipe.optimizer} a number {rule}"


class Start:
    """What masks learn as a run begins with it, and how far its numbers are spread then."""

    def __init__(self, model: nn.Module):
        self.numbers = _numbers(model)
        alike: dict[str, list[torch.Tensor]] = {}  # of all layers, by the parameter's name
        for named in self.numbers.values():
            for name, values in named.items():
                alike.setdefault(name, []).append(values)
        self.spread = {name: _spread(torch.cat(values)) for name, values in alike.items()}

    def moved(self, model: nn.Module) -> dict[str, float]:
        """The rms over a layer's numbers of their change since the start, in spreads, by the attention's name."""
        return {
            layer: torch.cat(
                [(now - self.numbers[layer][name]) / self.spread[name] for name, now in named.items()]
            ).square().mean().sqrt().item()
            for layer, named in _numbers(model).items()
        }  # fmt: skip


def _numbers(model: nn.Module) -> dict[str, dict[str, torch.Tensor]]:
    """What the masks of each attention learn, flat in float64 on the CPU: {attention: {mask.parameter: values}}."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for place, mask in masks_of(model).items():
        layer, key = attention_and_key(place)
        for name, values in mask.named_parameters():
            copy = values.detach().flatten().to("cpu", copy=True).double()
            found.setdefault(layer, {})[f"{key}.{name}"] = copy
    return found


def attention_and_key(place: str) -> tuple[str, str]:
    """The name of a mask's attention module, and its own there, of its name in the model."""
    layer, _, key = place.rpartition(f".{CHILD}.")
    return layer, key


def _spread(values: torch.Tensor) -> float:
    """The rms deviation from the mean; where that is 0, the rms; where that is 0 too, 1."""
    return values.std(correction=0).item() or values.square().mean().sqrt().item() or 1.0


@torch.no_grad()
def shape(mask: nn.Module) -> tuple[float, float] | None:
    """M(1) / M(0) and M(corner) / M(0) of a mask: next patch and farthest one, beside the patch itself.

    M(d) is a head's mean weight at this distance. Of a factor M, the heads' common ratio is the one that fits best,
    sum_h M_h(d) M_h(0) / sum_h M_h(0)^2; of a bias B, which softmax makes a factor exp(B), the geometric mean of
    exp(B_h(d) - B_h(0)). None of a mask without weights for pairs of patches, or of a grid of one patch.
    """
    weight = weight_of(mask)
    if weight is None:
        return None
    distances, index = squared_distances(mask.grid, mask.key_grid)
    if len(distances) < 2:
        return None
    flat = weight.detach().to("cpu").double().flatten(1)  # (heads or 1, Nq * Nk)
    sums = flat.new_zeros(len(flat), len(distances)).index_add_(1, index, flat)
    own, *others = (sums / index.bincount())[:, [0, 1, -1]].unbind(1)
    if mask.additive:
        near, corner = ((other - own).mean().exp().item() for other in others)
    else:
        near, corner = (((other * own).sum() / own.square().sum()).item() for other in others)
    return near, corner


def weight_of(mask: nn.Module) -> torch.Tensor | None:
    """The weights of a mask, (heads or 1, Nq, Nk); None where it has none for pairs of patches."""
    try:
        return mask.weight() if isinstance(mask, SpatialMask) else None
    except NotImplementedError:  # it has a forward alone
        return None
