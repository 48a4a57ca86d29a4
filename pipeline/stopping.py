"""Ctrl-C and a queue's SIGTERM in a process that waits for others: they are passed on, and their end is waited for."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

TWICE = 1.0  # seconds in which a second signal is the first one once more: a terminal and a queue signal whole groups


class Stop:
    """Whether somebody asked for a stop, and by which signal."""

    def __init__(self, then: Callable[[Stop], None]):
        self.signal, self.since, self.then = 0, 0.0, then

    @property
    def code(self) -> int:
        """The exit code of a process that ends by this signal: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + self.signal if self.signal else 0

    def remember(self, number: int, frame: object) -> None:
        """The first signal goes on to the processes below as SIGTERM, on which they save; a later one kills them."""
        again = bool(self.signal)
        if again and time.monotonic() - self.since < TWICE:
            return
        self.signal, self.since = self.signal or number, self.since or time.monotonic()
        for process in below():
            try:
                process.send_signal(signal.SIGKILL if again else signal.SIGTERM)
            except psutil.NoSuchProcess:
                pass
        if not again:
            self.then(self)


def below() -> list[psutil.Process]:
    """The processes that this one started and that still run."""
    return [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]


@contextmanager
def passed_on(then: Callable[[Stop], None] = lambda stop: None) -> Iterator[Stop]:
    """Signals go on to the processes below; after the first one, `then` is called too."""
    stop = Stop(then)
    before = {number: signal.signal(number, stop.remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
