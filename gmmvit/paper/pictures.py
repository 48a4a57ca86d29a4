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
from .charts import COLUMN, PAGE, Figure, panels, styled
from .tables import text

SIGNED, POSITIVE = "RdBu_r", "viridis"
ACROSS = 6  # fields side by side
BESIDE, EDGE = 1.15, 0.02  # from the left of a panel of mask_grid to that of the next, and around all, in panels
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
    cell = min(1.4, (PAGE - 1.2) / across / BESIDE)
    below = BESIDE + 0.25 / cell * (heads == 1)
    width, height = max(COLUMN, cell * BESIDE * across + 1.2), cell * below * lines + 0.5
    figure, ((axes,),) = panels(width, height, 1, 1)  # one for all panels: to lay out a hundred axes takes seconds
    for layer, (name, mask) in enumerate(shown.items()):
        for head, weight in enumerate(mask):
            line, column = (layer, head) if heads > 1 else divmod(layer, across)
            image = _panel(axes, weight, (BESIDE * column, below * line), widest, query)
            title = name if heads == 1 else f"head {head + 1}" if layer == 0 else ""
            axes.text(BESIDE * column + 0.5, below * line - 0.06, title, ha="center", va="bottom")
    _bare(axes).set(xlim=(-EDGE, BESIDE * (across - 1) + 1 + EDGE), ylim=(below * (lines - 1) + 1 + EDGE, -EDGE))
    axes.spines[:].set_visible(False)
    if heads > 1:
        axes.set_yticks([below * line + 0.5 for line in range(lines)], shown)
        axes.tick_params(axis="y", length=0, labelsize=8)
    figure.colorbar(image, ax=axes, label="mask weight", pad=0.01, aspect=10 * lines, shrink=0.8)
    figure.supxlabel("key patch" if query is None else "column of the key")
    figure.supylabel("query patch" if query is None else "row of the key")
    return figure


def _panel(axes, weight: np.ndarray, corner: tuple[float, float], limit: float, query: Grid | None):
    """A signed image in a square of side 1 below and right of a corner, one of its patches framed."""
    (left, top), (rows, columns) = corner, weight.shape
    high, wide = rows / max(rows, columns), columns / max(rows, columns)
    image = signed(axes, weight, limit, (left, left + wide, top + high, top))
    axes.add_patch(Rectangle(corner, wide, high, fill=False, edgecolor="#444444", linewidth=0.3))
    if query is not None:
        size = wide / columns, high / rows
        patch = left + query[1] * size[0], top + query[0] * size[1]
        axes.add_patch(Rectangle(patch, *size, fill=False, edgecolor="black", linewidth=0.8))
    return image


