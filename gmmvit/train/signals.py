"""Ctrl-C and a queue's SIGTERM: remembered until a step has ended, so that the state can be saved."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

SOON = 1.0  # seconds: a launcher passes on what every process of a job was sent, so the same request comes twice


class Stop:
    """Whether somebody asked this run to stop."""

    def __init__(self):
        self.signal: int | None = None
        self.since = 0.0

    @property
    def asked(self) -> bool:
        return self.signal is not None

    def leave(self, why: str) -> None:
        """Ends the run as the signal would have: exit code 130 after Ctrl-C, 143 after SIGTERM."""
        print(why, file=sys.stderr, flush=True)
        if self.signal == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt


@contextmanager
def remembered() -> Iterator[Stop]:
    """The first signal is remembered; a second Ctrl-C interrupts at once, a second SIGTERM changes nothing."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def remember(number, frame):
        now = time.monotonic()
        if not stop.asked:
            stop.signal, stop.since = number, now
        elif number == signal.SIGINT and now - stop.since > SOON:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
