"""Rewrites attention modules with torch.fx: masks are called on their scaled query-key products, all else stays.

A module stays itself (attributes, children, parameter names). Its class becomes a generated subclass whose `forward`
runs the rewritten graph that fits the call: one for each mode (training or not) and pattern of absent, tensor and plain
arguments.
"""

from __future__ import annotations

import inspect
import linecache
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, wraps
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import fx

from .masks import GaussianMask, SpatialMask, no_decay
from .own_bias import join_own_bias
from .together import computed_together
from .trace import Untraceable, pattern_of, tensors_of, trace
from .ways import EXPLICIT, FLEX, FUSED, best_way, flexed

MATMULS = {operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm"}
SCALINGS = {operator.mul, operator.truediv, torch.mul, torch.div, "mul", "div"}
FUSED_CALLS = {F.scaled_dot_product_attention}
CHILD = "spatial_masks"  # the container of a rewritten module's masks


def softmax_layer(layer: nn.Softmax, scores: torch.Tensor) -> torch.Tensor:
    """An nn.Softmax, whose hooks are called, in the type of its scores."""
    with torch.autocast(scores.device.type, enabled=False):
        return layer(scores)


SOFTMAXES = {F.softmax, torch.softmax, "softmax", softmax_layer}


@dataclass(frozen=True)
class Product:
    """A query-key product of a module: the how-many-th of its forward, and how its scores are laid out."""

    ordinal: int
    scalings: int  # factors applied to the scores after the product
    heads: int
    head_dim: int | None  # where the heads stand, from the end; None: in one dimension with the batch; 0: nowhere
    queries: int
    keys: int

    def to_mask(self, graph: fx.Graph, scores: fx.Node) -> fx.Node:
        """Brings scores to (..., heads, Nq, Nk)."""
        if self.head_dim is None:
            return graph.call_method("unflatten", (scores, 0, (-1, self.heads)))
        if self.head_dim == 0:
            return graph.call_method("unsqueeze", (scores, -3))
        return scores if self.head_dim == -3 else graph.call_method("movedim", (scores, self.head_dim, -3))

    def from_mask(self, graph: fx.Graph, scores: fx.Node) -> fx.Node:
        """Undoes `to_mask`."""
        if self.head_dim is None:
            return graph.call_method("flatten", (scores, 0, 1))
        if self.head_dim == 0:
            return graph.call_method("squeeze", (scores, -3))
        return scores if self.head_dim == -3 else graph.call_method("movedim", (scores, -3, self.head_dim))


def softmaxes_of(module: nn.Module, graph: fx.Graph) -> list[fx.Node]:
    """The softmaxes of a graph, in forward order."""
    return [node for node in graph.nodes if _is_softmax(module, node)]


def _is_softmax(module: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(module.get_submodule(node.target), nn.Softmax)
    return node.op in ("call_function", "call_method") and node.target in SOFTMAXES


def product_nodes(module: nn.Module, graph: fx.Graph) -> list[tuple[fx.Node, fx.Node]]:
    """(product, softmax) of every product of two input-dependent tensors that reaches a softmax, in forward order."""
    live: set[fx.Node] = set()
    found: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "placeholder" or any(operand in live for operand in node.all_input_nodes):
            live.add(node)
        if _is_softmax(module, node):
            product = _product_behind(node, live)
            if product is not None:
                found.setdefault(product, node)
    return list(found.items())


def _product_behind(softmax: fx.Node, live: set[fx.Node]) -> fx.Node | None:
    queue, seen = [softmax], {softmax}
    while queue:
        for node in queue.pop(0).all_input_nodes:
            if node in seen:
                continue
            if node.target in MATMULS and sum(operand in live for operand in node.all_input_nodes) == 2:
                return node
            seen.add(node)
            queue.append(node)
    return None


def scaled(product: fx.Node, scalings: int) -> fx.Node:
    """The node after the factors that follow a product."""
    for _ in range(scalings):
        (product,) = product.users
    return product


# ---- a module's graphs ----------------------------------------------------------------------------------------------


def add_bias(
    mask: nn.Module, head_dim: int, attn_mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """The attention mask for a fused kernel: what was there, and the spatial bias on top."""
    mask.check((*query.shape[:-3], query.shape[head_dim], query.shape[-2], key.shape[-2]))
    bias = mask.full_weight().to(query.dtype)  # (heads or 1, Nq, Nk)
    bias = bias.view(bias.shape[0], *[1] * (-3 - head_dim), *bias.shape[1:])
    return bias if attn_mask is None else bias + attn_mask


def explicit_graph(module: nn.Module, arguments: tuple) -> fx.Graph:
    """The graph of a module's forward by the explicit product, with its masks where it has some."""
    if isinstance(module, Rewritten):
        return graph_with_masks(module, arguments, EXPLICIT, shapes=False)
    with explicit(module):
        return trace(module, type(module).forward, arguments)


@contextmanager
def explicit(module: nn.Module, fused: bool = False) -> Iterator[None]:
    """Switches the fused kernel of one attention off, or on, while its forward is traced."""
    flag = getattr(module, "fused_attn", None)
    if flag is not None:
        module.fused_attn = fused
    try:
        yield
    finally:
        if flag is not None:
            module.fused_attn = flag


def graph_with_masks(module: Rewritten, arguments: tuple, way: str, shapes: bool) -> fx.Graph:
    """The graph of a module's original forward with its masks put in."""
    with explicit(module, fused=way != EXPLICIT):
        graph = trace(module, module._base.forward, arguments, shapes)
    {EXPLICIT: _into_scores, FUSED: _into_fused, FLEX: _into_flex}[way](module, graph)
    _unbind_before_permute(graph)
    return graph


def _unbind_before_permute(graph: fx.Graph) -> None:
    """Takes q, k and v apart before they are permuted: the same views, whose gradients are put together in one copy.

    timm permutes first; then backward stacks the three gradients and copies the whole once more.
    """
    for node in list(graph.nodes):
        source = node.args[0] if node.op == "call_method" and node.target == "unbind" else None
        if not isinstance(source, fx.Node) or source.op != "call_method" or source.target != "permute":
            continue
        order, parts = source.args[1:], list(node.users)
        first = (*node.args[1:], *node.kwargs.values()) in ((), (0,))
        plain = first and all(isinstance(axis, int) and axis >= 0 for axis in order)
        if not plain or len(source.users) > 1 or any(part.target is not operator.getitem for part in parts):
            continue
        rest = [axis - (axis > order[0]) for axis in order[1:]]
        node.args, node.kwargs = (source.args[0], order[0]), {}
        for part in parts:
            with graph.inserting_after(part):
                permuted = graph.call_method("permute", (part, *rest))
            part.replace_all_uses_with(permuted, delete_user_cb=lambda user, new=permuted: user is not new)
        graph.erase_node(source)


def _into_scores(module: Rewritten, graph: fx.Graph) -> None:
    nodes = product_nodes(module, graph)
    places: dict[tuple[int, str], fx.Node] = {}
    for number, (product, key) in enumerate(module._sites, 1):
        if product.ordinal >= len(nodes):
            raise Untraceable(f"{type(module).__name__}: expected product {product.ordinal + 1}, found {len(nodes)}")
        raw, softmax = nodes[product.ordinal]
        mask = getattr(module, CHILD)[key]
        where = getattr(mask, "where", "scores")
        masked, extra = places.get((product.ordinal, where)), ()
        place = masked or (softmax if where == "probabilities" else scaled(raw, product.scalings))
        last_there = all(other.ordinal != product.ordinal for other, _ in module._sites[number:])
        if getattr(mask, "additive", False) and last_there and product.head_dim == -3:
            if join_own_bias(module, graph, place, f"{CHILD}.{key}"):
                continue
        if masked is None:
            if where == "scores" and getattr(mask, "takes_scale", False):
                extra = (_take_scale(graph, raw),)
            elif product.head_dim == -3 and raw is place and _is_plain(raw) and getattr(mask, "takes_product", False):
                raw.op, raw.target = "call_module", f"{CHILD}.{key}"
                places[product.ordinal, where] = raw
                continue
        users = list(place.users)
        with graph.inserting_before(place.next):
            call = graph.call_module(f"{CHILD}.{key}", (product.to_mask(graph, place), *extra))
            last = product.from_mask(graph, call)
        for user in users:
            user.replace_input_with(place, last)
        places[product.ordinal, where] = last
    for _, softmax in nodes:
        _in_own_type(graph, softmax)


def _in_own_type(graph: fx.Graph, softmax: fx.Node) -> None:
    """Keeps a softmax in the type of its scores: CUDA's autocast would copy N x N scores to float32 and back."""
    scores = softmax.args[0] if softmax.args else None
    if not isinstance(scores, fx.Node) or softmax.kwargs.get("dtype") or len(softmax.args) > 2:
        return
    with graph.inserting_before(softmax):
        if softmax.op == "call_module":
            layer = graph.get_attr(softmax.target)
            softmax.op, softmax.target, softmax.args = "call_function", softmax_layer, (layer, scores)
        else:
            softmax.kwargs = {**softmax.kwargs, "dtype": graph.call_function(getattr, (scores, "dtype"))}


def _is_plain(product: fx.Node) -> bool:
    return product.target in (operator.matmul, torch.matmul) and len(product.args) == 2 and not product.kwargs


def _take_scale(graph: fx.Graph, product: fx.Node) -> float:
    """Takes a constant factor off the query or key of a product: the mask multiplies by it for free."""
    for node in product.all_input_nodes:
        while node.op == "call_method" and node.target == "transpose" and len(node.users) == 1:
            node = node.args[0]
        factor = node.args[1] if node.target is operator.mul and len(node.args) == 2 else None
        if isinstance(factor, float) and isinstance(node.args[0], fx.Node) and len(node.users) == 1:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            return factor
    return 1.0


def _into_fused(module: Rewritten, graph: fx.Graph) -> None:
    calls = [node for node in graph.nodes if node.target in FUSED_CALLS]
    for product, key in module._sites:
        call = calls[product.ordinal]
        query, keys, values, kwargs = _arguments(call)
        with graph.inserting_before(call):
            mask = graph.get_attr(f"{CHILD}.{key}")
            kwargs["attn_mask"] = graph.call_function(
                add_bias, (mask, product.head_dim, kwargs.get("attn_mask"), query, keys)
            )
        call.args, call.kwargs = (query, keys, values), kwargs


def _arguments(call: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node, dict]:
    """Query, key, value and the rest by name, of a call of torch's fused attention."""
    query, keys, values, *rest = call.args
    return (
        query,
        keys,
        values,
        {**dict(zip(("attn_mask", "dropout_p", "is_causal"), rest, strict=False)), **call.kwargs},
    )


def _into_flex(module: Rewritten, graph: fx.Graph) -> None:
    calls = [node for node in graph.nodes if node.target in FUSED_CALLS]
    masks: dict[fx.Node, list[str]] = {}
    for product, key in module._sites:
        mask = getattr(module, CHILD)[key]
        if product.ordinal >= len(calls) or product.head_dim != -3 or not isinstance(mask, SpatialMask):
            raise Untraceable(f"{type(module).__name__}: FlexAttention wants a SpatialMask on (B, heads, N, N) scores")
        if mask.where != "scores":
            raise Untraceable("FlexAttention has no place for a mask after the softmax")
        masks.setdefault(calls[product.ordinal], []).append(f"{CHILD}.{key}")
    for call, names in masks.items():
        query, keys, values, kwargs = _arguments(call)
        options = {name: value for name, value in kwargs.items() if name in ("attn_mask", "scale")}
        if any(value not in (None, 0, 0.0, False) for name, value in kwargs.items() if name not in options):
            raise Untraceable("FlexAttention has no dropout")
        with graph.inserting_before(call):
            attributes = [graph.get_attr(name) for name in names]
            call.target, call.args, call.kwargs = flexed, (query, keys, values, attributes), options


@lru_cache(maxsize=1024)
def _compiled(source: str, scope: tuple[tuple[str, Any], ...]) -> Callable:
    """A graph's forward as a function; layers with the same graph share one."""
    filename = f"<gmmvit graph {hash(source):x}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)  # for readable tracebacks
    names = dict(scope)
    exec(compile(source, filename, "exec"), names)
    return names["forward"]


def compiled(graph: fx.Graph) -> Callable:
    """The function `forward(self, *tensors)` of a graph."""
    code = graph.python_code("self")
    return _compiled(code.src, tuple(code.globals.items()))


# ---- the module's generated class -----------------------------------------------------------------------------------

MOST_PATHS = 256  # kinds of calls whose graphs a module keeps
BY_SHAPE = "by shape"  # marks a call whose graph depends on tensor sizes


class _Paths(dict):
    """Functions by kind of call: shared by copies, left out of pickles, which trace their graphs anew when called."""

    def __deepcopy__(self, memo: dict) -> _Paths:
        return _Paths(self)

    def __reduce_ex__(self, protocol: int) -> tuple:
        return _Paths, ()


class Rewritten:
    """What the generated subclass of an attention class has: a forward that picks the graph for the call."""

    _base: type[nn.Module]
    _sites: list[tuple[Product, str]]  # products with their masks' names, in the order they were attached
    _paths: _Paths

    def _run(self, arguments: tuple) -> Any:
        return self._prepare(arguments, self._way(arguments))(self, *tensors_of(arguments))

    def _way(self, arguments: tuple) -> str:
        """The way of a call: fused kernels only where the attention itself would call one."""
        if not getattr(self, "fused_attn", False):
            return EXPLICIT
        device, keys = next(tensors_of(arguments)).device.type, max(product.keys for product, _ in self._sites)
        return best_way(device, self._additive(), keys)

    def _additive(self) -> bool:
        return all(
            getattr(getattr(self, CHILD)[key], "additive", False) and product.head_dim for product, key in self._sites
        )

    def _prepare_everywhere(self, arguments: tuple) -> None:
        """Builds the graphs for calls like this one on any device: a model may move after its masks were attached."""
        fused = FUSED if self._additive() else FLEX
        for way in (EXPLICIT, fused) if getattr(self, "fused_attn", False) else (EXPLICIT,):
            self._prepare(arguments, way)

    def _prepare(self, arguments: tuple, way: str) -> Callable:
        """The rewritten forward for calls like this one."""
        key = (self.training, way, pattern_of(arguments))
        path = self._paths.get(key)
        if path is BY_SHAPE:
            key = (*key, tuple(tensor.shape[1:] for tensor in tensors_of(arguments)))
            path = self._paths.get(key)
        return self._add_path(key, arguments) if path is None else path

    def _add_path(self, key: tuple, arguments: tuple) -> Callable:
        try:
            path = compiled(graph_with_masks(self, arguments, way=key[1], shapes=len(key) == 4))
        except Untraceable:
            if key[1] == FLEX:  # what it cannot do, such as dropout, is done explicitly
                path = self._prepare(arguments, EXPLICIT)
            elif len(key) == 4:
                raise
            else:
                self._paths[key] = BY_SHAPE
                return self._add_path((*key, tuple(tensor.shape[1:] for tensor in tensors_of(arguments))), arguments)
        if len(self._paths) >= MOST_PATHS:  # of a module that is called with another number each time
            self._paths.clear()
        self._paths[key] = path
        return path

    def __reduce_ex__(self, protocol: int) -> tuple:
        return _blank, (self._base, Rewritten), self.__dict__


class Reporting:
    """What the generated subclass of a model has: Gaussians computed together, and scalars that are not decayed."""

    _base: type[nn.Module]
    spatial_sites: list

    def no_weight_decay(self) -> set[str]:
        """Parameters that timm's optimisers leave undecayed: the model's own and the masks' scalars."""
        own = self._base.no_weight_decay(self) if hasattr(self._base, "no_weight_decay") else ()
        return {*own, *no_decay(self)}

    def __reduce_ex__(self, protocol: int) -> tuple:
        return _blank, (self._base, Reporting), self.__dict__


@cache
def subclass(base: type[nn.Module], mixin: type) -> type[nn.Module]:
    """The generated subclass of a class."""
    names = {"_base": base, "__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    names["forward"] = _forward_like(base.forward) if mixin is Rewritten else _forward_together(base.forward)
    return type(base.__name__, (mixin, base), names)


def _forward_like(forward: Callable) -> Callable:
    """A forward of the same signature that hands its arguments to `_run`."""
    parameters = list(inspect.signature(forward).parameters.values())[1:]
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        raise Untraceable(f"{forward.__qualname__} takes a variable number of arguments")
    defaults = {f"_default_{p.name}": p.default for p in parameters if p.default is not p.empty}
    heads = [p.name + (f"=_default_{p.name}" if p.default is not p.empty else "") for p in parameters]
    names = ", ".join(p.name for p in parameters)
    exec(f"def forward(self, {', '.join(heads)}):\n    return self._run(({names},))", defaults)
    return defaults["forward"]


def _forward_together(forward: Callable) -> Callable:
    """A model's forward, during which its Gaussian masks are computed together."""

    @wraps(forward)
    def whole(self, *args, **kwargs):
        if torch.compiler.is_compiling():
            return forward(self, *args, **kwargs)
        masks = (site.mask for site in getattr(self, "spatial_sites", ()))
        with computed_together(mask for mask in masks if isinstance(mask, GaussianMask)):
            return forward(self, *args, **kwargs)

    return whole


def _blank(base: type[nn.Module], mixin: type) -> nn.Module:
    cls = subclass(base, mixin)
    return cls.__new__(cls)
