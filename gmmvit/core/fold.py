"""After training, a Gaussian attention bias goes into the position bias beside it: inference costs nothing more.

B_rel + A^2 exp(-d^2 / (2 sigma^2)) depends on the relative position alone, as B_rel does: a table of relative positions
takes it up entry by entry; a position MLP becomes the constant bias that it and the Gaussian add up to.
"""

from __future__ import annotations

import torch
import torch.nn as nn

from .attach import Site, detach
from .bias import SpatialBias


class ConstantBias(nn.Module):
    """B_ij for each head, in the place of a module that computes its bias (timm's RelPosMlp)."""

    def __init__(self, bias: torch.Tensor):  # (1, heads, N, N)
        super().__init__()
        self.register_buffer("bias", bias)

    def get_bias(self) -> torch.Tensor:
        return self.bias

    def forward(self, attn: torch.Tensor, shared_rel_pos: torch.Tensor | None = None) -> torch.Tensor:
        return attn + self.bias


@torch.no_grad()
def fold(model: nn.Module) -> nn.Module:
    """The model, with every Gaussian bias folded into its position bias: all of them, or none and a ValueError."""
    sites = list(getattr(model, "spatial_sites", ()))
    if not sites:
        raise ValueError(
            f"{type(model).__name__} has no mask to fold: expected Gaussian biases of attach(model, 'gab')"
        )
    biases = [_beside(model.get_submodule(site.name), site) for site in sites]
    for bias, site in zip(biases, sites, strict=True):
        weight = site.mask.full_weight().expand(site.heads, -1, -1)  # (heads, N, N)
        if hasattr(bias, "relative_position_bias_table"):
            _into_table(bias, weight)
        else:
            owner = model.get_submodule(site.name)
            was_training = bias.training  # a position MLP drops hidden units while it trains
            owner.rel_pos = ConstantBias(bias.eval().get_bias() + weight).train(was_training)
    return detach(model)


def _beside(attention: nn.Module, site: Site) -> nn.Module:
    """What holds the position bias that is added to the same scores."""
    if not (isinstance(site.mask, SpatialBias) and site.mask.relative):
        raise ValueError(
            f"{site.name}: a {type(site.mask).__name__} cannot be folded: expected a bias of relative positions, which "
            "is added, as a GaussianBias"
        )
    for holder in (attention, getattr(attention, "rel_pos", None)):
        if hasattr(holder, "relative_position_bias_table") and hasattr(holder, "relative_position_index"):
            return holder
    if hasattr(getattr(attention, "rel_pos", None), "get_bias"):
        return attention.rel_pos
    raise ValueError(
        f"{site.name} ({type(attention).__name__}) has no relative position bias of its own to fold into: expected a "
        "table (Swin, RelPosBias) or a position MLP (RelPosMlp); the model works on as it is, with its Gaussian biases"
    )


def _into_table(holder: nn.Module, weight: torch.Tensor) -> None:
    """table[index_ij, h] += weight[h, i, j]; pairs of one entry have one relative position, so one weight."""
    table, index = holder.relative_position_bias_table, holder.relative_position_index.flatten()
    added = torch.zeros_like(table)
    added[index] = weight.flatten(1).t().to(table.dtype)  # (pairs, heads)
    table += added
