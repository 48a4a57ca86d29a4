"""Puts masks into the torch.fx graph of an attention: on its scaled query-key products, or into its fused kernel.

An additive mask beside a position bias of the layer's own joins that bias, which is one map for the whole batch:
softmax(Q K^T / sqrt(d) + (B_rel + B_Gauss)) V (GAB, arXiv 2305.04722).
"""

from __future__ import annotations

import linecache
import operator
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn as nn
from timm.layers import RelPosBias, RelPosMlp
from torch import fx

from .alike import traced
from .apart import KERNELS, LAYERS, take_apart, with_attn_mask
from .masks import SpatialMask
from .native import PARTS, in_parts, masked_attention
from .products import FUSED_CALLS, Product, fused_attention, is_plain, product_nodes, softmax_layer
from .trace import CHILD, Untraceable, behind, exported, own_forward
from .ways import EXPLICIT, FLEX, FUSED, NATIVE, flexed

ADDITIONS = (operator.add, torch.add, "add")
HOLDERS = (RelPosMlp, RelPosBias)  # called with the scores, to which they add get_bias()


def graph_of(module: nn.Module, arguments: tuple, way: str = EXPLICIT, shapes: bool = False) -> fx.Graph:
    """The graph of a module's forward by one way, with its masks in it where it has some."""
    with fused_attention(module, on=way != EXPLICIT):
        graph = traced(module, own_forward(module), arguments, shapes)
    take_apart(graph, LAYERS)
    if way == EXPLICIT:
        take_apart(graph, KERNELS)
    if hasattr(module, CHILD):
        _INTO[way](module, graph)
        _unbind_before_permute(graph, way)
    return graph


def _unbind_before_permute(graph: fx.Graph, way: str) -> None:
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
        if way == NATIVE and len(parts) == PARTS:
            node.op, node.target = "call_function", in_parts
        for part in parts:
            with graph.inserting_after(part):
                permuted = graph.call_method("permute", (part, *rest))
            part.replace_all_uses_with(permuted, delete_user_cb=lambda user, new=permuted: user is not new)
        graph.erase_node(source)


# ---- the explicit product -------------------------------------------------------------------------------------------


def _into_scores(module: nn.Module, graph: fx.Graph) -> None:
    nodes = product_nodes(module, graph)
    before, sites = _by_place(module)
    places: dict[tuple[int, str], fx.Node] = {}  # the scores, or probabilities, with the masks so far
    for product, key in before:
        raw, softmax = _node_of(module, nodes, product)
        if not is_plain(raw):
            how = getattr(raw.target, "__name__", raw.target)
            raise Untraceable(f"{type(module).__name__}: expected query @ key, of which a mask takes both, got {how}")
        with graph.inserting_before(raw):
            both = tuple(product.to_mask(graph, each) for each in raw.args)
            scores = product.from_mask(graph, graph.call_module(f"{CHILD}.{key}", both))
        raw.replace_all_uses_with(scores)
        graph.erase_node(raw)
        nodes[product.ordinal] = scores, softmax
    for number, (product, key) in enumerate(sites, 1):
        raw, softmax = _node_of(module, nodes, product)
        name, mask = f"{CHILD}.{key}", getattr(module, CHILD)[key]
        where, as_heads = getattr(mask, "where", "scores"), product.head_dim == -3
        masked, scale = places.get((product.ordinal, where)), ()
        place = masked or (softmax if where == "probabilities" else _scaled(raw, product.scalings))
        last_there = all(other.ordinal != product.ordinal for other, _ in sites[number:])
        if getattr(mask, "additive", False) and last_there and as_heads and _joins_own_bias(module, graph, place, name):
            continue
        if masked is None and where == "scores" and getattr(mask, "takes_scale", False):
            scale = (_take_scale(graph, raw),)
            mask.taken_scale = scale[0]
        elif raw is place and as_heads and is_plain(raw) and getattr(mask, "takes_product", False):
            raw.op, raw.target = "call_module", name
            places[product.ordinal, where] = raw
            continue
        users = list(place.users)
        with graph.inserting_before(place.next):
            call = graph.call_module(name, (product.to_mask(graph, place), *scale))
            last = product.from_mask(graph, call)
        for user in users:
            user.replace_input_with(place, last)
        places[product.ordinal, where] = last
    for _, softmax in nodes:
        _in_own_type(graph, softmax)


