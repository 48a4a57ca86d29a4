"""The gallery of priors: what each does to the attention of the centre patch and by distance, at the start and learned.

Rows are those of gmmvit.paper.priors.arms, or any with an "arm", a "row", a "state" and the "folder" of their run.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from ..analysis.shapes import Shape, after, at_start
from .charts import PAGE, PUBLISHED, Figure, panels, styled
from .pictures import framed, signed
from .runs import DONE

ACROSS = 2  # priors side by side
BEGAN, ENDED = "start", "learned"
Shapes = Mapping[str, tuple[Shape, Shape | None]]


def shapes(rows: pd.DataFrame) -> dict[str, tuple[Shape, Shape | None]]:
    """{arm: its masks at the start, and learned}, of its first seed that was run, else of its first; masks alone."""
    found = {}
    for arm, alike in rows[rows["mask"] != "none"].groupby("arm", sort=False):
        alike = alike.sort_values("seed", kind="stable")
        done = alike[alike.state == DONE]
        row = (done if len(done) else alike).iloc[0]
        began = at_start(row.row)
        if began:
            found[arm] = began, after(row.folder) if len(done) else None
    return found


@styled
def figure(found: Shapes) -> Figure | None:
    """For each prior the weights of the centre patch (framed) at the start and learned, and both by distance.

    Means over layers and heads, and as a band their standard deviation. A prior has one scale, whose white is zero.
    None where there are no priors.
    """
    if not found:
        return None
    across = min(len(found), ACROSS)
    down = -(-len(found) // across)
    size = PAGE * across / ACROSS, 0.7 + 1.15 * down
    made, grid = panels(*size, down, 3 * across, 0, width_ratios=[1, 1, 1.6] * across)
    blocks = grid.reshape(down * across, 3)
    for (name, pair), (start, learned, lines) in zip(found.items(), blocks, strict=False):
        known = [each for each in pair if each is not None]
        limit = max(np.abs(each.centre).max() for each in known)
        for axes, each, words in zip((start, learned), pair, (BEGAN, ENDED), strict=True):
            axes.set_visible(each is not None)
            if each is not None:
                signed(axes, each.centre, limit)
                axes.add_patch(framed(*each.query))
                axes.set_xlabel(words)
        start.set_title(name, loc="left", fontweight="bold")
        lines.set_visible(True)
        for each, words, colour in zip(pair, (BEGAN, ENDED), (PUBLISHED, "C0"), strict=True):
            if each is not None:
                band = each.weight - each.spread, each.weight + each.spread
                lines.fill_between(each.distance, *band, color=colour, alpha=0.25, linewidth=0)
                dash = "--" if words == BEGAN else "-"
                lines.plot(each.distance, each.weight, dash, color=colour, label=words)
        lines.set_title(pair[0].numbers, loc="right", fontsize=7)
        lines.yaxis.set_major_locator(MaxNLocator(3))
        lines.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    made.legend(*_first_with_both(blocks[: len(found), 2]), loc="outside upper center", ncols=2)
    made.supxlabel("lines: by the distance of query and key (patches)")
    return made


def _first_with_both(lines: np.ndarray) -> tuple[list, list]:
    """Handles and labels of the panel that has most of them."""
    return max((axes.get_legend_handles_labels() for axes in lines), key=lambda found: len(found[0]))
