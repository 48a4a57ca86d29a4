"""Which query-key products of a model are spatial: a forward pass shows its softmaxes, NaN in a token the rest."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import fx
from torch.overrides import TorchFunctionMode

from .alike import traced
from .apart import KERNELS, LAYERS, take_apart
from .trace import Untraceable, behind, bind, exported, own_forward, tensors_of


def softmax_layer(layer: nn.Softmax, scores: torch.Tensor) -> torch.Tensor:
    """An nn.Softmax, whose hooks are called, in the type of its scores."""
    with nullcontext() if exported(scores) else torch.autocast(scores.device.type, enabled=False):
        return layer(scores)


# The operators of an attention: functions as they are called and as torch.fx writes them, and methods by name.
PRODUCTS = {
    operator.matmul,
    torch.matmul,
    torch.bmm,
    torch.baddbmm,
    torch.einsum,
    torch.Tensor.matmul,
    torch.Tensor.bmm,
}
PRODUCTS |= {"matmul", "bmm"}
SCALINGS = {operator.mul, operator.truediv, torch.mul, torch.div, "mul", "div"}
SOFTMAXES = {F.softmax, torch.softmax, torch.special.softmax, torch.Tensor.softmax, "softmax", softmax_layer}
FUSED_CALLS = {F.scaled_dot_product_attention}
WHOLE_CALLS = {*FUSED_CALLS, F.multi_head_attention_forward}


@dataclass(frozen=True)
class Product:
    """A query-key product of a module: the how-many-th of its forward, and how its scores are laid out."""

    ordinal: int
    scalings: int  # factors applied to the scores after the product
    heads: int
    head_dim: int | None  # where the heads stand, from the end; None: in one dimension with the batch; 0: nowhere
    queries: int
    keys: int
    width: int | None = None  # channels of a head, where the product is a plain one
    fused: bool = False  # whether the module calls torch's fused kernel for it, and has no flag that switches that off

    def to_mask(self, graph: fx.Graph, scores: fx.Node) -> fx.Node:
        """The scores as (..., heads, Nq, Nk)."""
        if self.head_dim is None:
            return graph.call_method("unflatten", (scores, 0, (-1, self.heads)))
        if self.head_dim == 0:
            return graph.call_method("unsqueeze", (scores, -3))
        return scores if self.head_dim == -3 else graph.call_method("movedim", (scores, self.head_dim, -3))

    def from_mask(self, graph: fx.Graph, scores: fx.Node) -> fx.Node:
        """The scores as the module had them."""
        if self.head_dim is None:
            return graph.call_method("flatten", (scores, 0, 1))
        if self.head_dim == 0:
            return graph.call_method("squeeze", (scores, -3))
        return scores if self.head_dim == -3 else graph.call_method("movedim", (scores, -3, self.head_dim))


@dataclass
class Call:
    """A call of a module, while it runs and afterwards."""

    name: str
    module: nn.Module
    args: tuple
    kwargs: dict
    maps: list[torch.Tensor] = field(default_factory=list)  # of its attention

    @property
    def arguments(self) -> tuple:
        """All arguments in the order of the signature, defaults filled in."""
        return bind(own_forward(self.module), self.args, self.kwargs)


# ---- where softmaxes are taken --------------------------------------------------------------------------------------


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients for a while; every module's own mode comes back afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(modes[0][1])
        for module, training in modes:
            module.training = training


@contextmanager
def fused_attention(module: nn.Module, on: bool) -> Iterator[None]:
    """Switches the fused kernel of one attention on or off for a while."""
    flag = getattr(module, "fused_attn", None)
    if flag is not None:
        module.fused_attn = on
    try:
        yield
    finally:
        if flag is not None:
            module.fused_attn = flag


@contextmanager
def running_calls(model: nn.Module) -> Iterator[list[Call]]:
    """The calls of the model's modules that are under way, outermost first; nn.Softmax counts as its parent."""
    running: list[Call] = []

    def leave(module: nn.Module, args: tuple, output: Any) -> None:
        if running:  # else this module was running already when its hooks came
            running.pop()

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if not isinstance(module, nn.Softmax):

                def enter(module: nn.Module, args: tuple, kwargs: dict, name: str = name) -> None:
                    running.append(Call(name, module, args, kwargs))

                stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield running


class _SoftmaxCallers(TorchFunctionMode):
    def __init__(self, running: list[Call]):
        super().__init__()
        self.running: list[Call] = running
        self.calls: dict[str, Call] = {}

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if (func in SOFTMAXES or func in WHOLE_CALLS) and self.running:
            self.calls.setdefault(self.running[-1].name, self.running[-1])
        return func(*args, **(kwargs or {}))


def softmax_callers(model: nn.Module, image: torch.Tensor) -> list[Call]:
    """The modules that take a softmax (or call a fused attention kernel) in their own forward."""
    with running_calls(model) as running, at_rest(model), _SoftmaxCallers(running) as mode:
        model(image)
    return list(mode.calls.values())


def softmaxes_of(module: nn.Module, graph: fx.Graph) -> list[fx.Node]:
    """The softmaxes of a module's graph, in forward order."""
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
            of_two = (
                n for n in behind(node) if n.target in PRODUCTS and sum(m in live for m in n.all_input_nodes) == 2
            )
            product = next(of_two, None)
            if product is not None:
                found.setdefault(product, node)
    return list(found.items())


# ---- which products are spatial -------------------------------------------------------------------------------------

