"""Reads attention maps out of any model while it runs: the softmaxes of its query-key products, by module name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import fx
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from .errors import unknown
from .grids import grid_of
from .products import ModuleStack
from .rewrite import CHILD, FUSED_CALLS
from .softmaxes import (
    ALL,
    PRODUCTS,
    SOFTMAXES,
    Product,
    axis,
    fused_softmax,
    has_class_token,
    mixes_channels,
    multi_head_softmax,
    rows_of,
    with_heads,
)
from .trace import tensors_of
from .ways import FLEX, avoiding

Layer = str | int | Callable[[str], bool]


@contextmanager
def attention_maps(
    model: nn.Module, layers: Layer | Iterable[Layer] | None = None, *, rows: slice | str = ALL
) -> Iterator[dict[str, torch.Tensor]]:
    """Records the softmax maps of the model's calls inside the block: {module name: (B, heads, Nq, Nk)}.

    `layers` is a pattern ("blocks.*.attn"), a predicate for names, an index in forward order (-1: the last), or a list
    of these. `rows` is a slice of queries, or "class": the class token's row, (B, heads, 1, Nk), of the layers that
    have it among their queries, or have one query at all.

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
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    choice = _Choice(model, layers)
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and importing it takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(avoiding(FLEX))  # which has no map to read
        recorder = _Recorder(model, choice, rows)
        stack.callback(recorder.close)
        stack.enter_context(recorder)
        yield recorder.maps
    recorder.check()


class _Choice:
    """Which attention layers are wanted, as they turn up in forward order."""

    def __init__(self, model: nn.Module, layers: Layer | Iterable[Layer] | None):
        self.kind = type(model).__name__
        self.named: list[tuple[Layer, set[str]]] = []  # what was asked for, and the modules it may mean
        self.indices: list[int] = []
        modules = dict(model.named_modules())
        if isinstance(layers, str) or not isinstance(layers, Iterable):
            layers = ["*" if layers is None else layers]
        for layer in layers:
            if isinstance(layer, int):
                self.indices.append(layer)
            elif isinstance(layer, str):
                self.named.append((layer, {name for name in modules if fnmatchcase(name, layer)}))
            elif callable(layer):
                self.named.append((layer, {name for name in modules if layer(name)}))
            else:
                raise TypeError(f"layers: expected patterns, predicates or indices, got {layer!r}")
        if not (self.named or self.indices):
            raise ValueError(f"layers: expected at least one pattern, predicate or index, got {layers!r}")
        likely = {name for name, module in modules.items() if "att" in type(module).__name__.lower()}
        self._check_names(modules, likely or modules)

    def _check_names(self, there: Iterable[str], valid: Iterable[str]) -> None:
        for layer, names in self.named:
            if names.isdisjoint(there):
                raise ValueError(unknown(f"attention layer of {self.kind}", layer, valid))

    def check(self, seen: list[str]) -> None:
        """Raises a sentence for what was asked for and did not turn up."""
        self._check_names(seen, seen)
        for i in self.indices:
            if not -len(seen) <= i < len(seen):
                raise ValueError(f"layers: expected an index of the {len(seen)} attentions of {self.kind}, got {i}")

    def of(self, seen: list[str]) -> set[str]:
        """The wanted among the layers seen so far."""
        by_index = {seen[i] for i in self.indices if -len(seen) <= i < len(seen)}
        return by_index.union(*(names.intersection(seen) for _, names in self.named))

    def possible(self, seen: list[str]) -> set[str]:
        """These, and those that become wanted when more layers follow."""
        last = min(-min([0, *self.indices]), len(seen))
        return self.of(seen).union(seen[len(seen) - last :])


# ---- following a model while it runs --------------------------------------------------------------------------------