def _by_place(module: nn.Module) -> tuple[list[tuple[Product, str]], list[tuple[Product, str]]]:
    """The products with masks on query and key, and those with the others, in the order they were attached."""
    before, after = [], []
    for product, key in module._sites:
        of_both = getattr(getattr(module, CHILD)[key], "where", "scores") == "product"
        (before if of_both else after).append((product, key))
    return before, after


def _node_of(module: nn.Module, nodes: list[tuple[fx.Node, fx.Node]], product: Product) -> tuple[fx.Node, fx.Node]:
    if product.ordinal >= len(nodes):
        raise Untraceable(f"{type(module).__name__}: expected product {product.ordinal + 1}, found {len(nodes)}")
    return nodes[product.ordinal]


def _scaled(product: fx.Node, scalings: int) -> fx.Node:
    """The node after the factors that follow a product."""
    for _ in range(scalings):
        (product,) = product.users
    return product


def _take_scale(graph: fx.Graph, product: fx.Node) -> float:
    """A constant factor, taken off the query or key of a product: the mask multiplies by it for free."""
    for node in product.all_input_nodes:
        while node.op == "call_method" and node.target == "transpose" and len(node.users) == 1:
            node = node.args[0]
        factor = node.args[1] if node.target is operator.mul and len(node.args) == 2 else None
        if isinstance(factor, float) and isinstance(node.args[0], fx.Node) and len(node.users) == 1:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            return factor
    return 1.0


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


# ---- a position bias of the layer's own -----------------------------------------------------------------------------


def _joins_own_bias(module: nn.Module, graph: fx.Graph, scores: fx.Node, mask: str) -> bool:
    """Whether a bias is added to the scores next, into which the mask of this name was then put."""
    if len(scores.users) != 1:
        return False
    (user,) = scores.users
    holder = module.get_submodule(user.target) if user.op == "call_module" else None
    other = next((each for each in user.args if each is not scores), None)
    with graph.inserting_before(user):
        if type(holder) in HOLDERS and user.args[:1] == (scores,):
            places = graph.get_attr(mask), graph.get_attr(user.target)
            user.replace_all_uses_with(graph.call_function(with_both, (*places, scores)))
            graph.erase_node(user)
            return True
        if user.target in ADDITIONS and len(user.args) == 2 and not user.kwargs and isinstance(other, fx.Node):
            if all(node.op != "placeholder" for node in behind(other)):  # the same for every image
                user.replace_input_with(other, graph.call_function(joined, (graph.get_attr(mask), other)))
                return True
    return False


def joined(mask: nn.Module, bias: torch.Tensor) -> torch.Tensor:
    """B_rel + B in the type of B_rel, (..., heads, N, N)."""
    if exported(bias):
        return mask(bias)
    bias = bias.view(*[1] * (3 - bias.ndim), *bias.shape)
    heads = mask.heads if bias.shape[-3] == 1 else bias.shape[-3]
    return mask(bias.expand(*bias.shape[:-3], heads, *bias.shape[-2:])).to(bias.dtype)


def with_both(mask: nn.Module, holder: RelPosMlp | RelPosBias, scores: torch.Tensor) -> torch.Tensor:
    """The scores with the holder's bias and the mask's, (B, heads, N, N)."""
    return scores + joined(mask, holder.get_bias())


# ---- kernels that keep their scores to themselves -------------------------------------------------------------------


def _into_fused(module: nn.Module, graph: fx.Graph) -> None:
    calls = [node for node in graph.nodes if node.target in FUSED_CALLS]
    if not calls:  # nn.MultiheadAttention whose map is asked for
        return _into_scores(module, graph)
    _into_operands(module, graph, calls)
    for product, key in _by_place(module)[1]:
        call = calls[product.ordinal]
        query, keys, values, named = _arguments(call)
        with graph.inserting_before(call):
            both = graph.get_attr(f"{CHILD}.{key}"), product.head_dim, named.get("attn_mask"), query, keys
            named["attn_mask"] = graph.call_function(add_bias, both)
        call.args, call.kwargs = (query, keys, values), named


