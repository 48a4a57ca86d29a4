"""Masks, maps and images as figures: signed weights (white is zero), what queries see, heat maps, predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.colors import hsv_to_rgb, to_rgb
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from ..analysis.fields import central_patch
from ..analysis.positions import grid_of_kernel, sliced
from ..core.grids import Grid
from ..dense.ade import IGNORED
from .charts import COLUMN, PAGE, Figure, styled
from .tables import text

SIGNED, POSITIVE = "RdBu_r", "viridis"
HEAT, ACROSS = "inferno", 6  # panels side by side
SHARES = {"area": "area", "inside": "attention", "code": "λ, code", "paper": "λ, paper"}
OBJECT, CLASS = 0.45, 0.7  # how far the colour of an object or of a class covers a pixel
GOLDEN = 0.6180339887
Arrays = Mapping[str, np.ndarray]  # of gmmvit.analysis.pictured

# ---- masks ----------------------------------------------------------------------------------------------------------


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


# ---- fields and biases ----------------------------------------------------------------------------------------------


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


# ---- images ---------------------------------------------------------------------------------------------------------


@styled
def mixed_images(lines: Iterable[Mapping]) -> Figure:
    """Mixed images (of gmmvit.paper.transmix), a line each: their parts, box, attention, and the shares as bars."""
    lines = list(lines)
    figure = Figure(figsize=(PAGE, 0.4 + 1.1 * len(lines)))
    panels = figure.subplots(len(lines), 5, squeeze=False, width_ratios=[1, 1, 1, 1.35, 1.7])
    for (own, pasted, mixed, attention, bars), line in zip(panels, lines, strict=True):
        top, bottom, left, right = line["box"]
        height, width = line["own"].shape[:2]
        for axes, name in ((own, "own"), (pasted, "pasted"), (mixed, "mixed")):
            axes.imshow(line[name])
        extent = (-0.5, width - 0.5, height - 0.5, -0.5)
        image = attention.imshow(line["attention"], cmap="viridis", vmin=0, extent=extent)
        figure.colorbar(image, ax=attention, ticks=MaxNLocator(2), format="%g", shrink=0.9, label="attention")
        for axes in (pasted, mixed, attention):
            corner = (left - 0.5, top - 0.5)
            axes.add_patch(Rectangle(corner, right - left, bottom - top, fill=False, edgecolor="C1", linewidth=1.2))
        for axes in (own, pasted, mixed, attention):
            axes.axis("off")
        _bars(bars, [line[name] for name in SHARES])
        bars.tick_params(labelbottom=line is lines[-1])
    for axes, title in zip(
        panels[0],
        ("own image", "pasted image", "mixed", "attention\nto each patch", "share of the\npasted image"),
        strict=True,
    ):
        axes.set_title(title)
    panels[-1, -1].set_xlabel("share")
    return figure


def _bars(axes, values: Sequence[float]) -> None:
    axes.barh(list(SHARES.values()), values, color=["#999999", "#999999", "C0", "C1"], height=0.7)
    for place, value in enumerate(values):
        axes.annotate(text(value), (value, place), (3, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set(xlim=(0, 1.2), xticks=[0, 0.5, 1])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


@styled
def detections(arms: Mapping[str, Arrays]) -> Figure:
    """Test images with the objects that are in them, and with those that each arm finds, coloured by class."""
    truth = next(iter(arms.values()))
    images = truth["dense_images"]
    figure, grid = _grid(len(images), ("truth", *arms))
    for i, (line, image) in enumerate(zip(grid, images, strict=True)):
        _objects(line[0], image, truth[f"dense_true_boxes_{i}"], truth[f"dense_true_masks_{i}"])
        for axes, arrays in zip(line[1:], arms.values(), strict=True):
            _objects(axes, image, arrays[f"dense_boxes_{i}"], arrays[f"dense_masks_{i}"])
    return figure


@styled
def segmentations(arms: Mapping[str, Arrays]) -> Figure:
    """Test images, their classes, and those that each arm gives to each pixel; black has no class."""
    truth = next(iter(arms.values()))
    images = truth["dense_images"]
    figure, grid = _grid(len(images), ("image", "truth", *arms))
    for i, (line, image) in enumerate(zip(grid, images, strict=True)):
        line[0].imshow(image)
        labels = [truth["dense_true"][i], *(arrays["dense_labels"][i] for arrays in arms.values())]
        for axes, numbers in zip(line[1:], labels, strict=True):
            axes.imshow(_coloured(image, numbers))
    return figure


def _grid(lines: int, titles: Sequence[str]) -> tuple[Figure, np.ndarray]:
    figure = Figure(figsize=(0.2 + 1.6 * len(titles), 0.25 + 1.6 * lines))
    grid = figure.subplots(lines, len(titles), squeeze=False)
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title)
    for axes in grid.flat:
        axes.axis("off")
    return figure, grid


def _objects(axes, image: np.ndarray, boxes: np.ndarray, masks: np.ndarray) -> None:
    """Boxes (n, 5 or 6) of x0, y0, x1, y1, perhaps a score, class; the surest lies on top."""
    shown = image / 255
    order = range(len(boxes))[::-1]
    for n in order:
        shown[masks[n]] = (1 - OBJECT) * shown[masks[n]] + OBJECT * np.array(_colour(int(boxes[n, -1])))
    axes.imshow(shown)
    for n in order:
        left, top, right, bottom = boxes[n, :4] - 0.5  # pixel 0 is drawn from -0.5 to 0.5
        look = {"edgecolor": _colour(int(boxes[n, -1])), "linewidth": 0.9}
        axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, **look))
        if boxes.shape[1] == 6:
            ground = {"facecolor": look["edgecolor"], "linewidth": 0, "pad": 0.5}
            axes.text(
                left, top, f"{boxes[n, 4]:.2f}", color="white", fontsize=5, va="bottom", clip_on=True, bbox=ground
            )


def _coloured(image: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """An image under the colours of its classes, (H, W, 3) in [0, 1]."""
    numbers = np.unique(labels)
    colours = np.array([(0, 0, 0) if number == IGNORED else _colour(int(number)) for number in numbers])
    return (1 - CLASS) * image / 255 + CLASS * colours[np.searchsorted(numbers, labels)]


def _colour(number: int) -> tuple[float, float, float]:
    """One for each class: seven that colour-blind readers can tell apart, then any."""
    if number < 7:
        return to_rgb(f"C{number}")
    return tuple(hsv_to_rgb((number * GOLDEN % 1, 0.7, 0.9)))
