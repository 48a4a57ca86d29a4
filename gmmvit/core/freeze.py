"""After training, masks become constants: nothing of them is computed any more, only + or * (or a turn) is exported."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn as nn

from .batched import biased_product
from .gpsa import GatedPositions, gated
from .rewrite import CHILD
from .rewritten import Rewritten
from .rope import RotaryPositions
from .spatial import SpatialMask
from .trace import exported, plain


class Constant(SpatialMask):
    """What a mask was when it was frozen, in its place: nothing of it is learned or computed any more."""

    remedy = "use the image size it was frozen for, or call gmmvit.regrid(model, img_size) before gmmvit.freeze(model)"

    def __init__(self, mask: SpatialMask):
        super().__init__(mask.grid, mask.heads, prefix=mask.prefix, key_grid=mask.key_grid, share_heads=mask.rows == 1)
        for name in ("additive", "where", "takes_scale", "takes_product", "taken_scale"):
            setattr(self, name, getattr(mask, name))
        self.of = type(mask).__name__

    def extra_repr(self) -> str:
        return f"{self.of}, {super().extra_repr()}"


class ConstantMask(Constant):
    """scores * M or scores + B."""

    by_weight = True

    def __init__(self, mask: SpatialMask):
        super().__init__(mask)
        self.register_buffer("constant", mask.full_weight() * self.taken_scale)  # (heads or 1, Pq + Nq, Pk + Nk)

    def full_weight(self) -> torch.Tensor:
        return self.constant / self.taken_scale

    def forward(self, scores: torch.Tensor, other: torch.Tensor | float = 1.0) -> torch.Tensor:
        """The scores with the mask in them; `other` is the key of a product, or the factor that the mask has in it."""
        key = None if isinstance(other, float) else other
        if exported(scores):
            scores, weight = scores if key is None else scores @ key, self.constant.type_as(scores)
            return scores + weight if self.additive else scores * weight
        self.check(scores.shape if key is None else (*scores.shape[:-1], key.shape[-1]))
        if key is not None:
            return biased_product(scores, key, self.constant)
        weight = self.constant.to(scores.dtype)
        return scores + weight if self.additive else scores * weight


class ConstantGate(Constant):
    """probabilities * kept + added, what is added sharing out what they have on the patches."""

    def __init__(self, mask: GatedPositions):
        super().__init__(mask)
        for name, part in zip(("kept", "added"), mask.parts(), strict=True):
            self.register_buffer(name, part)  # (heads, Pq + Nq, Pk + Nk)

    def full_weight(self) -> torch.Tensor:
        return self.added

    def strength(self) -> float:
        return (1 - self.kept[..., self.prefix[0] :, self.prefix[1] :]).abs().mean().item()

    def forward(self, probabilities: torch.Tensor) -> torch.Tensor:
        self.here(probabilities)
        return gated(probabilities, self.kept, self.added, self.prefix[1])


class ConstantTurn(Constant):
    """The product of query and key, turned by angles that are known."""

    def __init__(self, mask: RotaryPositions):
        super().__init__(mask)
        for name, part in zip(("of_query", "of_key"), mask.turns(), strict=True):
            self.register_buffer(name, part)  # (heads or 1, P + N, 2 width)

    def turns(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.of_query, self.of_key

    weight, full_weight, strength = RotaryPositions.weight, RotaryPositions.full_weight, RotaryPositions.strength
    operands, forward = RotaryPositions.operands, RotaryPositions.forward


CONSTANTS = {GatedPositions: ConstantGate, RotaryPositions: ConstantTurn}


@torch.no_grad()
def freeze(model: nn.Module) -> nn.Module:
    """The model, with every mask a constant: the same logits, no mask to learn, the fastest and most portable form.

    In place, as `fold` is; the model takes images of the size that it had, and `detach` takes the constants off.
    """
    model = plain(model)
    sites = getattr(model, "spatial_sites", ())
    if not sites:
        raise ValueError(f"{type(model).__name__} has no mask to freeze: expected masks of attach(model, ...)")
    for site in sites:
        if not isinstance(site.mask, SpatialMask) or site.mask.where == "product" and _kind(site.mask) is ConstantMask:
            raise ValueError(f"{site.name}: a {type(site.mask).__name__} cannot be frozen: expected a SpatialMask")
    frozen = {site.mask: _kind(site.mask)(site.mask).train(site.mask.training) for site in sites}
    for module in model.modules():
        masks = getattr(module, CHILD, None)
        for key, mask in masks.items() if isinstance(module, Rewritten) else ():
            masks[key] = frozen[mask]
    model.spatial_sites = [replace(site, mask=frozen[site.mask]) for site in sites]
    return model


def _kind(mask: SpatialMask) -> type[Constant]:
    return next((constant for kind, constant in CONSTANTS.items() if isinstance(mask, kind)), ConstantMask)
