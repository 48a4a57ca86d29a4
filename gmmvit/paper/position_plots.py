"""Receptive fields and position biases as figures: maps of pixels, tables of relative positions, what queries see."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..analysis.fields import central_patch
from ..analysis.positions import grid_of_kernel, sliced
from .figures import PAGE, Figure, styled
from .mask_plots import POSITIVE, _bare, _cell, reverse_convolution

HEAT, ACROSS = "inferno", 6  # panels side by side


@styled
def fields(maps: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
    """Receptive fields {model: {line: (H, W)}}, each from its own least to its own most, in pixels of the image."""
    names = list(maps)
    blocks = [names[i : i + ACROSS] for i in range(0, len(names), ACROSS)]
    lines = list(dict.fromkeys(line for each in maps.values() for line in each))
    across = min(len(names), ACROSS)
    cell = min(1.2, (PAGE - 1.9) / across)
    figure = Figure(figsize=(1.9 + cell * across, ((cell + 0.1) * len(lines) + 0.5) * len(blocks)))
    panels = figure.subplots(len(blocks) * len(lines), across, squeeze=False)
    for axes in panels.flat:
        axes.set_visible(False)
    for row, axes_of_line in enumerate(panels):
        block, line = blocks[row // len(lines)], lines[row % len(lines)]
        axes_of_line[0].set_ylabel(line, rotation=0, ha="right", va="center")
        for axes, name in zip(axes_of_line, block, strict=False):
            _bare(axes).set(visible=True, title=name.replace(", ", ",\n") if line == lines[0] else "")
            if line in maps[name]:
                field = np.asarray(maps[name][line], dtype=np.float64)
                image = axes.imshow((field - field.min()) / (np.ptp(field) or 1.0), cmap=HEAT, vmin=0, vmax=1)
                if line == lines[-1]:
                    axes.set_xticks([0, field.shape[1] - 1], ["1", f"{field.shape[1]} px"])
            else:
                axes.text(0.5, 0.5, "–", ha="center", va="center", transform=axes.transAxes)
    bar = figure.colorbar(
        image, ax=panels, label="sensitivity to a pixel", ticks=[0, 1], pad=0.01, aspect=12 * len(panels)
    )
    bar.ax.set_yticklabels(["map's\nleast", "map's\nmost"])
    return figure


@styled
def seen_by_queries(kernels: Mapping[str, np.ndarray]) -> Figure:
    """What some queries see of tables {line: (2n-1, 2n-1)}, a scale of colour for each line; the query is framed."""
    grid = grid_of_kernel(next(iter(kernels.values())))
    rows, columns = grid
    middle = central_patch(grid)[0] * columns + central_patch(grid)[1]
    queries = list(dict.fromkeys((0, 1, 2, columns - 1, middle, rows * columns - columns, rows * columns - 1)))
    figure = Figure(figsize=(PAGE, 0.3 + 1.0 * len(kernels)))
    panels = figure.subplots(len(kernels), len(queries), squeeze=False)
    for axes, n in zip(panels[0], queries, strict=True):
        axes.set_title(f"n = {n}")
    for line, (name, kernel) in zip(panels, kernels.items(), strict=True):
        for axes, n in zip(line, queries, strict=True):
            query = divmod(n, columns)
            image = _bare(axes).imshow(sliced(kernel, query), cmap=POSITIVE, vmin=kernel.min(), vmax=kernel.max())
            axes.add_patch(_cell(*query))
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
        figure.colorbar(image, ax=list(line), pad=0.01, aspect=10, label="position bias")
    return figure


@styled
def seen_by_the_centre(kernels: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
    """What the central query sees in each layer, {line: {layer: (2n-1, 2n-1)}}, minus the layer's minimum.

    The layers of a line share their scale of colour.
    """
    deepest = max(len(layers) for layers in kernels.values())
    figure = Figure(figsize=(PAGE, 0.3 + len(kernels) * min(1.0, 0.3 + 6.0 / deepest)))
    panels = figure.subplots(len(kernels), deepest, squeeze=False)
    for axes in panels.flat:
        axes.set_visible(False)
    for number, axes in enumerate(panels[0], 1):
        axes.set_title(f"layer {number}" if number == 1 else f"{number}")
    for line, (name, layers) in zip(panels, kernels.items(), strict=True):
        query = central_patch(grid_of_kernel(next(iter(layers.values()))))
        seen = [sliced(kernel, query) for kernel in layers.values()]
        seen = [each - each.min() for each in seen]
        highest = max(each.max() for each in seen) or 1.0
        for axes, each in zip(line, seen, strict=False):
            image = _bare(axes).imshow(each, cmap=POSITIVE, vmin=0, vmax=highest)
            axes.set_visible(True)
        line[0].set_ylabel(name.replace(", ", ",\n"), rotation=0, ha="right", va="center")
        figure.colorbar(image, ax=list(line), pad=0.01, aspect=8, label="bias − least")
    return figure


@styled
def slicing(kernel: np.ndarray) -> Figure:
    """One table of relative biases, and the windows of it that three queries see."""
    figure = reverse_convolution(kernel)
    figure.axes[-1].set_ylabel("position bias")  # of the colour bar
    return figure
