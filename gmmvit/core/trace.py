"""torch.fx graphs of one module's own forward, for one pattern of arguments at a time."""

from __future__ import annotations

import inspect
import keyword
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn as nn
from torch import fx

from .errors import first_line

CHILD = "spatial_masks"  # the container of a module's masks
TENSOR = "tensor"  # stands for a tensor in the pattern of a call's arguments


class Untraceable(ValueError):
    """Says why a module's forward cannot be rewritten."""


def plain(model: nn.Module) -> nn.Module:
    """The model itself, where torch.compile has wrapped it."""
    return getattr(model, "_orig_mod", model)


def exported(like: object) -> bool:
    """Whether a graph is being made for somewhere else (export, ONNX, jit, fx), which knows plain operators only."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing() or isinstance(like, fx.Proxy)


def own_forward(module: nn.Module) -> Callable:
    """The forward of a module's own class, which knows of no mask."""
    kind = type(module)
    return getattr(kind, "_base", kind).forward


def pattern_of(arguments: Any) -> Any:
    """The shape of a call: a marker for each tensor, plain values as they are (lists as tuples, so that it hashes)."""
    if isinstance(arguments, (torch.Tensor, fx.Proxy)):
        return TENSOR
    if isinstance(arguments, dict):
        return tuple((name, pattern_of(each)) for name, each in arguments.items())
    return tuple(pattern_of(a) for a in arguments) if isinstance(arguments, (list, tuple)) else arguments


def tensors_of(values: Any) -> Iterator[torch.Tensor]:
    """The tensors among a call's arguments, or in what it returns, in order."""
    if isinstance(values, (torch.Tensor, fx.Proxy)):
        yield values
    elif isinstance(values, (list, tuple, dict)):
        for value in values.values() if isinstance(values, dict) else values:
            yield from tensors_of(value)


def behind(node: fx.Node) -> Iterator[fx.Node]:
    """The node and all that its value is made from, nearest first."""
    queue, seen = [node], {node}
    for each in queue:  # which grows meanwhile
        yield each
        new = [source for source in each.all_input_nodes if source not in seen]
        seen.update(new)
        queue += new


def bind(forward: Callable, args: tuple, kwargs: dict) -> tuple:
    """All arguments of a call (without self) in the order of the signature, defaults filled in."""
    bound = inspect.signature(forward).bind(None, *args, **kwargs)
    bound.apply_defaults()
    return tuple(bound.arguments.values())[1:]


def trace(module: nn.Module, forward: Callable, arguments: tuple, shapes: bool = False) -> fx.Graph:
    """The graph of `forward` for calls like `arguments`; its placeholders are the call's tensors, t0, t1, ...

    With `shapes`, control flow over tensor sizes is decided by those of `arguments`: the graph holds for them only.
    """
    for name in (part for path, _ in module.named_modules() for part in path.split(".")):
        if re.search(r"[\"'\\\s]", name) or keyword.iskeyword(name):  # it would be read as code
            raise Untraceable(f"{name!r} in {type(module).__name__}: expected names of modules that Python can write")
    tensors = list(tensors_of(arguments))
    names = [f"t{i}" for i in range(len(tensors))]
    keywords = list(inspect.signature(forward).parameters.values())[1:]

    def call(module: nn.Module, *proxies: fx.Proxy) -> Any:
        given: dict[str, Any] = {}
        for each, value in zip(keywords, _refill(arguments, iter(proxies)), strict=True):
            given |= value if each.kind is each.VAR_KEYWORD else {each.name: value}
        return forward(module, **given)

    scope: dict[str, Any] = {"call": call}
    exec(f"def forward(self, {', '.join(names)}): return call(self, {', '.join(names)})", scope)  # fx reads these names
    caches = {name: dict(value) for name, value in vars(module).items() if type(value) is dict and name[0] != "_"}
    plain = {name: value for name, value in vars(module).items() if isinstance(value, torch.Tensor)}
    for name in plain:  # as buffers they become part of the graph
        module.register_buffer(name, vars(module).pop(name))
    whole = fx._symbolic_trace._wrapped_fns_to_patch  # functions that their files ask torch.fx to leave whole
    inlined = {key: names for key, names in whole.items() if names is forward.__globals__}
    for key in inlined:  # torchvision's Swin has its attention in one
        del whole[key]
    own = type(module)
    module.__class__ = type(own.__name__, (own,), {"forward": scope["forward"]})
    answers: list | None = [] if shapes else None
    try:
        while True:
            tracer = _OwnForward(answers)
            try:
                return tracer.trace(module)
            except _Question as question:
                answers.append(question.answer(module, tracer.graph, tensors))
    except Exception as error:
        raise Untraceable(f"torch.fx cannot trace {own.__name__}: {first_line(error)}") from error
    finally:
        module.__class__ = own
        whole.update(inlined)
        for name in plain:
            del module._buffers[name]
        vars(module).update(plain)
        vars(module).update(caches)  # some modules cache tensors by device in a dict: no proxy may stay there


