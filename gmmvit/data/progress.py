"""A progress bar where somebody can see it move: on a terminal and in Jupyter, and not in a log file."""

from __future__ import annotations

import sys

from tqdm.auto import tqdm


def bar(*args, **options) -> tqdm:
    """tqdm, silent when nobody watches."""
    return tqdm(*args, **options, disable=not (sys.stderr.isatty() or "ipykernel" in sys.modules))
