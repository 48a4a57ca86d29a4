"""Where a model learned that its patches are: its position parameters, drawn anew, and its relative biases as maps.

B_rel of a layer is one (2n-1) x (2n-1) table for each head, over key minus query; the query (r, c) sees the n x n
window of it whose origin is (n-1-r, n-1-c) (GAB, arXiv 2305.04722).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn as nn
from timm.models.beit import RelativePositionBias

from ..core.grids import Grid, layout
from ..core.products import at_rest
from ..core.trace import plain
from ..train.start import position_parameters
from .masks import relative_kernel

# ---- the parameters -------------------------------------------------------------------------------------------------


@torch.no_grad()
def reset_positions(model: nn.Module, fresh: nn.Module) -> nn.Module:
    """Gives a model the position parameters, and nothing else, of a freshly built one of the same kind; in place."""
    model, fresh = plain(model), plain(fresh)
    names, others = position_parameters(model), position_parameters(fresh)
    if not names:
        raise ValueError(f"{type(model).__name__} has no position parameters to draw anew: expected a model with some")
    if different := sorted(set(names) ^ set(others)):
        raise ValueError(f"fresh: expected a model with the same position parameters, but only one has {different[0]}")
    for name in names:
        old, new = model.get_parameter(name), fresh.get_parameter(name)
        if old.shape != new.shape:
            raise ValueError(
                f"fresh: expected {name} of shape {tuple(old.shape)}, as the model has it, got {tuple(new.shape)}"
            )
    for name in names:
        model.get_parameter(name).copy_(fresh.get_parameter(name))
    for module in model.modules():
        if getattr(module, "attention_bias_cache", None):  # LeViT and its kin remember their biases in evaluation mode
            module.attention_bias_cache = {}
    return model


# ---- the biases -----------------------------------------------------------------------------------------------------


def position_biases(model: nn.Module) -> dict[str, np.ndarray]:
    """The learned relative bias of each attention layer by its name, (heads, 2 rows - 1, 2 columns - 1); {} if none.

    Of the layer alone: without a Gaussian that gmmvit attached, but with one that was folded into it.
    """
    model = plain(model)
    with at_rest(model):  # a position MLP drops hidden units while it trains
        found = {
            name.removesuffix(".rel_pos"): (module, bias().float().cpu().numpy())
            for name, module in model.named_modules()
            if (bias := _bias_of(module))
        }
    biases = {}
    for name, (module, bias) in found.items():
        bias = bias.reshape(-1, *bias.shape[-2:])  # (heads, N, N)
        if bias.shape[-1] == bias.shape[-2]:  # a layer that pools its queries has no one grid
            known = layout(model, bias.shape[-1], layer=module)
            if known is None:
                raise ValueError(f"{name}: expected a bias over a grid of patches, got {bias.shape[-1]} tokens")
            grid, prefix = known
            heads = [relative_kernel(each, grid) for each in bias[:, prefix:, prefix:]]
            biases[name] = np.stack(heads).astype(np.float32)
    return biases


def _bias_of(module: nn.Module) -> Callable[[], torch.Tensor] | None:
    """What computes a module's bias, (..., heads, N, N); None of a module without one."""
    if hasattr(module, "get_bias"):  # RelPosMlp, RelPosBias, MaxViT's, folded ones
        return module.get_bias
    if hasattr(module, "_relative_positional_encodings"):  # Swin-v2-CR
        return module._relative_positional_encodings
    if hasattr(module, "cpb_mlp"):  # Swin-v2
        return lambda: _continuous(module)
    if hasattr(module, "get_attention_biases"):  # LeViT and its kin
        return lambda: module.get_attention_biases(next(module.parameters()).device)
    if isinstance(module, RelativePositionBias):  # BEiT's, for all layers
        return module
    if getattr(module, "relative_position_bias_table", None) is not None:  # Swin, BEiT
        return getattr(module, "_get_rel_pos_bias", None)
    return None


def _continuous(attention: nn.Module) -> torch.Tensor:
    """Swin-v2: 16 sigmoid(MLP(log-spaced relative coordinates))."""
    table = attention.cpb_mlp(attention.relative_coords_table).flatten(0, 2)  # (pairs, heads)
    return 16 * table[attention.relative_position_index].permute(2, 0, 1).sigmoid()


# ---- what a query sees of them --------------------------------------------------------------------------------------


def sliced(kernel: np.ndarray, query: Grid) -> np.ndarray:
    """The bias (..., rows, columns) of one query (row, column), cut from tables (..., 2 rows - 1, 2 columns - 1)."""
    rows, columns = grid_of_kernel(kernel)
    row, column = query
    if not (0 <= row < rows and 0 <= column < columns):
        raise ValueError(f"query: expected a patch of the {rows} x {columns} grid, got {query}")
    top, left = rows - 1 - row, columns - 1 - column
    return kernel[..., top : top + rows, left : left + columns]


def grid_of_kernel(kernel: np.ndarray) -> Grid:
    """The grid whose relative positions a table holds."""
    rows, columns = np.shape(kernel)[-2:]
    if rows % 2 == 0 or columns % 2 == 0:
        raise ValueError(f"expected a table of 2n-1 rows and columns, got {rows} x {columns}")
    return (rows + 1) // 2, (columns + 1) // 2
