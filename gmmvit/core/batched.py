"""A weight that all images of a batch share: one sum over them backward, as a matrix product."""

from __future__ import annotations

from typing import Any

import torch


class Expand(torch.autograd.Function):
    """Tensor.expand over leading dimensions, whose backward sum is a product with ones: on a CPU faster than sum."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        ctx.shape = weight.shape
        return weight.expand(shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if gradient.device.type != "cpu":
            return gradient.sum_to_size(ctx.shape), None
        rows = gradient.reshape(-1, ctx.shape.numel())
        return (rows.new_ones(1, len(rows)) @ rows).view(ctx.shape), None


def biased_product(query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Q K + B with one B for all heads, (..., heads, Nq, Nk), in one operator."""
    shape = *query.shape[:-1], key.shape[-1]
    keys = key.expand(*shape[:-2], *key.shape[-2:]).reshape(-1, *key.shape[-2:])  # fewer heads than the query's
    queries = query.reshape(-1, *query.shape[-2:])
    bias = Expand.apply(bias.to(query.dtype), (len(queries), *shape[-2:]))
    return torch.baddbmm(bias, queries, keys).view(shape)
