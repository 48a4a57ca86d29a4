"""TransMix as figures: pairs of images with box, attention and shares; how far attention moves lambda from the area."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from .figures import COLUMN, PAGE, Figure, styled
from .tables import text

SHARES = {"area": "area", "inside": "attention", "code": "λ, code", "paper": "λ, paper"}


@styled
def mixed_images(lines: Iterable[Mapping]) -> Figure:
    """Mixed images (of transmix_tables), a line each: their parts, box, attention, and the shares as bars."""
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
def shifts(curves: Mapping[str, Iterable[Mapping[str, Sequence[float]]]]) -> Figure:
    """lambda - area over the samples by epoch: median, middle half and middle 90 %, each the mean over the seeds."""
    across = min(len(curves), 3)
    down = -(-len(curves) // across)
    figure = Figure(figsize=(max(COLUMN, 2.3 * across), 0.5 + 1.9 * down))
    panels = figure.subplots(down, across, squeeze=False, sharey=True)
    for axes in panels.flat[len(curves) :]:
        axes.set_visible(False)
    for axes, (name, histories) in zip(panels.flat, curves.items(), strict=False):
        histories = list(histories)
        epochs = min((history["epoch"] for history in histories), key=len)  # as far as every run came
        low, lower, median, upper, high = (
            np.mean([history[f"shift_q{q}"][: len(epochs)] for history in histories], 0)
            for q in ("05", "25", "50", "75", "95")
        )
        axes.axhline(0, color="#444444", linewidth=0.6)
        edges = np.append(epochs, epochs[-1] + 1) - 0.5  # a band as wide as its epoch, so that one alone can be seen
        for inner, outer, alpha, label in ((low, high, 0.2, "middle 90 %"), (lower, upper, 0.4, "middle half")):
            inner, outer = (np.append(edge, edge[-1]) for edge in (inner, outer))
            axes.fill_between(edges, inner, outer, step="post", color="C0", alpha=alpha, linewidth=0, label=label)
        axes.plot(epochs, median, color="C0", marker="o" if len(epochs) < 30 else None, label="median")
        axes.set_title(name)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    for axes in panels.flat[max(0, len(curves) - across) : len(curves)]:
        axes.set_xlabel("epoch")
    for axes in panels[:, 0]:
        axes.set_ylabel("λ − area of the box")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure
