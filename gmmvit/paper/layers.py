"""layers.csv of a run: read, and drawn by layer and epoch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.ticker import MaxNLocator

from ..train.layers import FILE
from ..train.rows import LEAST
from .charts import PAGE, PUBLISHED, Figure, panels, styled

LABELS = {
    "entropy": "entropy of attention (nats)",
    "distance": "distance of attention (patches)",
    "moved": "masks' movement (spreads)",
}


def read(run: str | Path) -> pd.DataFrame | None:
    """The lines of a run's layers.csv, a line for each epoch (0: before training) and layer; None where it has none."""
    path = Path(run) / FILE
    lines = pd.read_csv(path) if path.is_file() else pd.DataFrame()
    return lines if len(lines) else None


@styled
def by_layer(lines: pd.DataFrame) -> Figure:
    """Entropy, distance and the masks' movement by epoch: a line for each layer, dark ones first; only what is known.

    Dashed is the entropy of uniform attention, and below the line of movement masks did not learn.
    """
    known = [name for name in LABELS if lines[name].notna().any()]
    logarithmic = lines.moved.max() > 0  # where movement of 0, as at the start, has no place
    lines = lines.assign(moved=lines.moved.where(lines.moved > 0)) if logarithmic else lines
    figure, (axes,) = panels(PAGE, 2.4, 1, len(LABELS), len(known))
    layers = list(lines.layer.unique())
    shades = colormaps["viridis"](np.linspace(0, 0.9, len(layers)))
    for name, panel in zip(known, axes, strict=False):
        for number, (layer, shade) in enumerate(zip(layers, shades, strict=True), 1):
            its = lines[(lines.layer == layer) & lines[name].notna()]
            end = f"layer {number}" if number in (1, len(layers)) else None
            panel.plot(its.epoch, its[name], marker="o" if len(its) < 30 else None, color=shade, label=end)
        panel.set(xlabel="epoch", ylabel=LABELS[name])
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    for level in lines.uniform.dropna().unique():
        axes[0].axhline(level, color=PUBLISHED, linestyle="--", zorder=0)
    if "moved" in known:
        axes[known.index("moved")].axhline(LEAST, color=PUBLISHED, linestyle="--", zorder=0)
        if logarithmic:
            axes[known.index("moved")].set_yscale("log")
    if known:
        axes[0].legend()
    return figure
