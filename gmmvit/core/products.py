"""Looks into a model with one small forward pass: which modules take a softmax, of what, and over which tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import fx
from torch.overrides import TorchFunctionMode

from .rewrite import FUSED_CALLS, MATMULS, SCALINGS, Product, explicit, product_nodes
from .trace import Untraceable, bind, tensors_of, trace

SOFTMAX_CALLS = {F.softmax, torch.softmax, torch.Tensor.softmax, *FUSED_CALLS}


@dataclass
class Call:
    """A module whose own forward takes a softmax, with the arguments of its first call."""

    name: str
    module: nn.Module
    arguments: tuple
    fused: bool = False


class ModuleStack:
    """The names of the modules that are running, kept by forward hooks; nn.Softmax counts as its parent."""

    def __init__(self, model: nn.Module):
        self.running: list[tuple[str, nn.Module, tuple, dict]] = []
        self.handles = []
        for name, module in model.named_modules():
            if not isinstance(module, nn.Softmax):
                self._watch(name, module)

    def _watch(self, name: str, module: nn.Module) -> None:
        def enter(module: nn.Module, args: tuple, kwargs: dict) -> None:
            self.running.append((name, module, args, kwargs))

        def leave(module: nn.Module, args: tuple, output: Any) -> None:
            if self.running:  # else the stack was made while this module was running already
                self.running.pop()

        self.handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        self.handles.append(module.register_forward_hook(leave, always_call=True))

    def close(self) -> None:
        """Takes the hooks away."""
        for handle in self.handles:
            handle.remove()


class _SoftmaxCallers(TorchFunctionMode):
    def __init__(self, stack: ModuleStack):
        super().__init__()
        self.stack, self.calls = stack, {}

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func in SOFTMAX_CALLS and self.stack.running:
            name, module, margs, mkwargs = self.stack.running[-1]
            if name not in self.calls:
                self.calls[name] = Call(name, module, bind(type(module).forward, margs, mkwargs), func in FUSED_CALLS)
        return func(*args, **(kwargs or {}))


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


def softmax_callers(model: nn.Module, image: torch.Tensor) -> list[Call]:
    """The modules that take a softmax (or call a fused attention kernel) in their own forward."""
    stack = ModuleStack(model)
    try:
        with at_rest(model), _SoftmaxCallers(stack) as mode:
            model(image)
    finally:
        stack.close()
    return list(mode.calls.values())


# ---- which products are spatial -------------------------------------------------------------------------------------


@dataclass
class Found:
    """The spatial query-key products of one module, and why its other softmaxes are none."""

    call: Call
    products: list[Product] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def spatial_products(call: Call) -> Found:
    """Traces a module and marks one input token with NaN: scores are spatial where only its row and column turn NaN."""
    found = Found(call)
    if type(call.module).__name__ == "HaloAttn":
        found.reasons.append("its keys are a halo around the block of queries, not the same grid")
        return found
    try:
        with explicit(call.module):
            graph = _trace(call)
            nodes = product_nodes(call.module, graph)
            if not nodes:
                found.reasons.append("no query-key product reaches its softmax")
                return found
            found.products, found.reasons = _sorted(call, graph, nodes)
    except Untraceable as error:
        found.reasons.append(str(error))
    return found


def _trace(call: Call) -> fx.Graph:
    forward = type(call.module).forward
    try:
        return trace(call.module, forward, call.arguments)
    except Untraceable:
        return trace(call.module, forward, call.arguments, shapes=True)


class _Taint(fx.Interpreter):
    """Keeps NaN where it came from: norms over all tokens and the attention's own output do not spread it."""

    def __init__(self, module: nn.Module, graph: fx.Graph, products: list[fx.Node]):
        super().__init__(module, garbage_collect_values=False, graph=graph)
        self.products = products

    def run_node(self, node: fx.Node) -> Any:
        result = super().run_node(node)
        if node.target in MATMULS and node not in self.products and torch.is_tensor(result):
            return torch.zeros_like(result)
        if node.op == "call_module" and isinstance(self.fetch_attr(node.target), nn.GroupNorm):
            return self.env[node.args[0]]
        return result


def _sorted(call: Call, graph: fx.Graph, nodes: list[tuple[fx.Node, fx.Node]]) -> tuple[list[Product], list[str]]:
    """The spatial products of a traced module, and the reasons of the others."""
    first, *others = tensors_of(call.arguments)
    answers: list[Product | str] = ["no token of its input reaches its scores"] * len(nodes)
    for token in [(0,) * first.ndim] + [(0, slice(None), 0, 0)] * (first.ndim == 4):  # one value, one pixel's channels
        marked = torch.ones_like(first)
        marked[token] = float("nan")
        taint = _Taint(call.module, graph, [product for product, _ in nodes])
        with torch.no_grad():
            taint.run(marked, *others)
        for ordinal, (product, softmax) in enumerate(nodes):
            if isinstance(answers[ordinal], str):
                answers[ordinal] = _product(ordinal, product, softmax, taint.env)
    return [a for a in answers if isinstance(a, Product)], [a for a in answers if isinstance(a, str)]


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
        return "its scores mix channels, not tokens (cross-covariance attention)"
    dim = softmax.kwargs.get("dim", softmax.args[1] if len(softmax.args) > 1 else -1)
    if dim not in (-1, probabilities.ndim - 1) or probabilities.shape[-2:] != scores.shape[-2:]:
        return "its softmax does not run over the keys of the scores"
    heads, head_dim = _heads(marked)
    scalings = 0
    while len(node.users) == 1 and _is_scaling(next(iter(node.users)), node, values):
        node, scalings = next(iter(node.users)), scalings + 1
    return Product(ordinal, scalings, heads, head_dim, queries, keys)


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
