"""Detection and segmentation as figures: scores by epoch, and predictions beside the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import hsv_to_rgb, to_rgb
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from ..dense.ade import IGNORED
from .figures import COLUMN, PAGE, Figure, styled

OBJECT, CLASS = 0.45, 0.7  # how far the colour of an object or of a class covers a pixel
GOLDEN = 0.6180339887
Arrays = Mapping[str, np.ndarray]  # of gmmvit.analysis.pictured


@styled
def curves(panels: Sequence[Mapping]) -> Figure:
    """A score by epoch (of dense_tables.curves): a line for each arm, and the range over its seeds as a band."""
    across = min(len(panels), 3)
    down = -(-len(panels) // across)
    figure = Figure(figsize=(max(COLUMN, PAGE * across / 3), 0.3 + 2 * down))
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    arms = list(dict.fromkeys(arm for panel in panels for arm in panel["arms"]))
    for axes, panel in zip(grid.flat, panels, strict=False):
        for arm, runs in panel["arms"].items():
            epochs = min((run[0] for run in runs), key=len)  # as far as every run came
            values = np.array([run[1][: len(epochs)] for run in runs])  # (runs, epochs)
            look = {"color": f"C{arms.index(arm)}", "linestyle": ("-", "--")[arms.index(arm) % 2]}
            axes.plot(epochs, values.mean(0), marker="o" if len(epochs) < 30 else None, label=arm, **look)
            axes.fill_between(epochs, values.min(0), values.max(0), color=look["color"], alpha=0.2, linewidth=0)
        axes.set(title=panel["title"], xlabel="epoch", ylabel=f"{panel['score']} (%)")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    grid[0, 0].legend()
    return figure


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
