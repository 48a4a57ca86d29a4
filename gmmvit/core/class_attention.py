"""What a model's last layer attends to: the class token's attention to the patches, read from a forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn as nn
from torch import fx

from .grids import grid_of, layout
from .maps import attention_maps, has_class_token, rows_of, with_heads
from .products import at_rest, softmax_callers, softmaxes_of
from .rewrite import CHILD, compiled, graph_of
from .trace import Untraceable, bind, own_forward, pattern_of, plain, tensors_of


class ClassAttention:
    """Reads one layer's attention while the model runs; beside a fused kernel only the rows that are wanted.

    Where a class token asks (ViT, DeiT, PiT), or alone asks (class layers of CaiT and XCiT), its row to the patches. A
    model without one has a stand-in, ours and not the paper's: the mean attention that a patch receives in the last
    layer, windows put back into the whole image.
    """

    def __init__(self, model: nn.Module, image: torch.Tensor):
        model = plain(model)
        with at_rest(model), attention_maps(model) as maps:
            model(image)
        self.name, last = list(maps.items())[-1]
        self.compiled: tuple[nn.Module, nn.Module | None] | None = None  # a compiled model, and it with a tap
        parent, _, self.child = self.name.rpartition(".")
        self.block = model.get_submodule(parent)
        queries, keys = last.shape[-2:]
        self.stand_in = not (queries == 1 or has_class_token(model))
        self.rows = slice(0, 1) if not self.stand_in and queries > 1 else slice(None)
        self.windows = len(last) // len(image)
        self.grid, self.prefix = layout(model, keys * self.windows, image.shape[-2:]) or (None, 0)
        self.asking = slice(self.prefix, None) if self.stand_in and queries == keys else slice(None)
        self.shift = tuple(getattr(self.block, "shift_size", (0, 0))) if self.windows > 1 else (0, 0)
        scattered = self.windows > 1 and not getattr(self.block, "partition_block", True)  # MaxViT's grid attention
        if self.grid is None or last.ndim != 4 or scattered or (self.windows > 1 and self.prefix):
            raise ValueError(
                f"{type(model).__name__}: TransMix needs a map with an entry for each patch of one grid: expected it "
                f"of the last attention, {self.name}, whose map of {len(image)} image is {tuple(last.shape)}"
                f"{', of tokens that are scattered over the image' if scattered else ''}"
            )

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Records the layer's rows in the calls of the model inside the block: only its own block is followed."""
        with attention_maps(self.block, self.child, rows=self.rows) as self.maps:
            yield

    def beside(self, model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(logits, attention (B, patches)) of one forward pass; a compiled model stays compiled where it can."""
        tapped = self._tapped(model, x)
        if tapped is None:
            with self.reading():
                logits = model(x)
            return logits, self.attention()
        with self.tap.in_place():
            logits, rows = tapped(x)
        return logits, self._of_patches(rows)

    def _tapped(self, model: nn.Module, x: torch.Tensor) -> nn.Module | None:
        """The model that torch.compile wraps, with a tap, compiled in the same way; None where there is none."""
        if not hasattr(model, "dynamo_ctx"):  # with which torch.compile made it
            return None
        if self.compiled is None or self.compiled[0] is not model:
            try:
                self.tap = Tap(plain(model), self.name, self.rows, x[:1].detach())
                self.compiled = model, model.dynamo_ctx(Tapped(plain(model), self.tap))
            except Untraceable:
                self.compiled = model, None
        return self.compiled[1]

    def attention(self) -> torch.Tensor:
        """(B, patches), the mean of the heads, without a gradient."""
        return self._of_patches(next(iter(self.maps.values())).detach())

    def _of_patches(self, rows: torch.Tensor) -> torch.Tensor:
        rows = rows.float().mean(1)  # (B * windows, queries or 1, keys)
        rows = rows[:, self.asking].mean(1)[:, self.prefix :]
        return rows if self.windows == 1 else self._whole(rows)

    def _whole(self, rows: torch.Tensor) -> torch.Tensor:
        """Windows (B * windows, n), row by row of the image, put beside each other and shifted back: (B, patches)."""
        height, width = grid_of(rows.shape[1], self.grid[0] / self.grid[1])
        across = self.grid[1] // width
        image = rows.view(-1, self.grid[0] // height, across, height, width).transpose(2, 3)
        image = image.reshape(len(image), *self.grid).roll(self.shift, (1, 2))
        return image.flatten(1) / self.windows


# ---- out of a compiled graph, which hooks and modes would stop ------------------------------------------------------


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
        graph = graph_of(self.module, arguments)
        softmaxes = softmaxes_of(self.module, graph)
        masks = getattr(self.module, CHILD, {}).values()
        if len(softmaxes) != 1 or any(getattr(mask, "where", "") == "probabilities" for mask in masks):
            raise Untraceable(f"{type(self.module).__name__}: expected one softmax that no mask follows")
        with graph.inserting_after(softmaxes[0]):
            graph.call_function(self.keep, (softmaxes[0],))
        return graph

    def keep(self, probabilities: torch.Tensor) -> None:
        """Called inside the attention's graph."""
        self.map = rows_of(probabilities, self.rows).detach()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the attention returns; its map is kept."""
        arguments = bind(own_forward(self.module), args, kwargs)
        return self.paths[self.module.training, pattern_of(arguments)](self.module, *tensors_of(arguments))

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
