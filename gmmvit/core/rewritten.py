"""The classes of an attention with masks and of a model with such attentions, generated from their own classes.

A module stays itself (attributes, children, parameter names). Its class becomes a subclass whose `forward` runs the
rewritten graph that fits the call: one for each mode (training or not) and pattern of absent, tensor and plain
arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
import torch.nn as nn
from timm.models import get_model_input_config
from torch import fx

from . import sizes
from .gaussians import GaussianMask
from .native import computed_in
from .products import Product
from .rewrite import CHILD, compiled, graph_of
from .spatial import no_decay
from .together import computed_together
from .trace import Untraceable, exported, pattern_of, tensors_of
from .ways import EXPLICIT, FLEX, FUSED, NATIVE, best_way, fuses

SEEING = ("forward", "forward_features", "forward_intermediates")  # what a model does with images
MOST_PATHS = 256  # kinds of calls whose graphs a module keeps


class Paths(dict):
    """Functions by kind of call: shared by copies, left out of pickles, which trace their graphs anew when called."""

    def __deepcopy__(self, memo: dict) -> Paths:
        return Paths(self)

    def __reduce_ex__(self, protocol: int) -> tuple:
        return Paths, ()


class Rewritten:
    """An attention with masks: its forward picks the graph for the call."""

    _base: type[nn.Module]
    _sites: list[tuple[Product, str]]  # products with their masks' names, in the order they were attached
    _paths: Paths

    def _run(self, arguments: tuple) -> Any:
        arguments = tuple(_default(each) if isinstance(each, fx.Proxy) else each for each in arguments)
        return self._prepare(arguments, self._way(arguments))(self, *tensors_of(arguments))

    def _way(self, arguments: tuple) -> str:
        """The way of a call: kernels only where the attention itself would call one, or for speed alone does not."""
        first = next(tensors_of(arguments))
        if exported(first):
            return EXPLICIT
        products = [product for product, _ in self._sites]
        widths = [product.width for product in products]
        width = None if None in widths else max(widths)
        device, keys = first.device.type, max(product.keys for product in products)
        way = best_way(device, self._additive(), keys, width, computed_in(first))
        if way == NATIVE:
            masks = getattr(self, CHILD).values()
            seen = any(mask._forward_hooks or mask._forward_pre_hooks for mask in masks) or self._shows_maps()
            return EXPLICIT if seen or not (self._fuses() or getattr(self, "native_attn", False)) else NATIVE
        return way if self._fuses() else EXPLICIT

    def _shows_maps(self) -> bool:
        """Whether someone hooked the dropout after the softmax, as maps are read out of timm's models."""
        dropout = getattr(self, "attn_drop", None)
        return bool(getattr(dropout, "_forward_hooks", ()) or getattr(dropout, "_forward_pre_hooks", ()))

    def _fuses(self) -> bool:
        return getattr(self, "fused_attn", all(product.fused for product, _ in self._sites))

    def _additive(self) -> bool:
        masks = getattr(self, CHILD)
        return all(fuses(masks[key]) and product.head_dim for product, key in self._sites)

    def _prepare_everywhere(self, arguments: tuple) -> None:
        """Builds the graphs for calls like this one on any device: a model may move after its masks were attached."""
        fused = FUSED if self._additive() else FLEX
        for way in (EXPLICIT, fused) if self._fuses() else (EXPLICIT,):
            self._prepare(arguments, way)

    def _prepare(self, arguments: tuple, way: str) -> Callable:
        """The rewritten forward for calls like this one; for its sizes alone where its control flow depends on them."""
        key = self.training, way, pattern_of(arguments)
        path = self._paths.get(key)
        if path is None and _sizeless(arguments):  # a trace holds for the sizes that were seen last
            path = next((each for seen, each in reversed(self._paths.items()) if seen[:3] == key), None)
            if path is None and not torch.jit.is_tracing():
                raise Untraceable(f"call the model once before torch.fx traces it: {type(self).__name__} has no graph")
        elif path is None:
            path = self._paths.get(_sized(key, arguments))
        return self._add_path(key, arguments) if path is None else path

    def _add_path(self, key: tuple[bool, str, Any], arguments: tuple) -> Callable:
        way = key[1]
        if way == NATIVE:  # whoever traces or compiles this module later finds the product
            self._prepare(arguments, EXPLICIT)
        try:
            path = compiled(graph_of(self, arguments, way))
        except Untraceable:
            if way in (FLEX, NATIVE):  # what they cannot do, such as dropout, is done explicitly
                path = self._prepare(arguments, EXPLICIT)
            else:
                key, path = _sized(key, arguments), compiled(graph_of(self, arguments, way, shapes=True))
        if len(self._paths) >= MOST_PATHS:  # of a module that is called with another number each time
            self._paths.clear()
        self._paths[key] = path
        return path

    def __reduce_ex__(self, protocol: int) -> tuple:
        return _blank, (self._base, Rewritten), self.__dict__


