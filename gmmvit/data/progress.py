"""How far something is: a bar on a terminal and in Jupyter, a line a minute in a log, nothing under papermill."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator

from tqdm import tqdm  # as text in Jupyter too: a widget that was saved with its notebook is dead when it is opened

EVERY = 60  # seconds between two lines


def bar(iterable: Iterable | None = None, **options) -> tqdm | Lines:
    """tqdm, or what stands in for it where nobody can see a bar move; options are tqdm's."""
    if "JPY_SESSION_NAME" in os.environ:
        return tqdm(iterable, file=sys.stdout, **options | {"leave": False})
    if sys.stderr.isatty():
        return tqdm(iterable, **options)
    return Lines(iterable, silent="ipykernel" in sys.modules, **options)  # papermill's notebook is a record


class Lines:
    """What is used of tqdm, as a line on stderr each minute: `epoch 1 of 5: 120 of 390 (31 %), 62 s, loss=2.1`."""

    def __init__(
        self, iterable: Iterable | None = None, *, desc: str = "", total: int | None = None, initial: int = 0,
        unit: str = "", unit_scale: bool = False, leave: bool = True, silent: bool = False,
    ):  # fmt: skip
        if total is None and hasattr(iterable, "__len__"):
            total = len(iterable)
        self.iterable, self.desc, self.total, self.n, self.silent = iterable, desc, total, initial, silent
        self.scaled, self.unit, self.notes = unit_scale, unit, ""
        self.begun = self.said = time.monotonic()

    def __iter__(self) -> Iterator:
        for item in self.iterable:
            yield item
            self.update()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error) -> None:
        pass

    def update(self, steps: int = 1) -> None:
        """Moves on, and says so when the last line is a minute old."""
        self.n += steps
        now = time.monotonic()
        if now - self.said >= EVERY and not self.silent:
            self.said = now
            print(self.line(now - self.begun), file=sys.stderr, flush=True)

    def set_postfix(self, **notes) -> None:
        """What stands at the end of the next line."""
        self.notes = "".join(f", {name}={value}" for name, value in notes.items())

    def line(self, seconds: float) -> str:
        """The line of this moment."""
        done, total = (tqdm.format_sizeof(n) if self.scaled else str(n) for n in (self.n, self.total or 0))
        far = f"{done} of {total} ({self.n / self.total:.0%})" if self.total else done
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.desc}: {far}{unit}, {tqdm.format_interval(seconds)}{self.notes}"
