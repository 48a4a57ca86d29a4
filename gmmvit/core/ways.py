"""How a masked attention is computed: the explicit product, our kernel for CPUs, torch's fused one, FlexAttention.

Which one is taken is a table of this file's neighbour, ways.toml: for each kind of device and of mask, from how many
keys on. `gmmvit bench masks --device cuda --ways` measures and fills it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from . import native
from .trace import exported

if TYPE_CHECKING:
    from .masks import SpatialMask

EXPLICIT, FUSED, FLEX, NATIVE = "explicit", "fused", "flex", "native"
WHOLE = FUSED, FLEX, NATIVE  # which keep scores and probabilities to themselves
TABLE: dict[str, dict[str, list]] = tomllib.loads((files(__package__) / "ways.toml").read_text())
_AVOIDED: list[str] = []  # ways not to be taken for a while
_REPLACED: list[Callable] = []  # torch's fused kernel, while another stands in its place


def best_way(
    device: str, additive: bool, keys: int, width: int | None = None, dtype: torch.dtype = torch.float32
) -> str:
    """The way for masks on so many keys of so many channels a head; devices that are not in the table: explicit."""
    steps = TABLE.get(device, {}).get("additive" if additive else "multiplicative", ())
    way = next((name for least, name in reversed(steps) if keys >= least), EXPLICIT)
    if way == FLEX and torch.are_deterministic_algorithms_enabled():  # its kernels add a mask's gradient up by atomics
        way = EXPLICIT
    if way == NATIVE and (torch.compiler.is_compiling() or not native.suits(keys, width, dtype)):
        way = EXPLICIT
    return EXPLICIT if avoided(way) else way


def fuses(mask: SpatialMask | type[SpatialMask]) -> bool:
    """Whether a fused kernel computes attention with this mask: beside what is added, or of another query and key."""
    return getattr(mask, "additive", False) or getattr(mask, "where", "scores") == "product"


def way_of(mask: type[SpatialMask], device: str, keys: int, width: int = 32) -> str:
    """The way of attention with one mask of a kind, as it is by default, for heads of so many channels."""
    return EXPLICIT if mask.where == "probabilities" else best_way(device, fuses(mask), keys, width)


@contextmanager
def avoiding(*ways: str) -> Iterator[None]:
    """Takes the explicit product instead of these ways, for a while."""
    before = len(_AVOIDED)
    _AVOIDED.extend(ways)
    try:
        yield
    finally:
        del _AVOIDED[before:]


def avoided(way: str) -> bool:
    """Whether a way is not to be taken at present."""
    return way in _AVOIDED


@contextmanager
def own_attention() -> Iterator[None]:
    """Inside, attention without masks is as quick on a CPU as with them; torch's fused kernel there is slow."""
    if F.scaled_dot_product_attention is _own_attention:
        yield
        return
    _REPLACED.append(F.scaled_dot_product_attention)
    F.scaled_dot_product_attention = _own_attention
    try:
        yield
    finally:
        F.scaled_dot_product_attention = _REPLACED.pop()


def _own_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    traced = exported(query) or torch.compiler.is_compiling()
    if traced or dropout_p or is_causal or enable_gqa or query.device.type != "cpu":
        options = {"scale": scale, "enable_gqa": enable_gqa}
        return _REPLACED[-1](query, key, value, attn_mask, dropout_p, is_causal, **options)
    return native.masked_attention(query, key, value, (), attn_mask, scale, here=not avoided(NATIVE))


def flexed(
    query: torch.Tensor,  # (B, heads, Nq, d)
    key: torch.Tensor,
    value: torch.Tensor,
    masks: Sequence[SpatialMask],
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """softmax(M * (scale Q K^T) + attn_mask) V without an N x N map in memory; the masks act in their order."""
    masks = [mask.fitting((*query.shape[:-1], key.shape[-2])) for mask in masks]
    weights = [(mask.full_weight(), mask.additive) for mask in masks]  # (heads or 1, Nq, Nk) each
    own = []  # the dimensions that the attention mask is not expanded over
    if attn_mask is not None:
        attn_mask = attn_mask[(None,) * (4 - attn_mask.ndim)]
        own = [size > 1 for size in attn_mask.shape]
    if torch.is_autocast_enabled(query.device.type):
        low = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(low), key.to(low), value.to(low)

    def score_mod(score, b, h, i, j):
        for weight, additive in weights:
            each = weight[h if weight.shape[0] > 1 else 0, i, j]
            score = score + each if additive else score * each
        if attn_mask is None:
            return score
        added = attn_mask[tuple(place if several else 0 for place, several in zip((b, h, i, j), own, strict=True))]
        return torch.where(added, score, -torch.inf) if added.dtype == torch.bool else score + added

    return _kernel(query.device.type)(query, key, value, score_mod=score_mod, scale=scale)


def _kernel(device: str) -> Callable:
    """FlexAttention, compiled where it runs by itself: un-compiled it is the explicit product again."""
    from torch.nn.attention.flex_attention import flex_attention  # which imports the compiler: seconds

    return flex_attention if device == "cpu" or torch.compiler.is_compiling() else _compiled(flex_attention)


@cache
def _compiled(kernel: Callable) -> Callable:
    return torch.compile(kernel, dynamic=False)
