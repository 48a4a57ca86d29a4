"""What a stage of dvc.yaml runs: `exec python -m gmmvit.paper.stage`.

DVC puts the stage's name into the environment (DVC_STAGE), so that no name of params.yaml ever reaches a shell; the
file is checked before anything is done with a name of it. Papermill runs in a thread: its own handlers of signals end
the kernel at once, ours let it save its state.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path

from .profiles import Params, read
from .project import root
from .stopping import passed_on

CHECKED = Path("build/checked")  # every other stage depends on it
ROWS = {"run": "rows", "run_dense": "dense_rows"}
DATA = {"data": "datasets", "data_dense": "dense_datasets"}
QUEUED = "GMMVIT_JOBS"  # set by gmmvit.paper.rows_queue, which counts the rows itself
WRAPPER = "GMMVIT_REPRO"  # the process of gmmvit.paper.repro above, which dvc makes deaf to Ctrl-C


def main() -> int:
    """Runs the stage that DVC names; what is wrong is one sentence."""
    stage = os.environ["DVC_STAGE"].rpartition("dvc.yaml:")[2]
    try:
        os.chdir(root())
        return run(stage, read("params.yaml"))
    except (ValueError, OSError) as error:
        print(f"{stage}: {error}", file=sys.stderr)
        return 1


def run(stage: str, params: Params) -> int:
    """The exit code of a stage."""
    kind, _, name = stage.partition("@")
    known = {**dict.fromkeys(ROWS, params.rows), **{key: params.rest.get(place) or () for key, place in DATA.items()}}
    known["notebook"] = [f"{params.profile}-{path.stem}" for path in Path("build/notebooks").glob("*.ipynb")]
    if kind != "check" and name not in known.get(kind, (params.profile,)):
        raise ValueError(f"{name} is not in params.yaml: expected a stage of `dvc stage list`")
    reports = Path("reports") / params.profile
    if kind == "check":
        CHECKED.parent.mkdir(exist_ok=True)
        CHECKED.write_text("no name in params.yaml means anything to a shell or leads out of the project\n")
        return 0
    if kind in DATA:
        from .. import fetch  # here, for the stages of rows do without

        fetch.record(name, Path(f"build/data/{name}.json"))
        return 0
    if kind == "analyse":
        from ..analysis.drawn import analysed

        (reports / "analysis").mkdir(parents=True, exist_ok=True)
        for line in analysed(reports / "runs" / row for row in params.rows):
            print(line, flush=True)
        return 0
    if kind == "report":
        from .report import write

        write(params, reports)
        return 0
    if kind in ROWS:
        if QUEUED not in os.environ:
            print(f"row {list(params.rows).index(name) + 1} of {len(params.rows)}: {name}", flush=True)
        return execute("run", reports / "runs" / name, {"profile": params.profile, "row": name}, log_output=True)
    notebook = name.removeprefix(f"{params.profile}-")
    for made in reports.glob(f"*/{notebook}-*"):
        made.unlink()
    for folder in ("figures", "tables"):
        (reports / folder).mkdir(parents=True, exist_ok=True)
    return execute(notebook, reports / "notebooks", {"profile": params.profile})


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
    """Tells `gmmvit.paper.repro`, where it is what runs us, to begin no other stage."""
    if os.environ.get(WRAPPER) == str(os.getppid()):
        os.kill(os.getppid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