def _sized(key: tuple, arguments: tuple) -> tuple:
    return *key, tuple(tensor.shape[1:] for tensor in tensors_of(arguments))


def _sizeless(arguments: tuple) -> bool:
    return torch.jit.is_tracing() or any(isinstance(each, fx.Proxy) for each in tensors_of(arguments))


def _default(argument: fx.Proxy) -> Any:
    """The default of an optional input of the model that torch.fx traces; any other argument as it is."""
    node = argument.node
    return node.args[0] if node.op == "placeholder" and node.args else argument


class Reporting:
    """A model with masks: its Gaussians are computed together, and its masks' scalars are not decayed."""

    _base: type[nn.Module]
    spatial_sites: list  # of Sites; Hugging Face resolves the annotations of its models' classes

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
    if mixin is Rewritten:
        names["forward"] = _forward_like(base.forward)
    else:
        names |= {name: _seeing(getattr(base, name)) for name in SEEING if hasattr(base, name)}
        if hasattr(base, "set_input_size"):
            names["set_input_size"] = _resizing(base.set_input_size)
    return type(base.__name__, (mixin, base), names)


def _blank(base: type[nn.Module], mixin: type) -> nn.Module:
    cls = subclass(base, mixin)
    return cls.__new__(cls)


def _forward_like(forward: Callable) -> Callable:
    """A forward of the same signature that hands its arguments to `_run`."""
    parameters = list(inspect.signature(forward).parameters.values())[1:]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise Untraceable(f"{forward.__qualname__} takes a variable number of arguments")
    defaults = {f"_default_{p.name}": p.default for p in parameters if p.default is not p.empty}
    heads = [
        "**" * (p.kind is p.VAR_KEYWORD) + p.name + f"=_default_{p.name}" * (p.default is not p.empty)
        for p in parameters
    ]
    names = ", ".join(p.name for p in parameters)
    exec(f"def forward(self, {', '.join(heads)}):\n    return self._run(({names},))", defaults)
    return defaults["forward"]


def _seeing(forward: Callable) -> Callable:
    """A method that is given images: its masks know their size, and Gaussian ones are computed together."""

    @wraps(forward)
    def whole(self: Any, *args: Any, **kwargs: Any) -> Any:
        if sizes.running(self):  # forward calls forward_features
            return forward(self, *args, **kwargs)
        size = sizes.begin(self, args, kwargs)
        try:
            if torch.compiler.is_compiling():
                return forward(self, *args, **kwargs)
            masks = (
                site.mask.met(size)
                for site in getattr(self, "spatial_sites", ())
                if isinstance(site.mask, GaussianMask)
            )
            with computed_together(mask for mask in masks if mask is not None):
                return forward(self, *args, **kwargs)
        finally:
            sizes.end()

    return whole


def _resizing(resize: Callable) -> Callable:
    """timm's set_input_size, after which the masks are for the new size, too."""

    @wraps(resize)
    def whole(self: Any, *args: Any, **kwargs: Any) -> None:
        from .regrid import settle  # which attaches

        resize(self, *args, **kwargs)
        settle(self, get_model_input_config(self)["input_size"][1:])

    return whole
