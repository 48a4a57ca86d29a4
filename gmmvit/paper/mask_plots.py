"""Masks and attention as figures: signed weights (white is zero), decay, fits, relative kernels, heat maps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from ..analysis.masks import Explained, Fit, Regularities
from ..core.grids import Grid
from .figures import COLUMN, PAGE, Figure, styled
from .tables import text

SIGNED, POSITIVE = "RdBu_r", "viridis"


@styled
def mask_grid(masks: Mapping[str, np.ndarray], grid: Grid | None = None, query: Grid | None = None) -> Figure:
    """Masks {layer: (heads, N, N)}, a line for each layer: whole, or the row of one query (row, column) on its grid.

    Masks of one head share lines; all panels share one scale of colour, whose white is zero.
    """
    shown = {name: np.asarray(mask) for name, mask in masks.items()}
    if query is not None:
        token = query[0] * grid[1] + query[1]
        shown = {name: mask[:, token].reshape(-1, *grid) for name, mask in shown.items()}
    widest = max(np.abs(mask).max() for mask in shown.values())
    heads = max(len(mask) for mask in shown.values())
    across = heads if heads > 1 else min(len(shown), 5)
    lines = len(shown) if heads > 1 else -(-len(shown) // across)
    cell = min(1.4, (PAGE - 1.2) / across)
    figure = Figure(figsize=(max(COLUMN, cell * across + 1.2), (cell + 0.25 * (heads == 1)) * lines + 0.5))
    panels = figure.subplots(lines, across, squeeze=False)
    for axes in panels.flat:
        axes.set_visible(False)
    for layer, (name, mask) in enumerate(shown.items()):
        line = panels[layer] if heads > 1 else panels.flat[layer : layer + 1]
        for head, (axes, weight) in enumerate(zip(line, mask, strict=False), 1):
            image = _signed(axes, weight, widest)
            axes.set(visible=True, title=name if heads == 1 else f"head {head}" if layer == 0 else "")
            if query is not None:
                axes.add_patch(_cell(*query))
        if heads > 1:
            line[0].set_ylabel(name, rotation=0, ha="right", va="center")
    figure.colorbar(image, ax=panels, label="mask weight", pad=0.01, aspect=10 * lines, shrink=0.8)
    figure.supxlabel("key patch" if query is None else "column of the key")
    figure.supylabel("query patch" if query is None else "row of the key")
    return figure


@styled
def decay(regular: Regularities, fits: Iterable[Fit] = (), head: int = 0) -> Figure:
    """Mean weight (and sd) of a mask by distance of query and key, with fitted mixtures."""
    figure = Figure(figsize=(COLUMN, 2.5))
    axes = figure.subplots()
    axes.axhline(0, color="#444444", linewidth=0.6)
    mean, spread = regular.weight[head], regular.spread[head]
    axes.errorbar(regular.distance, mean, spread, fmt="o", color="#444444", label="mean ± sd of the pairs")
    between = np.append(0, np.linspace(1, regular.distance[-1], 300))  # no pair is closer than one patch
    for fit in fits:
        count = len(fit.sigma)
        label = f"{count} kernel{'s' if count > 1 else ''}, R² = {text(fit.r2, '.3f')}"
        axes.plot(between, fit.at(between), label=label)
    axes.set(xlabel="distance of query and key (patches)", ylabel="mask weight")
    figure.legend(loc="outside upper center", ncols=2)
    return figure


@styled
def r2_by_kernels(layers: Mapping[str, tuple[Sequence[Fit], Explained]]) -> Figure:
    """R2 of the mixtures of K kernels, for each layer {name: (fits, by_distance)}, with its bound as a dashed line."""
    figure = Figure(figsize=(COLUMN, 2.8))
    axes = figure.subplots()
    colours = _ramp(len(layers))
    for (name, (fits, bound)), colour in zip(layers.items(), colours, strict=True):
        counts = [len(fit.sigma) for fit in fits]
        axes.plot(counts, [fit.r2 for fit in fits], "o-", color=colour, markersize=3, label=name)
        axes.plot([counts[0], counts[-1]], [bound.r2] * 2, "--", color=colour, linewidth=0.8)
    axes.plot([], [], "--", color="#444444", linewidth=0.8, label="best function of distance")
    noise = max(bound.on_noise for _, bound in layers.values())
    axes.axhline(noise, color="#444444", linewidth=0.8, linestyle=":", label="the same on pure noise")
    axes.set(xlabel="kernels K", ylabel="R² of the mixture")
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside right center")
    return figure


@styled
def reverse_convolution(kernel: np.ndarray, queries: Sequence[Grid] | None = None) -> Figure:
    """A (2n-1) x (2n-1) kernel of relative positions, and what three queries see of it: an n x n window each.

    The window slides against the query: the further down and right the query, the further up and left the window.
    """
    rows, columns = ((side + 1) // 2 for side in kernel.shape)
    queries = queries or [(0, 0), (rows // 2, columns // 2), (rows - 1, columns - 1)]
    limit = np.abs(kernel).max()
    figure = Figure(figsize=(PAGE, 2.6))
    whole, *parts = figure.subplots(1, 1 + len(queries), width_ratios=[1.6] + [1] * len(queries))
    image = _signed(whole, kernel, limit, (-columns + 0.5, columns - 0.5, rows - 0.5, -rows + 0.5))
    _from_query_to_key(whole, rows, columns)
    for i, (axes, (row, column)) in enumerate(zip(parts, queries, strict=True)):
        colour = ("C4", "C2", "C3")[i % 3]
        corner = (-column - 0.5, -row - 0.5)
        whole.add_patch(Rectangle(corner, columns, rows, fill=False, edgecolor=colour, linewidth=1.5, clip_on=False))
        top, left = rows - 1 - row, columns - 1 - column
        _signed(axes, kernel[top : top + rows, left : left + columns], limit)
        axes.add_patch(_cell(row, column))
        axes.set_title(f"query in row {row + 1},\ncolumn {column + 1}")
        axes.spines[:].set(color=colour, linewidth=1.5, visible=True)
    figure.colorbar(image, ax=[whole, *parts], label="mask weight", shrink=0.8, pad=0.01)
    return figure


@styled
def heat_maps(images: np.ndarray, heats: Mapping[str, np.ndarray]) -> Figure:
    """Images (B, H, W, 3), and below them the attention (B, H, W) of each arm laid over; each map scaled to itself."""
    count = len(images)
    figure = Figure(figsize=(min(PAGE, 0.9 + 1.2 * count), 1.2 * (1 + len(heats))))
    panels = figure.subplots(1 + len(heats), count, squeeze=False)
    for axes, picture in zip(panels[0], images, strict=True):
        _bare(axes).imshow(picture)
    for line, (name, heat) in zip(panels[1:], heats.items(), strict=True):
        for axes, picture, attention in zip(line, images, heat, strict=True):
            grey = np.asarray(picture) @ np.array([0.299, 0.587, 0.114])
            _bare(axes).imshow(grey, cmap="gray")
            low, high = attention.min(), attention.max()
            image = axes.imshow((attention - low) / (high - low or 1.0), cmap="inferno", vmin=0, vmax=1, alpha=0.6)
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
    panels[0, 0].set_ylabel("image", rotation=0, ha="right", va="center")
    bar = figure.colorbar(image, ax=panels, label="attention", ticks=[0, 1], pad=0.01, aspect=10 * len(panels))
    bar.ax.set_yticklabels(["map's\nleast", "map's\nmost"])
    return figure


@styled
def steps(matrices: Mapping[str, np.ndarray], words: Mapping[str, str]) -> Figure:
    """Matrices (queries, keys) side by side, each with its own colour bar, which says in words what its numbers are."""
    figure = Figure(figsize=(PAGE, 1.1 + PAGE / len(matrices)))
    panels = figure.subplots(1, len(matrices), squeeze=False)[0]
    for axes, (name, matrix) in zip(panels, matrices.items(), strict=True):
        image = _weights(axes, matrix)
        axes.set(title=name, xlabel="key patch")
        figure.colorbar(image, ax=axes, location="bottom", pad=0.03, shrink=0.9, label=words[name])
    panels[0].set_ylabel("query patch")
    return figure


@styled
def mixture(kernels: Mapping[str, np.ndarray]) -> Figure:
    """Kernels of relative positions (2n-1, 2n-1) by distance, the last of them, their sum, in black and as an image."""
    *_, total = kernels.items()
    rows, columns = ((side + 1) // 2 for side in total[1].shape)
    distance = np.hypot(*np.meshgrid(np.arange(1 - rows, rows), np.arange(1 - columns, columns), indexing="ij")).ravel()
    order = np.argsort(distance, kind="stable")
    figure = Figure(figsize=(PAGE, 2.9))
    lines, whole = figure.subplots(1, 2, width_ratios=[1.6, 1])
    lines.axhline(0, color="#444444", linewidth=0.6)
    for name, kernel in kernels.items():
        look = {"color": "black", "linewidth": 2} if name == total[0] else {}
        lines.plot(distance[order], kernel.ravel()[order], label=name, **look)
    lines.set(xlabel="distance of query and key (patches)", ylabel="mask weight")
    image = _weights(whole, total[1], (-columns + 0.5, columns - 0.5, rows - 0.5, -rows + 0.5))
    _from_query_to_key(whole, rows, columns)
    whole.set_title(total[0])
    figure.colorbar(image, ax=whole, label="mask weight")
    figure.legend(*lines.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def _from_query_to_key(axes, rows: int, columns: int) -> None:
    axes.set(xlabel="columns from query to key", ylabel="rows from query to key")
    axes.set_xticks([1 - columns, 0, columns - 1])
    axes.set_yticks([1 - rows, 0, rows - 1])


def _weights(axes, matrix: np.ndarray, extent: tuple | None = None):
    """An image whose white is zero; where no number lies on the other side of zero, from the least to the most."""
    if np.min(matrix) < 0 < np.max(matrix):
        return _signed(axes, matrix, np.abs(matrix).max(), extent)
    return _bare(axes).imshow(matrix, cmap=POSITIVE, extent=extent)


def _signed(axes, weight: np.ndarray, limit: float, extent: tuple | None = None):
    """An image whose white is zero."""
    limit = limit or 1.0
    return _bare(axes).imshow(weight, cmap=SIGNED, vmin=-limit, vmax=limit, extent=extent)


def _cell(row: int, column: int) -> Rectangle:
    """A frame around one patch, which hides nothing of it."""
    return Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=0.8)


def _bare(axes):
    """Axes of an image: a thin frame, no grid and no ticks."""
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    axes.spines[:].set(visible=True, linewidth=0.3)
    return axes


def _ramp(count: int) -> list:
    """Colours of layers in order: a part of the map that is readable on white."""
    return [colormaps[POSITIVE](x) for x in np.linspace(0, 0.85, max(count, 1))]