CHANNELS = "its scores mix channels, not tokens (cross-covariance attention)"
_MIXES_CHANNELS: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def spatial_products(call: Call) -> tuple[list[Product], list[str]]:
    """The spatial query-key products of a module, and why its other softmaxes have none.

    One token of the module's input becomes NaN: scores are spatial where only its row and its column become NaN.
    """
    if type(call.module).__name__ == "HaloAttn":
        return [], ["its keys are a halo around the block of queries, not the same grid"]
    try:
        with at_rest(call.module), fused_attention(call.module, on=False):
            graph = _traced(call)
            whole = take_apart(graph, KERNELS)
            nodes = product_nodes(call.module, graph)
            answers = _answers(call, graph, nodes) if nodes else ["no query-key product reaches its softmax"]
    except Untraceable as error:
        answers = [str(error)]
    products = [replace(a, fused=whole) for a in answers if isinstance(a, Product)]
    return products, [a for a in answers if isinstance(a, str)]


def mixes_channels(call: Call) -> bool:
    """Whether a module's scores are channels x channels."""
    if call.module not in _MIXES_CHANNELS:
        products, reasons = spatial_products(call)
        _MIXES_CHANNELS[call.module] = not products and CHANNELS in reasons
    return _MIXES_CHANNELS[call.module]


def _traced(call: Call) -> fx.Graph:
    try:
        graph = traced(call.module, own_forward(call.module), call.arguments)
    except Untraceable:
        graph = traced(call.module, own_forward(call.module), call.arguments, shapes=True)
    take_apart(graph, LAYERS)
    return graph


class _Taint(fx.Interpreter):
    """Keeps NaN where it came from: norms over all tokens and the attention's own output do not spread it."""

    def __init__(self, module: nn.Module, graph: fx.Graph, products: list[fx.Node]):
        super().__init__(module, garbage_collect_values=False, graph=graph)
        self.products = products

    def run_node(self, node: fx.Node) -> Any:
        result = super().run_node(node)
        if node.target in PRODUCTS and node not in self.products and torch.is_tensor(result):
            return torch.zeros_like(result)
        if node.op == "call_module" and isinstance(self.fetch_attr(node.target), nn.GroupNorm):
            return self.env[node.args[0]]
        return result


def _answers(call: Call, graph: fx.Graph, nodes: list[tuple[fx.Node, fx.Node]]) -> list[Product | str]:
    """Each product of a traced module where it is spatial, else the reason."""
    first, *others = tensors_of(call.arguments)
    answers: list[Product | str] = ["no token of its input reaches its scores"] * len(nodes)
    for token in [(0,) * first.ndim] + [(0, slice(None), 0, 0)] * (first.ndim == 4):  # one value, one pixel's channels
        marked = torch.ones_like(first)
        marked[token] = float("nan")
        taint = _Taint(call.module, graph, [product for product, _ in nodes])
        taint.run(marked, *others)
        for ordinal, (product, softmax) in enumerate(nodes):
            if isinstance(answers[ordinal], str):
                answers[ordinal] = _product(ordinal, product, softmax, taint.env)
    return answers


def _product(ordinal: int, node: fx.Node, softmax: fx.Node, values: dict[fx.Node, Any]) -> Product | str:
    scores, probabilities = values[node], values[softmax]
    if scores.ndim < 3:
        return "its scores are no batch of matrices"
    queries, keys = scores.shape[-2:]
    nan = scores.isnan()
    marked = nan.flatten(-2).any(-1)  # which windows, images and heads see the token
    if queries == 1:
        return "class attention: one query, no patch-patch scores"
    if not marked.any() or nan[marked].all():
        return CHANNELS
    dim = softmax.kwargs.get("dim", softmax.args[1] if len(softmax.args) > 1 else -1)
    if dim not in (-1, probabilities.ndim - 1) or probabilities.shape[-2:] != scores.shape[-2:]:
        return "its softmax does not run over the keys of the scores"
    heads, head_dim = _heads(marked)
    width = values[node.args[0]].shape[-1] if is_plain(node) else None
    scalings = 0
    while len(node.users) == 1 and _is_scaling(next(iter(node.users)), node, values):
        node, scalings = next(iter(node.users)), scalings + 1
    return Product(ordinal, scalings, heads, head_dim, queries, keys, width)


def is_plain(product: fx.Node) -> bool:
    """Whether a product is query @ key^T, and nothing else."""
    return product.target in (operator.matmul, torch.matmul) and len(product.args) == 2 and not product.kwargs


def _heads(marked: torch.Tensor) -> tuple[int, int | None]:
    """Number and place of the heads: a token is seen by all heads, but only by one image and one window."""
    for dim in range(marked.ndim - 1, -1, -1):
        if marked.shape[dim] > 1 and marked.any(dim).equal(marked.all(dim)):
            return marked.shape[dim], dim - marked.ndim - 2
    if marked.ndim > 1:
        return 1, -3 if marked.shape[-1] == 1 else 0
    return int(marked.sum()), None


def _is_scaling(user: fx.Node, node: fx.Node, values: dict[fx.Node, Any]) -> bool:
    if user.target not in SCALINGS or user.args[0] is not node:
        return False
    factor = values.get(user.args[1], user.args[1]) if isinstance(user.args[1], fx.Node) else user.args[1]
    return not torch.is_tensor(factor) or factor.ndim == 0 or tuple(factor.shape[-2:]) == (1, 1)