def _refill(arguments: Any, tensors: Iterator) -> Any:
    if isinstance(arguments, (list, tuple)):
        return type(arguments)(_refill(a, tensors) for a in arguments)
    if isinstance(arguments, dict):
        return {name: _refill(each, tensors) for name, each in arguments.items()}
    return next(tensors) if isinstance(arguments, torch.Tensor) else arguments


class _OwnForward(fx.Tracer):
    """Traces a module's own forward; every child is a leaf, so that dropout and norms stay modules.

    Questions about sizes (truth, length, whole number) stop the trace; with `answers` it starts again, knowing one
    more.
    """

    def __init__(self, answers: list | None):
        super().__init__()
        self.trace_asserts = self.proxy_buffer_attributes = True
        self.answers = answers
        self.asked = 0

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        return True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def ask(self, node: fx.Node, kind: Callable) -> Any:
        """What is true of a node's value: its truth, its length or its whole number."""
        if self.asked == len(self.answers):
            raise _Question(node, kind)
        self.asked += 1
        return self.answers[self.asked - 1]

    def to_bool(self, proxy: fx.Proxy) -> bool:
        return super().to_bool(proxy) if self.answers is None else self.ask(proxy.node, bool)

    def iter(self, proxy: fx.Proxy) -> Iterator:
        try:
            return super().iter(proxy)
        except fx.proxy.TraceError:
            if self.answers is None:
                raise
            return iter([proxy[i] for i in range(self.ask(proxy.node, len))])


class _Proxy(fx.Proxy):
    """A proxy that may be asked for sizes and written into by index."""

    def __len__(self) -> int:
        return super().__len__() if self.tracer.answers is None else self.tracer.ask(self.node, len)

    def __index__(self) -> int:
        if self.tracer.answers is None:
            raise fx.proxy.TraceError("a traced size was used as a whole number")
        return self.tracer.ask(self.node, operator.index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, index, value), {})


class _Question(Exception):
    """Asks for the value of a node of an unfinished graph."""

    def __init__(self, node: fx.Node, kind: Callable):
        super().__init__(f"what is {node}?")
        self.node, self.kind = node, kind

    def answer(self, module: nn.Module, graph: fx.Graph, tensors: list[torch.Tensor]) -> Any:
        """The answer; only the nodes that it depends on are run."""
        needed = set(behind(self.node))
        interpreter = fx.Interpreter(module, garbage_collect_values=False, graph=graph)
        interpreter.args_iter = iter(tensors)
        with torch.no_grad():
            for node in graph.nodes:
                if node in needed or node.op == "placeholder":
                    interpreter.env[node] = interpreter.run_node(node)
        value = interpreter.env[self.node]
        if isinstance(value, torch.Tensor):
            raise Untraceable("its control flow depends on the values of a tensor")
        return self.kind(value)
