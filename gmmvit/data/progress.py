"""A progress bar where somebody can see it move: on a terminal and in Jupyter, not in a log or under papermill."""

from __future__ import annotations

import os
import sys

from tqdm.auto import tqdm


def bar(*args, **options) -> tqdm:
    """tqdm, silent when nobody watches."""
    return tqdm(*args, **options, disable=not (sys.stderr.isatty() or "JPY_SESSION_NAME" in os.environ))
