"""What a model's last layer attends to: the class token's attention to the patches, read from a forward pass."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
import torch.nn as nn

from .grids import grid_of
from .maps import attention_maps
from .products import at_rest
from .softmaxes import has_class_token
from .tap import Tap, Tapped
from .trace import Untraceable


class ClassAttention:
    """Reads one layer's attention while the model runs; beside a fused kernel only the rows that are wanted.

    Where a class token asks (ViT, DeiT, PiT), or alone asks (class layers of CaiT and XCiT), its row to the patches. A
    model without one has a stand-in, ours and not the paper's: the mean attention that a patch receives in the last
    layer, windows put back into the whole image.
    """

    def __init__(self, model: nn.Module, image: torch.Tensor):
        model = getattr(model, "_orig_mod", model)
        self.kind = type(model).__name__
        aspect = image.shape[-2] / image.shape[-1]
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
        prefixes = (getattr(model, "num_prefix_tokens", 0), *(() if self.stand_in else (1, 2)), 0)  # 2: distilled PiT
        found = ((prefix, grid_of((keys - prefix) * self.windows, aspect)) for prefix in prefixes)
        self.prefix, self.grid = next(((prefix, grid) for prefix, grid in found if grid), (0, None))
        self.asking = slice(self.prefix, None) if self.stand_in and queries == keys else slice(None)
        self.shift = tuple(getattr(self.block, "shift_size", (0, 0))) if self.windows > 1 else (0, 0)
        scattered = self.windows > 1 and not getattr(self.block, "partition_block", True)  # MaxViT's grid attention
        if self.grid is None or last.ndim != 4 or scattered:
            raise ValueError(
                f"{self.kind}: TransMix needs a map with an entry for each patch of one grid: expected it of the last "
                f"attention, {self.name}, whose map of {len(image)} image is {tuple(last.shape)}"
                f"{', of tokens that are scattered over the image' if scattered else ''}"
            )

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Records the layer's rows in the calls of the model inside the block: only its own block is followed."""
        opened = []

        def enter(module: nn.Module, args: tuple) -> None:
            context = attention_maps(module, self.child, rows=self.rows)
            opened.append(context)
            self.maps = context.__enter__()

        def leave(module: nn.Module, args: tuple, output: object) -> None:
            opened.pop().__exit__(None, None, None)

        with ExitStack() as stack:
            if "torch._dynamo" in sys.modules:  # a compiled graph would run past the hooks
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            for handle in (self.block.register_forward_pre_hook(enter), self.block.register_forward_hook(leave)):
                stack.callback(handle.remove)
            try:
                yield
            finally:
                if opened:  # the block has failed
                    opened.pop().__exit__(*sys.exc_info())

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
                self.tap = Tap(model._orig_mod, self.name, self.rows, x[:1].detach())
                self.compiled = model, model.dynamo_ctx(Tapped(model._orig_mod, self.tap))
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
