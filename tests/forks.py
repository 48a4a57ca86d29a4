"""Processes that begin with torch and gmmvit loaded: forked off one that has loaded them and done nothing else.

A process of its own costs seconds of imports, and pytest's own cannot be forked where the pretend GPU was used.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

SERVER = multiprocessing.get_context("forkserver") if hasattr(os, "fork") else None
LOADED = ["gmmvit.cli", "gmmvit.train", "gmmvit.train.classify", "gmmvit.fetch", "gmmvit.paper.notebook"]


class Forked:
    """A process of its own session that ends with `act(*arguments)` as its code; it is asked as a Popen is."""

    def __init__(self, act: Callable[..., Any], *arguments: Any):
        forkserver.set_forkserver_preload(LOADED)
        self.folder = Path(tempfile.mkdtemp())
        self.process = SERVER.Process(target=_begin, args=(act, arguments, self.folder))
        self.process.start()
        self.pid, self.kill = self.process.pid, self.process.kill

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked process", timeout)
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """What it printed and what it complained of, when it has ended."""
        self.wait(timeout)
        files = [self.folder / name for name in ("said", "errors")]
        found = [file.read_text() if file.exists() else "" for file in files]
        shutil.rmtree(self.folder)
        return found[0], found[1]


def _begin(act: Callable[..., Any], arguments: tuple, folder: Path) -> None:
    os.setsid()
    for number, name in ((1, "said"), (2, "errors")):
        with open(folder / name, "wb") as file:
            os.dup2(file.fileno(), number)
    multiprocessing.set_start_method("fork", force=True)  # of its own children, as elsewhere
    sys.exit(act(*arguments))


def command(words: list[str], code: str = "") -> int:
    """The command `gmmvit`; `code` runs before it in the same process."""
    from gmmvit.cli import main

    exec(code, {})
    return main(words)


def run_cells(folder: str, notebook: str, parameters: dict[str, Any]) -> int:
    """A notebook with papermill's parameters, without a kernel of its own; what it shows is printed."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output
    from papermill.iorw import load_notebook_node
    from papermill.parameterize import parameterize_notebook

    os.chdir(folder)
    shell = InteractiveShell.instance()
    given = parameterize_notebook(load_notebook_node(notebook), parameters)
    for cell in (cell for cell in given.cells if cell.cell_type == "code"):
        with capture_output() as shown:
            result = shell.run_cell(cell.source, store_history=True)
        print(shown.stdout, *(output.data.get("text/markdown", "") for output in shown.outputs), sep="\n")
        result.raise_error()
    return 0