class _Recorder(TorchFunctionMode):
    """Follows every query-key product, through the tensors made from it, to the softmax in the same module."""

    def __init__(self, model: nn.Module, choice: _Choice, rows: slice | str):
        super().__init__()
        self.model, self.choice, self.rows = model, choice, rows
        self.maps: dict[str, torch.Tensor] = {}
        self.held: dict[str, torch.Tensor] = {}  # the maps, and those an index may still mean
        self.seen: list[str] = []  # attention layers in forward order
        self.unfinished: set[str] = set()  # layers that have left a map in their present call
        self.called = False
        self.products = WeakTensorKeyDictionary()  # the Product that a tensor was made from
        self.stack = ModuleStack(model)
        masks = [module for module in model.modules() if getattr(module, "where", None) == "probabilities"]
        self.handles = [mask.register_forward_hook(self._masked) for mask in masks]

    def close(self) -> None:
        """Takes the hooks away."""
        self.stack.close()
        for handle in self.handles:
            handle.remove()

    def check(self) -> None:
        """Raises a sentence for what was wanted and not recorded."""
        kind = self.choice.kind
        if not self.called:
            raise ValueError(f"attention_maps: expected a call of {kind} inside the block, got none")
        if not self.seen:
            raise ValueError(f"{kind} has no softmax attention over tokens to record")
        self.choice.check(self.seen)
        if not self.maps:
            raise ValueError(f"rows='class': no class token is among the queries of these layers of {kind}")

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.stack.running and not isinstance(
            result, fx.Proxy
        ):  # a module's graph is being traced in its first call
            self.called = True
            self._follow(func, args, kwargs, result)
        return result

    def _follow(self, func: Any, args: tuple, kwargs: dict, result: Any) -> None:
        running = reversed([name for name, *_ in self.stack.running])
        name = next(name for name in running if f".{CHILD}." not in name)  # a mask may take its layer's product
        operands = list(tensors_of((*args, *kwargs.values())))
        if func in FUSED_CALLS:
            query, key, *_ = operands
            product = Product(name, query.shape[-1], (query.shape[-2], key.shape[-2]))
            self._record(product, lambda rows: fused_softmax(rows, *args, **kwargs))
        elif func is F.multi_head_attention_forward:  # of nn.MultiheadAttention, whose insides do not show
            query, key, *_ = operands  # (N, B, C)
            product = Product(name, 0, (query.shape[0], key.shape[0]))
            self._record(product, lambda rows: rows_of(multi_head_softmax(*args, **kwargs), rows))
        elif func in PRODUCTS and len(operands) > 1 and min(operand.ndim for operand in operands[-2:]) > 2:
            self.products[result] = Product(name, operands[-2].shape[-1], tuple(result.shape[-2:]))
        elif product := self._source(operands):
            if func not in SOFTMAXES:
                for each in tensors_of(result):
                    self.products[each] = product
            elif tuple(result.shape[-2:]) == product.size and axis(*args, **kwargs) in (-1, result.ndim - 1):
                self._record(product, lambda rows: rows_of(result, rows))

    def _source(self, operands: list[torch.Tensor]) -> Product | None:
        """The product that one of the tensors was made from, if its module is still running."""
        products = [product for operand in operands if (product := self.products.get(operand))]
        running = {name for name, *_ in self.stack.running} if products else ()
        return next((product for product in products if product.name in running), None)

    def _record(self, product: Product, compute: Callable[[slice], torch.Tensor]) -> None:
        name = product.name
        module, args, kwargs = next(call[1:] for call in reversed(self.stack.running) if call[0] == name)
        if mixes_channels(module, product, args, kwargs):
            return
        if name not in self.seen:
            self.seen.append(name)
            self.handles.append(module.register_forward_pre_hook(lambda *_: self.unfinished.discard(name)))
        rows = self._rows(product.size[0])
        if rows is None or name not in self.choice.possible(self.seen):
            return
        first = next(tensors_of((*args, *kwargs.values())), None)
        attention = with_heads(compute(rows), module, None if first is None else first.shape[0])
        if name in self.unfinished:
            attention = torch.cat([self.held[name], attention], 1)
        self.unfinished.add(name)
        self._hold(name, attention)

    def _hold(self, name: str, attention: torch.Tensor) -> None:
        self.held[name] = attention
        possible, wanted = self.choice.possible(self.seen), self.choice.of(self.seen)
        self.held = {each: self.held[each] for each in self.seen if each in self.held and each in possible}
        self.maps.clear()
        self.maps.update((each, tensor) for each, tensor in self.held.items() if each in wanted)

    def _masked(self, mask: nn.Module, args: tuple, probabilities: torch.Tensor) -> None:
        """Puts what a mask made of the probabilities in the place of the map."""
        name, module, *_ = self.stack.running[-1]
        if name in self.held:
            attention = with_heads(rows_of(probabilities, self._rows(probabilities.shape[-2])), module)
            before = self.held[name][:, : -attention.shape[1]]  # of other softmaxes in this call
            self._hold(name, torch.cat([before, attention], 1) if before.shape[1] else attention)

    def _rows(self, queries: int) -> slice | None:
        """The wanted of a layer's queries; None where the class token is wanted and not among them."""
        if self.rows != "class":
            return self.rows
        if queries == 1:
            return ALL
        image = next(tensors_of(self.stack.running[0][2]), None)
        aspect = image.shape[-2] / image.shape[-1] if image is not None and image.ndim == 4 else 1.0
        for prefix in (getattr(self.model, "num_prefix_tokens", 0), 0, 1, 2):
            if queries > prefix and grid_of(queries - prefix, aspect):
                return slice(0, 1) if prefix and has_class_token(self.model) else None
        return None
