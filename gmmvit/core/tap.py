"""One attention's map handed out of a compiled graph: hooks and modes, which read it otherwise, stop such a graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn as nn
from torch import fx

from .products import at_rest, softmax_callers
from .rewrite import Rewritten, compiled, explicit_graph, softmaxes_of
from .softmaxes import rows_of, with_heads
from .trace import Untraceable, bind, pattern_of, tensors_of


class Tap:
    """An attention that keeps some rows of its map in each call while it is in place, by the explicit product."""

    def __init__(self, model: nn.Module, name: str, rows: slice, image: torch.Tensor):
        self.module, self.rows, self.map = model.get_submodule(name), rows, torch.empty(0)
        call = next((call for call in softmax_callers(model, image) if call.name == name), None)
        if call is None:
            raise Untraceable(f"{name} takes its softmax inside another function")
        self.paths = {}
        for training in (True, False):
            with at_rest(self.module):
                self.module.train(training)
                self.paths[training, pattern_of(call.arguments)] = compiled(self._graph(call.arguments))

    def _graph(self, arguments: tuple) -> fx.Graph:
        graph = explicit_graph(self.module, arguments)
        softmaxes = softmaxes_of(self.module, graph)
        masks = getattr(self.module, "spatial_masks", {}).values()
        if len(softmaxes) != 1 or any(getattr(mask, "where", "") == "probabilities" for mask in masks):
            raise Untraceable(f"{type(self.module).__name__}: expected one softmax that no mask follows")
        with graph.inserting_after(softmaxes[0]):
            graph.call_function(self.keep, (softmaxes[0],))
        return graph

    def keep(self, probabilities: torch.Tensor) -> None:
        """Called inside the attention's graph."""
        self.map = rows_of(probabilities, self.rows).detach()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The attention's own forward, with its map kept."""
        arguments = bind(self._own_forward, args, kwargs)
        return self.paths[self.module.training, pattern_of(arguments)](self.module, *tensors_of(arguments))

    @property
    def _own_forward(self) -> Any:
        kind = type(self.module)
        return (kind._base if issubclass(kind, Rewritten) else kind).forward

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model runs through this tap."""
        self.module.forward = self.forward
        try:
            yield
        finally:
            del self.module.forward


class Tapped(nn.Module):
    """A model with a tap in place: images -> (logits, map (B, heads, rows, keys))."""

    def __init__(self, model: nn.Module, tap: Tap):
        super().__init__()
        self.model, self.tap = model, tap

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.model(x)
        return logits, with_heads(self.tap.map, self.tap.module, len(x))