@styled
def reverse_convolution(kernel: np.ndarray, label: str = "mask weight") -> Figure:
    """A (2n-1) x (2n-1) kernel of relative positions, and what three queries see of it: an n x n window each.

    The window slides against the query: the further down and right the query, the further up and left the window.
    """
    rows, columns = grid_of_kernel(kernel)
    queries = {"C4": (0, 0), "C2": (rows // 2, columns // 2), "C3": (rows - 1, columns - 1)}  # by colour
    limit = np.abs(kernel).max()
    figure, ((whole, *parts),) = panels(PAGE, 2.6, 1, 4, width_ratios=[1.6, 1, 1, 1])
    image = _relative(whole, kernel, limit)
    for axes, (colour, (row, column)) in zip(parts, queries.items(), strict=True):
        corner = (-column - 0.5, -row - 0.5)
        whole.add_patch(Rectangle(corner, columns, rows, fill=False, edgecolor=colour, linewidth=1.5, clip_on=False))
        signed(axes, sliced(kernel, (row, column)), limit)
        axes.add_patch(framed(row, column))
        axes.set_title(f"query in row {row + 1},\ncolumn {column + 1}")
        axes.spines[:].set(color=colour, linewidth=1.5, visible=True)
    figure.colorbar(image, ax=[whole, *parts], label=label, shrink=0.8, pad=0.01)
    return figure


@styled
def heat_maps(images: np.ndarray, heats: Mapping[str, np.ndarray]) -> Figure:
    """Images (B, H, W, 3), and below them the attention (B, H, W) of each arm laid over; each map scaled to itself."""
    count = len(images)
    figure, grid = panels(min(PAGE, 0.9 + 1.2 * count), 1.2 * (1 + len(heats)), 1 + len(heats), count)
    for axes, picture in zip(grid[0], images, strict=True):
        _bare(axes).imshow(picture)
    _called(grid[0], "image")
    for line, (name, heat) in zip(grid[1:], heats.items(), strict=True):
        for axes, picture, attention in zip(line, images, heat, strict=True):
            grey = np.asarray(picture) @ np.array([0.299, 0.587, 0.114])
            _bare(axes).imshow(grey, cmap="gray")
            image = _scaled(axes, attention, alpha=0.6)
        _called(line, name)
    return _least_to_most(figure, image, grid, "attention", 10)


@styled
def steps(matrices: Mapping[str, np.ndarray], words: Mapping[str, str]) -> Figure:
    """Matrices (queries, keys) side by side, each with its own colour bar, which says in words what its numbers are."""
    figure, (line,) = panels(PAGE, 1.1 + PAGE / len(matrices), 1, len(matrices))
    for axes, (name, matrix) in zip(line, matrices.items(), strict=True):
        image = _weights(axes, matrix)
        axes.set(title=name, xlabel="key patch")
        figure.colorbar(image, ax=axes, location="bottom", pad=0.03, shrink=0.9, label=words[name])
    line[0].set_ylabel("query patch")
    return figure


@styled
def mixture(kernels: Mapping[str, np.ndarray]) -> Figure:
    """Kernels of relative positions (2n-1, 2n-1) by distance, the last of them, their sum, in black and as an image."""
    *_, total = kernels.items()
    rows, columns = grid_of_kernel(total[1])
    distance = np.hypot(*np.meshgrid(np.arange(1 - rows, rows), np.arange(1 - columns, columns), indexing="ij")).ravel()
    order = np.argsort(distance, kind="stable")
    figure, ((lines, whole),) = panels(PAGE, 2.9, 1, 2, width_ratios=[1.6, 1])
    lines.axhline(0, color="#444444", linewidth=0.6)
    for name, kernel in kernels.items():
        look = {"color": "black", "linewidth": 2} if name == total[0] else {}
        lines.plot(distance[order], kernel.ravel()[order], label=name, **look)
    lines.set(xlabel="distance of query and key (patches)", ylabel="mask weight")
    image = _relative(whole, total[1])
    whole.set_title(total[0])
    figure.colorbar(image, ax=whole, label="mask weight")
    figure.legend(*lines.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def _relative(axes, kernel: np.ndarray, limit: float = 0.0):
    """An image of weights by relative position, whose axes count from the query to the key."""
    rows, columns = grid_of_kernel(kernel)
    extent = -columns + 0.5, columns - 0.5, rows - 0.5, -rows + 0.5
    image = signed(axes, kernel, limit, extent) if limit else _weights(axes, kernel, extent)
    axes.set(xlabel="columns from query to key", ylabel="rows from query to key")
    axes.set_xticks([1 - columns, 0, columns - 1])
    axes.set_yticks([1 - rows, 0, rows - 1])
    return image


def _weights(axes, matrix: np.ndarray, extent: tuple | None = None):
    """An image whose white is zero; where no number lies on the other side of zero, from the least to the most."""
    if np.min(matrix) < 0 < np.max(matrix):
        return signed(axes, matrix, np.abs(matrix).max(), extent)
    return _bare(axes).imshow(matrix, cmap=POSITIVE, extent=extent)


def signed(axes, weight: np.ndarray, limit: float, extent: tuple | None = None):
    """An image whose white is zero."""
    limit = limit or 1.0
    return _bare(axes).imshow(weight, cmap=SIGNED, vmin=-limit, vmax=limit, extent=extent)


def framed(row: int, column: int) -> Rectangle:
    """A frame around one patch, which hides nothing of it."""
    return Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=0.8)


def _bare(axes):
    """Axes of an image: a thin frame, no grid and no ticks."""
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    axes.spines[:].set(visible=True, linewidth=0.3)
    return axes


def _called(line, words: str) -> None:
    """Writes the name of a line of panels beside its first."""
    line[0].set_ylabel(words, rotation=0, ha="right", va="center")


def _scaled(axes, image: np.ndarray, **look):
    """A map from its own least to its own most."""
    image = np.asarray(image, dtype=np.float64)
    shown = (image - image.min()) / (np.ptp(image) or 1.0)
    return axes.imshow(shown, cmap="inferno", vmin=0, vmax=1, **look)


def _least_to_most(figure: Figure, image, grid: np.ndarray, label: str, aspect: int) -> Figure:
    """The figure with the bar of colours of maps that are each scaled to itself."""
    bar = figure.colorbar(image, ax=grid, label=label, ticks=[0, 1], pad=0.01, aspect=aspect * len(grid))
    bar.ax.set_yticklabels(["map's\nleast", "map's\nmost"])
    return figure


# ---- fields and biases ----------------------------------------------------------------------------------------------


@styled
def fields(maps: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
    """Receptive fields {model: {line: (H, W)}}, each from its own least to its own most, in pixels of the image."""
    names = list(maps)
    blocks = [names[i : i + ACROSS] for i in range(0, len(names), ACROSS)]
    lines = list(dict.fromkeys(line for each in maps.values() for line in each))
    across = min(len(names), ACROSS)
    cell = min(1.2, (PAGE - 1.9) / across)
    height = ((cell + 0.1) * len(lines) + 0.5) * len(blocks)
    figure, grid = panels(1.9 + cell * across, height, len(blocks) * len(lines), across, 0)
    for row, axes_of_line in enumerate(grid):
        block, line = blocks[row // len(lines)], lines[row % len(lines)]
        _called(axes_of_line, line)
        for axes, name in zip(axes_of_line, block, strict=False):
            _bare(axes).set(visible=True, title=name.replace(", ", ",\n") if line == lines[0] else "")
            if line in maps[name]:
                image, side = _scaled(axes, maps[name][line]), np.shape(maps[name][line])[1]
                if line == lines[-1]:
                    axes.set_xticks([0, side - 1], ["1", f"{side} px"])
            else:
                axes.text(0.5, 0.5, "–", ha="center", va="center", transform=axes.transAxes)
    return _least_to_most(figure, image, grid, "sensitivity to a pixel", 12)


@styled
def seen_by_queries(kernels: Mapping[str, np.ndarray]) -> Figure:
    """What some queries see of tables {line: (2n-1, 2n-1)}, a scale of colour for each line; the query is framed."""
    grid = grid_of_kernel(next(iter(kernels.values())))
    rows, columns = grid
    middle = central_patch(grid)[0] * columns + central_patch(grid)[1]
    queries = list(dict.fromkeys((0, 1, 2, columns - 1, middle, rows * columns - columns, rows * columns - 1)))
    figure, places = panels(PAGE, 0.3 + 1.0 * len(kernels), len(kernels), len(queries))
    for axes, n in zip(places[0], queries, strict=True):
        axes.set_title(f"n = {n}")
    for line, (name, kernel) in zip(places, kernels.items(), strict=True):
        for axes, n in zip(line, queries, strict=True):
            query = divmod(n, columns)
            image = _bare(axes).imshow(sliced(kernel, query), cmap=POSITIVE, vmin=kernel.min(), vmax=kernel.max())
            axes.add_patch(framed(*query))
        _called(line, name)
        figure.colorbar(image, ax=list(line), pad=0.01, aspect=10, label="position bias")
    return figure


@styled
def seen_by_the_centre(kernels: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
    """What the central query sees in each layer, {line: {layer: (2n-1, 2n-1)}}, minus the layer's minimum.

    The layers of a line share their scale of colour.
    """
    deepest = max(len(layers) for layers in kernels.values())
    height = 0.3 + len(kernels) * min(1.0, 0.3 + 6.0 / deepest)
    figure, grid = panels(PAGE, height, len(kernels), deepest, 0)
    for number, axes in enumerate(grid[0], 1):
        axes.set_title(f"layer {number}" if number == 1 else f"{number}")
    for line, (name, layers) in zip(grid, kernels.items(), strict=True):
        query = central_patch(grid_of_kernel(next(iter(layers.values()))))
        seen = [sliced(kernel, query) for kernel in layers.values()]
        seen = [each - each.min() for each in seen]
        highest = max(each.max() for each in seen) or 1.0
        for axes, each in zip(line, seen, strict=False):
            image = _bare(axes).imshow(each, cmap=POSITIVE, vmin=0, vmax=highest)
            axes.set_visible(True)
        _called(line, name.replace(", ", ",\n"))
        figure.colorbar(image, ax=list(line), pad=0.01, aspect=8, label="bias − least")
    return figure


# ---- images ---------------------------------------------------------------------------------------------------------


@styled
def mixed_images(lines: Iterable[Mapping]) -> Figure:
    """Mixed images (of gmmvit.paper.transmix), a line each: their parts, box, attention, and the shares as bars."""
    lines = list(lines)
    figure, grid = panels(PAGE, 0.4 + 1.1 * len(lines), len(lines), 5, width_ratios=[1, 1, 1, 1.35, 1.7])
    for (own, pasted, mixed, attention, bars), line in zip(grid, lines, strict=True):
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
    titles = "own image", "pasted image", "mixed", "attention\nto each patch", "share of the\npasted image"
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title)
    grid[-1, -1].set_xlabel("share")
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
    figure, grid = panels(0.2 + 1.6 * len(titles), 0.25 + 1.6 * lines, lines, len(titles))
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
