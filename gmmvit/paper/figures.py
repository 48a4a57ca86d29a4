"""Figures in the house's style, without pyplot: shown by Jupyter, saved as PNG and PDF, equal ones in equal bytes."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import wraps
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure as _Figure

STYLE = ["default", Path(__file__).with_name("paper.mplstyle")]
COLUMN, PAGE = 3.5, 7.0  # inches
UNDATED = {"png": {"Software": None}, "pdf": {"CreationDate": None, "Creator": None, "Producer": None}}


class Figure(_Figure):
    """matplotlib's Figure, which Jupyter shows although no backend has been chosen."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        with style.context(STYLE):
            settle(self)
            self.savefig(buffer, format="png", dpi=self.dpi, metadata=UNDATED["png"])
        return buffer.getvalue()


def styled(plot: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draws a plot in the house's style, whatever the reader's own matplotlibrc says."""

    @wraps(plot)
    def drawn(*args, **kwargs) -> Figure:
        with style.context(STYLE):
            return plot(*args, **kwargs)

    return drawn


def settle(figure: Figure) -> None:
    """Gives everything its place: the layout of images needs a second look at itself, or words are cut off."""
    for _ in range(2):
        figure.draw_without_rendering()


def save(figure: Figure, folder: str | Path, name: str) -> None:
    """Writes <name>.png and <name>.pdf."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with style.context(STYLE):
        settle(figure)
        for kind, metadata in UNDATED.items():
            figure.savefig(Path(folder) / f"{name}.{kind}", metadata=metadata)