def _into_operands(module: nn.Module, graph: fx.Graph, calls: list[fx.Node]) -> None:
    """Hands the kernels query and key as the masks on these make them."""
    for product, key in _by_place(module)[0]:
        call = calls[product.ordinal]
        query, keys, values, named = _arguments(call)
        with graph.inserting_before(call):
            given = (product.to_mask(graph, each) for each in (query, keys))
            both = graph.call_function(operands, (graph.get_attr(f"{CHILD}.{key}"), *given))
            made = [graph.call_function(operator.getitem, (both, i)) for i in range(2)]
            query, keys = (product.from_mask(graph, each) for each in made)
        call.args, call.kwargs = (query, keys, values), named


def operands(mask: SpatialMask, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Query and key (..., heads, N, d) for a fused kernel, as a mask makes them."""
    return mask.operands(query, key)


def add_bias(
    mask: SpatialMask, head_dim: int, attn_mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """The attention mask for a fused kernel: what was there, and the spatial bias on top."""
    mask = mask.fitting((*query.shape[:-3], query.shape[head_dim], query.shape[-2], key.shape[-2]))
    bias = mask.full_weight().to(query.dtype)  # (heads or 1, Nq, Nk)
    bias = bias.view(bias.shape[0], *[1] * (-3 - head_dim), *bias.shape[1:])
    return bias if attn_mask is None else with_attn_mask(bias, attn_mask)


def _into_kernel(kernel: Callable, module: nn.Module, graph: fx.Graph) -> None:
    """Calls `kernel(query, key, value, masks, attn_mask, scale)` where the module calls torch's fused kernel."""
    calls = [node for node in graph.nodes if node.target in FUSED_CALLS]
    before, after = _by_place(module)
    if any(product.ordinal >= len(calls) for product, _ in (*before, *after)):
        raise Untraceable(f"{type(module).__name__} calls no kernel for a product")
    masks: dict[fx.Node, list[str]] = {calls[product.ordinal]: [] for product, _ in before}
    for product, key in after:
        mask = getattr(module, CHILD)[key]
        if product.head_dim != -3 or not isinstance(mask, SpatialMask):
            raise Untraceable(f"{type(module).__name__}: a kernel wants a SpatialMask on (B, heads, N, N) scores")
        if mask.where != "scores" or not mask.by_weight:
            raise Untraceable("a kernel has no place for a mask that is more than a weight of the scores")
        masks.setdefault(calls[product.ordinal], []).append(f"{CHILD}.{key}")
    _into_operands(module, graph, calls)
    for call, names in masks.items():
        query, keys, values, named = _arguments(call)
        options = {name: value for name, value in named.items() if name in ("attn_mask", "scale")}
        if any(value not in (None, 0, 0.0, False) for name, value in named.items() if name not in options):
            raise Untraceable("kernels that take masks have no dropout")
        with graph.inserting_before(call):
            attributes = [graph.get_attr(name) for name in names]
            call.target, call.args, call.kwargs = kernel, (query, keys, values, attributes), options


_INTO = {
    EXPLICIT: _into_scores,
    FUSED: _into_fused,
    FLEX: partial(_into_kernel, flexed),
    NATIVE: partial(_into_kernel, masked_attention),
}


def _arguments(call: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node, dict]:
    """Query, key, value and the rest by name, of a call of torch's fused attention."""
    query, keys, values, *rest = call.args
    return query, keys, values, dict(zip(("attn_mask", "dropout_p", "is_causal"), rest, strict=False)) | call.kwargs


# ---- a graph as a function ------------------------------------------------------------------------------------------


def compiled(graph: fx.Graph) -> Callable:
    """The function `forward(self, *tensors)` of a graph."""
    code = graph.python_code("self")
    return _compiled(code.src, tuple(code.globals.items()))


@lru_cache(maxsize=1024)
def _compiled(source: str, scope: tuple[tuple[str, Any], ...]) -> Callable:
    """A graph's forward as a function; layers with the same graph share one."""
    filename = f"<gmmvit graph {hash(source):x}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)  # for readable tracebacks
    names = dict(scope)
    exec(compile(source, filename, "exec"), names)
    return names["forward"]
