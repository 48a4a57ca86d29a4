"""Starts of attention that need no mask: weights with which a fresh model attends as a trained one, or a convolution.

Assumed: biases of query, key, value and projection are 0; mimetic leaves positions as they are. impulse is its paper's
public code, but for nine offsets in an order that is drawn for each layer (there fixed), sharpness 7 for any size,
positions that are no quieter than there (0.36) but may be louder, and half of the directions of X (there k, with which
half of 64 patches miss their impulse in heads of 16 channels). It cannot know the patches, which are added to X.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F

from ..core.errors import unknown
from ..core.grids import Grid

QUERY_KEY, VALUE_OUT = 0.7, -0.4  # beta of the products, which is their alpha, too
SHARPNESS, LOUDNESS = 7.0, 0.36  # Frobenius norm of a head's queries and keys, and rms of the positions
PEAK, NOISE = 1000.0, 1.8  # what an impulse asks for a pair of patches that is in it, and the sd of what all others get
OFFSETS = 3  # a side of the square that impulses point to


def initialise(model: nn.Module, name: str) -> nn.Module:
    """The model, with the weights of its self-attentions drawn anew, in place: "mimetic" or "impulse".

    For every attention of timm's kind: a linear layer `qkv` for query, key and value of the model's width, and `proj`.
    """
    if name not in INITS:
        raise ValueError(unknown("initialisation", name, INITS))
    with torch.no_grad():
        INITS[name](model, _attentions(model))
    return model


def mimetic(model: nn.Module, attentions: list[nn.Module]) -> None:
    """W_Q W_K^T = 0.7 Z + 0.7 I cut to the rank of a head, W_V W_out = 0.4 Z - 0.4 I, Z uniform of variance 1 / width.

    Mimetic initialization (arXiv 2305.09828), for row vectors x W.
    """
    for attention in attentions:
        width, heads = attention.qkv.in_features, attention.num_heads
        query, key = _factors(_near_identity((heads, width, width), QUERY_KEY), width // heads)
        _put(attention, query, key)


def impulse(model: nn.Module, attentions: list[nn.Module]) -> None:
    """softmax(X W_Q W_K^T X^T / sqrt(k)) near a shift by one offset a head, X the normalised positions of the patches.

    Structured initialization (arXiv 2505.19985): W_Q W_K^T = X^+ S X^+T cut to the rank k of a head, with X^+ through
    the strongest half of X's directions, and S large where the key is the query's patch shifted. Values are mimetic.
    """
    grid, positions = _positions(model, {attention.qkv.in_features for attention in attentions})
    positions.mul_(max(1.0, LOUDNESS / positions.square().mean().sqrt().item()))
    patches = positions[0, positions.shape[1] - grid[0] * grid[1] :].double().cpu()  # (N, width)
    normed = F.layer_norm(patches, patches.shape[-1:])
    for attention in attentions:
        width, heads = attention.qkv.in_features, attention.num_heads
        wanted = shifts(grid, heads).double()
        wanted = torch.where(wanted > 0, PEAK, NOISE * torch.randn(wanted.shape, dtype=torch.float64))
        left, strength, right = torch.linalg.svd(normed, full_matrices=False)
        rank = width // heads
        kept = max(rank, len(normed) // 2)
        inverse = right[:kept].T / strength[:kept] @ left[:, :kept].T  # (width, N)
        query, key = _factors(inverse @ wanted @ inverse.T, rank)
        _put(attention, *(SHARPNESS * each / each.norm(dim=(-2, -1), keepdim=True) for each in (query, key)))


INITS: dict[str, Callable[[nn.Module, list[nn.Module]], None]] = {"mimetic": mimetic, "impulse": impulse}


def shifts(grid: Grid, heads: int) -> torch.Tensor:
    """1 where the key is the query's neighbour at the head's offset, of 3 x 3 in a drawn order, (heads, N, N)."""
    rows, columns = grid
    order = torch.randperm(OFFSETS**2).repeat(-(-heads // OFFSETS**2))[:heads]
    steps = torch.stack([order // OFFSETS, order % OFFSETS], 1) - OFFSETS // 2  # (heads, 2)
    places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))  # (N, 2)
    return (places[:, None] + steps[:, None, None] == places[None]).all(-1).float()


def _attentions(model: nn.Module) -> list[nn.Module]:
    """The self-attentions of a model that can be initialised; a sentence where there are none, or others."""
    found = {name: module for name, module in model.named_modules() if _is_attention(module)}
    if not found:
        raise ValueError(f"{type(model).__name__} has no attention to initialise: expected layers with qkv and proj")
    for name, module in found.items():
        qkv, proj, kind = getattr(module, "qkv", None), module.proj, type(module).__name__
        if not isinstance(qkv, nn.Linear) or not isinstance(proj, nn.Linear) or getattr(module, "head_first", False):
            raise ValueError(f"{name}: expected one linear layer qkv, query first, and one proj, got another {kind}")
        widths = qkv.out_features, proj.in_features, proj.out_features
        if widths != (3 * qkv.in_features, qkv.in_features, qkv.in_features):
            between = f"{qkv.in_features} to {widths[0]} and {widths[1]} to {widths[2]}"
            raise ValueError(f"{name}: expected queries, keys and values of the width of the tokens, got {between}")
    return list(found.values())


def _is_attention(module: nn.Module) -> bool:
    """Whether a module has heads, a projection, and query, key and value of the same tokens."""
    own = hasattr(module, "qkv") or hasattr(module, "q") and hasattr(module, "kv")
    return own and hasattr(module, "num_heads") and hasattr(module, "proj")


def _positions(model: nn.Module, widths: set[int]) -> tuple[Grid, torch.Tensor]:
    """The grid of a model's patches and its position embedding (1, prefix + N, width), from which impulses are made."""
    positions, grid = getattr(model, "pos_embed", None), getattr(getattr(model, "patch_embed", None), "grid_size", None)
    kind = type(model).__name__
    if (
        not isinstance(positions, torch.Tensor)
        or positions.ndim != 3
        or grid is None
        or widths != {positions.shape[-1]}
    ):
        raise ValueError(f"{kind} has no position embedding of one grid of patches, which impulses are made of")
    return tuple(grid), positions


def _near_identity(shape: tuple[int, ...], beta: float) -> torch.Tensor:
    """|beta| Z + beta I, with Z uniform of variance 1 / width, float64."""
    width = shape[-1]
    noise = (2 * torch.rand(shape, dtype=torch.float64) - 1) * (3 / width) ** 0.5
    return abs(beta) * noise + beta * torch.eye(width, dtype=torch.float64)


def _factors(products: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """L and R, (..., width, rank) each, of the nearest L R^T of that rank to products (..., width, width)."""
    left, strength, right = torch.linalg.svd(products)
    root = strength[..., None, :rank].sqrt()
    return left[..., :rank] * root, right.transpose(-2, -1)[..., :rank] * root


def _put(attention: nn.Module, query: torch.Tensor, key: torch.Tensor) -> None:
    """Writes queries and keys (heads, width, k) of x W, and mimetic values, into an attention."""
    width = attention.qkv.in_features
    value, out = _factors(_near_identity((width, width), VALUE_OUT), width)
    rows = [each.transpose(-2, -1).flatten(0, 1) for each in (query, key)]
    attention.qkv.weight.copy_(torch.cat([*rows, value.T]))
    attention.proj.weight.copy_(out)
    for layer in (attention.qkv, attention.proj):
        if layer.bias is not None:
            layer.bias.zero_()
