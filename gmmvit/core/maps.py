"""Reads attention maps out of any model while it runs: the softmaxes of its query-key products, by module name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import filter as matching
from typing import Any, NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import fx
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from .apart import with_attn_mask
from .errors import unknown
from .grids import layout
from .products import FUSED_CALLS, PRODUCTS, SOFTMAXES, Call, mixes_channels, running_calls
from .rewrite import CHILD
from .trace import plain, tensors_of
from .ways import FLEX, NATIVE, avoiding

ALL = slice(None)


@contextmanager
def attention_maps(
    model: nn.Module, layers: str | int | None = None, *, rows: slice | str = ALL
) -> Iterator[dict[str, torch.Tensor]]:
    """The softmax maps of the model's calls inside the block: {module name: (B, heads, Nq, Nk)}, in forward order.

    `layers` is a pattern ("blocks.*.attn") or an index in forward order (-1: the last). `rows` is a slice of queries,
    or "class": the class token's row, (B, heads, 1, Nk), of the layers that have it among their queries, or have one
    query at all.

    - A map is the softmax before dropout and talking heads, of the scores with all that was multiplied into or added to
      them. A mask attached with where="probabilities" is in it too: its rows then do not sum to 1.
    - It is the live tensor of the forward pass, with its gradient: detach it to keep it. With `rows`, and beside fused
      attention (there with first derivatives only), it is taken from the same queries and keys, but the model's output
      does not depend on it.
    - Windows count as images, (B * windows, heads, n, n), where the module is given them so; else they come after the
      heads. Heads merged with the batch are told by the module's `num_heads`; a map without heads gets one. Tokens are
      in the module's order (Hiera's are unrolled).
    - When a module runs again, its last call wins; several softmaxes of one call follow each other as heads.
    - What torch.compile compiled runs uncompiled inside the block.
    """
    if not (rows == "class" or isinstance(rows, slice)):
        raise ValueError(f"rows: expected a slice of queries or 'class', got {rows!r}")
    if layers == "" or not isinstance(layers, str | int | None):
        raise TypeError(f"layers: expected a pattern, an index or None, got {layers!r}")
    model = plain(model)
    modules = dict(model.named_modules())
    likely = [name for name, module in modules.items() if "att" in type(module).__name__.lower()]
    if isinstance(layers, str) and not matching(modules, layers):
        raise ValueError(unknown(f"attention layer of {type(model).__name__}", layers, likely or modules))
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and importing it takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(avoiding(FLEX, NATIVE))  # which have no map to read
        recorder = _Recorder(model, layers, rows, stack.enter_context(running_calls(model)))
        for mask in modules.values():
            if getattr(mask, "where", None) == "probabilities":
                stack.callback(mask.register_forward_hook(recorder.masked).remove)
        stack.enter_context(recorder)
        yield recorder.maps
    recorder.check()


class Scores(NamedTuple):
    """A query-key product that was met."""

    name: str  # of the module that took it
    width: int  # the number of values summed over
    size: tuple[int, int]  # (Nq, Nk)


class _Recorder(TorchFunctionMode):
    """Follows every query-key product, through the tensors made from it, to the softmax in the same module."""

    def __init__(self, model: nn.Module, layers: str | int | None, rows: slice | str, running: list[Call]):
        super().__init__()
        self.model, self.layers, self.rows, self.running = model, layers, rows, running
        self.maps: dict[str, torch.Tensor] = {}
        self.held: dict[str, torch.Tensor] = {}  # the maps, and those that an index may still mean
        self.seen: list[str] = []  # attention layers in forward order
        self.called = False
        self.scores = WeakTensorKeyDictionary()  # the Scores that a tensor was made from, the last first

    def check(self) -> None:
        """Raises a sentence for what was wanted and not recorded."""
        kind = type(self.model).__name__
        if not self.called:
            raise ValueError(f"attention_maps: expected a call of {kind} inside the block, got none")
        if not self.seen:
            raise ValueError(f"{kind} has no softmax attention over tokens to record")
        if isinstance(self.layers, int) and not -len(self.seen) <= self.layers < len(self.seen):
            total = len(self.seen)
            raise ValueError(f"layers: expected an index of the {total} attentions of {kind}, got {self.layers}")
        if not self._possible():
            raise ValueError(unknown(f"attention layer of {kind}", self.layers, self.seen))
        if not self.maps:
            raise ValueError(f"rows='class': no class token is among the queries of these layers of {kind}")

    def _possible(self) -> list[str]:
        """The layers seen so far that are wanted, or are as long as no more follow."""
        if not isinstance(self.layers, int):
            return matching(self.seen, self.layers or "*")
        return self.seen[self.layers :] if self.layers < 0 else self.seen[self.layers :][:1]

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.running and not isinstance(result, fx.Proxy):  # else a module's graph is being traced
            self.called = True
            self._follow(func, args, kwargs, result)
        return result

    def _follow(self, func: Any, args: tuple, kwargs: dict, result: Any) -> None:
        name = next(
            call.name for call in reversed(self.running) if f".{CHILD}." not in call.name
        )  # masks take products
        operands = list(tensors_of((*args, *kwargs.values())))
        if func in FUSED_CALLS:
            query, key, *_ = operands
            scores = Scores(name, query.shape[-1], (query.shape[-2], key.shape[-2]))
            self._record(scores, lambda rows: fused_softmax(rows, *args, **kwargs))
        elif func is F.multi_head_attention_forward:  # of nn.MultiheadAttention, whose insides do not show
            query, key, *_ = operands  # (N, B, C)
            scores = Scores(name, 0, (len(query), len(key)))
            self._record(scores, lambda rows: rows_of(multi_head_softmax(*args, **kwargs), rows))
        elif func in PRODUCTS and len(operands) > 1 and min(operand.ndim for operand in operands[-2:]) > 2:
            product = Scores(name, operands[-2].shape[-1], tuple(result.shape[-2:]))
            self.scores[result] = [product, *self._sources(operands)]  # it may be one that mixes the heads of scores
        elif sources := self._sources(operands):
            if func not in SOFTMAXES:
                for each in tensors_of(result):
                    self.scores[each] = sources
            elif _axis(*args, **kwargs) in (-1, result.ndim - 1):
                scores = next((each for each in sources if each.size == tuple(result.shape[-2:])), None)
                if scores:
                    self._record(scores, lambda rows: rows_of(result, rows))

    def _sources(self, operands: list[torch.Tensor]) -> list[Scores]:
        """The scores that one of the tensors was made from, if their module is still running."""
        found = dict.fromkeys(scores for operand in operands for scores in self.scores.get(operand, ()))
        running = {call.name for call in self.running} if found else ()
        return [scores for scores in found if scores.name in running]

    def _record(self, scores: Scores, compute: Callable[[slice], torch.Tensor]) -> None:
        call = next(call for call in reversed(self.running) if call.name == scores.name)
        first = next(tensors_of((*call.args, *call.kwargs.values())), None)
        tokens = () if first is None else (first.shape[1:-1].numel(), first.shape[2:].numel())
        if scores.size[0] == scores.size[1] and scores.width in tokens and mixes_channels(call):
            return
        if call.name not in self.seen:
            self.seen.append(call.name)
        rows = self._rows(scores.size[0])
        if rows is not None and call.name in self._possible():
            call.maps.append(with_heads(compute(rows), call.module, None if first is None else len(first)))
            self._hold(call)

    def _hold(self, call: Call) -> None:
        possible = self._possible()
        self.held[call.name] = call.maps[0] if len(call.maps) == 1 else torch.cat(call.maps, 1)
        self.held = {name: self.held[name] for name in possible if name in self.held}
        wanted = possible[:1] if isinstance(self.layers, int) else possible
        self.maps.clear()
        self.maps.update((name, self.held[name]) for name in wanted if name in self.held)

    def masked(self, mask: nn.Module, args: tuple, probabilities: torch.Tensor) -> None:
        """Puts what a mask made of the probabilities in the place of the map."""
        call = self.running[-1]
        if call.maps:
            call.maps[-1] = with_heads(rows_of(probabilities, self._rows(probabilities.shape[-2])), call.module)
            self._hold(call)

    def _rows(self, queries: int) -> slice | None:
        """The wanted of a layer's queries; None where the class token is wanted and not among them."""
        if self.rows != "class":
            return self.rows
        if queries == 1:
            return ALL
        image = next(tensors_of(self.running[0].args), None)
        found = layout(self.model, queries, image.shape[-2:] if image is not None and image.ndim == 4 else None)
        return slice(0, 1) if found and found[1] and has_class_token(self.model) else None


# ---- the maps of single calls ---------------------------------------------------------------------------------------


def rows_of(attention: torch.Tensor, rows: slice) -> torch.Tensor:
    """Some queries of a map: a copy, as a view would keep all of them in memory."""
    return attention if rows == ALL else attention[..., rows, :].clone()


def with_heads(attention: torch.Tensor, module: nn.Module, batch: int | None = None) -> torch.Tensor:
    """A map with its heads in the second place, (B, heads, ..., Nq, Nk), where `module.num_heads` tells them."""
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


def _axis(input: torch.Tensor, dim: int | None = None, *_: Any, **__: Any) -> int | None:
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
        scores = with_attn_mask(scores, attn_mask)
    return scores.softmax(-1)


@_beside()
def multi_head_softmax(*args: Any, **kwargs: Any) -> torch.Tensor:
    """The map (B, heads, Nq, Nk) inside F.multi_head_attention_forward, before dropout."""
    call = inspect.signature(F.multi_head_attention_forward).bind(*args, **kwargs)
    call.arguments.update(training=False, need_weights=True, average_attn_weights=False)
    return F.multi_head_attention_forward(*call.args, **call.kwargs)[1]
