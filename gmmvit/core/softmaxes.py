"""One softmax attention: its map beside a fused kernel, the place of its heads, and whether it is one over tokens."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from .products import at_rest
from .rewrite import FUSED_CALLS
from .trace import tensors_of

ALL = slice(None)
PRODUCTS = {torch.matmul, torch.Tensor.matmul, torch.bmm, torch.Tensor.bmm, torch.baddbmm, torch.einsum}
SOFTMAXES = {F.softmax, torch.softmax, torch.Tensor.softmax, torch.special.softmax}


class Product(NamedTuple):
    """A query-key product."""

    name: str  # of the module that took it
    width: int  # the number of values summed over
    size: tuple[int, int]  # (Nq, Nk)


def rows_of(attention: torch.Tensor, rows: slice) -> torch.Tensor:
    """Some queries of a map: a copy, as a view would keep all of them in memory."""
    return attention if rows == ALL else attention[..., rows, :].clone()


def axis(input: torch.Tensor, dim: int | None = None, *_, **__) -> int | None:
    """The axis in the arguments of a softmax."""
    return dim


@contextmanager
def _beside() -> Iterator[None]:
    """Hides a computation from other function modes, and from gradient checkpointing, which counts saved tensors."""

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError("a map beside fused attention has first derivatives only: expected fused_attn = False")
        return tensor

    with saved_tensors_hooks(torch.Tensor.detach, unpack), torch._C.DisableTorchFunction():
        yield


@_beside()
def fused_softmax(
    rows: slice,
    query: torch.Tensor,  # (..., Nq, d)
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """softmax(scale Q K^T + mask) inside F.scaled_dot_product_attention, for some of the queries."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    scores = query[..., rows, :] * (query.shape[-1] ** -0.5 if scale is None else scale) @ key.transpose(-2, -1)
    if attn_mask is not None:
        attn_mask = attn_mask[..., rows, :] if attn_mask.shape[-2] > 1 else attn_mask
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return scores.softmax(-1)


@_beside()
def multi_head_softmax(*args, **kwargs) -> torch.Tensor:
    """The map (B, heads, Nq, Nk) inside F.multi_head_attention_forward, before dropout."""
    call = inspect.signature(F.multi_head_attention_forward).bind(*args, **kwargs)
    call.arguments.update(training=False, need_weights=True, average_attn_weights=False)
    return F.multi_head_attention_forward(*call.args, **call.kwargs)[1]


def with_heads(attention: torch.Tensor, module: nn.Module, batch: int | None = None) -> torch.Tensor:
    """Brings the heads of a map to its second place, (B, heads, ..., Nq, Nk), where `module.num_heads` tells them."""
    heads = getattr(module, "num_heads", 1)
    if heads > 1 and batch is not None and attention.shape[0] == batch * heads:
        return attention.unflatten(0, (batch, heads))
    if attention.ndim == 3:
        return attention.unsqueeze(1)
    moved = attention.ndim > 4 and attention.shape[1] != heads and attention.shape[2] == heads
    return attention.movedim(2, 1) if moved else attention


def has_class_token(model: nn.Module) -> bool:
    """Whether a model learns a class token (registers and other prefix tokens are none)."""
    names = (name.rpartition(".")[2] for name, _ in model.named_parameters())
    return any(name.startswith(("cls_token", "class_token")) for name in names)


# ---- tokens or channels ---------------------------------------------------------------------------------------------

_MIXES_CHANNELS: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # of the modules that had to be tried


def mixes_channels(module: nn.Module, product: Product, args: tuple, kwargs: dict) -> bool:
    """Whether scores are channels x channels (cross-covariance attention), which are summed over tokens.

    Where the sizes leave it open, the module runs once more with NaN for a token: that reaches all channels, but only
    some rows and columns of scores over tokens.
    """
    first = next(tensors_of((*args, *kwargs.values())), None)
    tokens = () if first is None else (first.shape[1:-1].numel(), first.shape[2:].numel())
    if product.size[0] != product.size[1] or product.width not in tokens:
        return False
    if module not in _MIXES_CHANNELS:
        marked = torch.ones_like(first)
        marked[(0,) * first.ndim] = torch.nan
        args = [marked if argument is first else argument for argument in args]
        kwargs = {key: marked if argument is first else argument for key, argument in kwargs.items()}
        with at_rest(module), _FirstScores(product.size) as trial:
            module.forward(*args, **kwargs)
        reached = trial.scores.isnan().flatten(-2)
        reached = reached[reached.any(-1)]  # the matrices that the token reaches at all
        _MIXES_CHANNELS[module] = bool(len(reached) and reached.all())
    return _MIXES_CHANNELS[module]


class _FirstScores(TorchFunctionMode):
    """Keeps the first product of a size; norms over all tokens do nothing meanwhile."""

    def __init__(self, size: tuple[int, int]):
        super().__init__()
        self.size, self.scores = size, torch.empty(0, *size)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = args[0] if func is F.group_norm else func(*args, **(kwargs or {}))
        scores = result if func in PRODUCTS else args[0] @ args[1].transpose(-2, -1) if func in FUSED_CALLS else None
        if scores is not None and tuple(scores.shape[-2:]) == self.size and not len(self.scores):
            self.scores = scores
        return result
