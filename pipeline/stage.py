"""What a stage of dvc.yaml runs: `exec python pipeline/stage.py`.

DVC puts the stage's name into the environment (DVC_STAGE), so that no name of params.yaml ever reaches a shell; the
file is checked before anything is done with a name of it. Papermill runs in a thread: its own handlers of signals end
the kernel at once, ours let it save its state. gmmvit, and so torch, is loaded by the kernel and not here as well.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from itertools import chain
from pathlib import Path

from names import DATA, ROOT, ROWS, names
from stopping import passed_on

QUEUED = "GMMVIT_JOBS"  # set by rows_queue.py, which counts the rows itself
WRAPPER = "GMMVIT_REPRO"  # the process of repro.py above, which dvc makes deaf to Ctrl-C


def main() -> int:
    """Runs the stage that DVC names; what is wrong is one sentence."""
    stage = os.environ["DVC_STAGE"].rpartition("dvc.yaml:")[2]
    os.chdir(ROOT)
    try:
        return run(*stage.partition("@")[::2])
    except (ValueError, OSError) as error:
        print(f"{stage}: {error}", file=sys.stderr)
        return 1


def run(kind: str, name: str) -> int:
    """The exit code of a stage: kind@name."""
    known = names()
    profile = known["profile"]
    reports = Path("reports") / profile
    tables = {f"{profile}-{path.stem}" for path in Path("notebooks").glob("*.ipynb")}
    if kind != "check" and name not in {"notebook": tables}.get(kind, known.get(kind, (profile,))):
        raise ValueError(f"{name} is not in params.yaml: expected a stage of `dvc stage list`")
    if kind == "check":
        Path("build/checked").write_text("every name in params.yaml is safe in a path and in a shell\n")
    elif kind in DATA:
        from gmmvit import fetch

        fetch.record(name, Path(f"build/data/{name}.json"))
    elif kind == "analyse":
        from gmmvit.analysis.drawn import analysed
        from gmmvit.analysis.shared import shared

        (reports / "analysis").mkdir(parents=True, exist_ok=True)
        runs = [reports / "runs" / row for stage in ROWS for row in known[stage]]
        for line in chain(analysed(runs), shared(runs, known["shared_weights"])):
            print(line, flush=True)
    elif kind == "report":
        from gmmvit.paper.profiles import read
        from gmmvit.paper.report import write

        write(read("params.yaml"), reports)
    elif kind in ROWS:
        rows = [row for stage in ROWS for row in known[stage]]
        if QUEUED not in os.environ:
            print(f"row {rows.index(name) + 1} of {len(rows)}: {name}", flush=True)
        return execute("run", reports / "runs" / name, {"profile": profile, "row": name}, log_output=True)
    else:
        notebook = name.removeprefix(f"{profile}-")
        for made in reports.glob(f"*/{notebook}-*"):
            made.unlink()
        for folder in ("figures", "tables"):
            (reports / folder).mkdir(parents=True, exist_ok=True)
        return execute(notebook, reports / "notebooks", {"profile": profile})
    return 0


def execute(name: str, folder: Path, parameters: dict[str, str], **options) -> int:
    """Runs a notebook by papermill; asked to stop, it waits until the kernel has saved what it was training."""
    from papermill import PapermillExecutionError, execute_notebook

    folder.mkdir(parents=True, exist_ok=True)
    paths = f"build/notebooks/{name}.ipynb", str(folder / f"{name}.ipynb")
    options |= {"cwd": "notebooks", "kernel_name": "python3", "progress_bar": False}
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    raised: list[BaseException] = []

    def work() -> None:
        try:
            execute_notebook(*paths, parameters, **options)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    with passed_on(lambda stop: logging.disable()) as stop:
        thread.start()
        thread.join()
        if stop.signal:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it has been obeyed
            what = parameters.get("row", name)
            print(f"{what}: stopped; the same command goes on from what was saved", file=sys.stderr, flush=True)
            _stop_what_comes_next()
            return stop.code
    if not raised:
        return 0
    if isinstance(raised[0], PapermillExecutionError):
        raise ValueError(f"{raised[0].ename}: {raised[0].evalue} (the notebook, up to there: {paths[1]})")
    raise raised[0]


def _stop_what_comes_next() -> None:
    """Tells repro.py, where it is what runs us, to begin no other stage."""
    if os.environ.get(WRAPPER) == str(os.getppid()):
        os.kill(os.getppid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
