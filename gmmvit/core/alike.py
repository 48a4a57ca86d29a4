"""Which modules have one graph: those whose forward finds the same in them, such as the layers of a transformer."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import fx

from .trace import CHILD, Untraceable, pattern_of, tensors_of, trace

OURS = ("_sites", "_paths")  # of an attention with masks, of which its own forward knows nothing
INTERNAL = vars(nn.Module()).keys() - {"training", "_parameters", "_buffers"}
PLAIN = (bool, int, float, complex, str, bytes, type(None), type, torch.dtype, torch.device, torch.Size)
MOST = 128  # graphs that are kept
_graphs: dict[Hashable, fx.Graph | str] = {}  # or why there is none


def traced(module: nn.Module, forward: Callable, arguments: tuple, shapes: bool = False) -> fx.Graph:
    """The graph of `trace`, or a copy of the graph of an earlier module that is like this one."""
    key = _key(module, forward, arguments, shapes)
    if key is None:
        return trace(module, forward, arguments, shapes)
    found = _graphs.get(key)
    if found is None:
        try:
            found = trace(module, forward, arguments, shapes)
        except Untraceable as error:
            found = str(error)  # the error itself would keep the module alive
        else:
            if any(node.op == "get_attr" and node.target.startswith("_tensor_constant") for node in found.nodes):
                return found  # torch.fx has put that into this module alone
        if len(_graphs) >= MOST:
            _graphs.pop(next(iter(_graphs)))
        _graphs[key] = found
    if isinstance(found, str):
        raise Untraceable(found)
    return _copied(found)


def _copied(graph: fx.Graph) -> fx.Graph:
    new = fx.Graph(tracer_cls=graph._tracer_cls)
    new.output(new.graph_copy(graph, {}))
    return new


def _key(module: nn.Module, forward: Callable, arguments: tuple, shapes: bool) -> Hashable | None:
    """All that a trace may depend on; None where that cannot be told."""
    tensors = tuple((tensor.shape, tensor.dtype) for tensor in tensors_of(arguments)) if shapes else ()
    kernel = F.scaled_dot_product_attention  # which people replace by another
    key = forward, type(module), shapes, tensors, pattern_of(arguments), kernel, _found_in(module)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _found_in(module: nn.Module) -> tuple:
    """What is set in a module and its children, by name: a list where something cannot be compared."""
    parts = []
    for name, each in module.named_modules():
        if CHILD not in name.split("."):
            kept = {key: value for key, value in vars(each).items() if key not in INTERNAL and key not in OURS}
            parts.append((name, type(each), tuple((key, _comparable(value)) for key, value in sorted(kept.items()))))
    return tuple(parts)


def _comparable(value: Any) -> Hashable:
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    if isinstance(value, (tuple, list)):
        return type(value), tuple(map(_comparable, value))
    if isinstance(value, dict):
        return type(value), tuple((key, _comparable(each)) for key, each in value.items())
    return value if callable(value) and hasattr(value, "__qualname__") else []  # which cannot be hashed
