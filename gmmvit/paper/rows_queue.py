"""All rows of params.yaml, several at a time, each on a device of its own where there are several.

python -m gmmvit.paper.rows_queue 4
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping

from ..data.workers import cores
from .profiles import Params, read
from .project import root
from .stage import DATA, QUEUED
from .stopping import Stop, passed_on

REPRO = ("python", "-m", "gmmvit.paper.repro")  # by name, as dvc.yaml has it: the Python of the environment in force


def main(jobs: int) -> int:
    """0 when all rows have ended; asked to stop, it waits until the rows under way have saved their state."""
    try:
        params = read(root() / "params.yaml")
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    with passed_on(_say) as stop:
        before = subprocess.call([*REPRO, "clean", *data_stages(params)], cwd=root())
        if before or stop.signal:
            return stop.code or before
        rows = row_stages(params)
        failed = Queue(rows, jobs, stop).run()
    if stop.signal:
        return stop.code
    print(f"{len(rows) - len(failed)} of {len(rows)} rows have ended" + "".join(f"; {row} failed" for row in failed))
    return 1 if failed else 0


def row_stages(params: Params) -> list[str]:
    """The stages of dvc.yaml that train the rows."""
    return [f"{'run' if row.kind == 'classification' else 'run_dense'}@{row.name}" for row in params.rows.values()]


def data_stages(params: Params) -> list[str]:
    """The stages of dvc.yaml that fetch the rows' data sets."""
    return [f"{kind}@{name}" for kind, place in DATA.items() for name in params.rest.get(place) or ()]


def _say(stop: Stop) -> None:
    print("stopping: the rows under way save their state, and the same command goes on from there", flush=True)


class Queue:
    """Rows that wait, rows under way by the slot they have, and rows that failed."""

    def __init__(self, rows: list[str], jobs: int, stop: Stop):
        self.rows, self.jobs, self.stop = rows, jobs, stop
        self.devices, self.failed = devices(os.environ, gpus()), []
        self.running: dict[int, tuple[str, subprocess.Popen]] = {}

    def run(self) -> list[str]:
        """The rows that failed, when none is left."""
        waiting = list(enumerate(self.rows, 1))
        while self.running or waiting and not self.stop.signal:
            for slot in range(self.jobs):
                if waiting and slot not in self.running and not self.stop.signal:
                    number, row = waiting.pop(0)
                    print(f"row {number} of {len(self.rows)}: {row}", flush=True)
                    self.running[slot] = row, self.start(row, slot)
            time.sleep(0.1)
            for slot, (row, process) in list(self.running.items()):
                if process.poll() is not None:
                    del self.running[slot]
                    self.failed += [row] * bool(process.returncode)
        return self.failed

    def start(self, row: str, slot: int) -> subprocess.Popen:
        """A row's process, in a session of its own: Ctrl-C in the terminal is for us to pass on."""
        env = {"OMP_NUM_THREADS": str(max(1, cores() // self.jobs)), **os.environ, QUEUED: str(self.jobs)}
        if len(self.devices) > 1:
            env["CUDA_VISIBLE_DEVICES"] = self.devices[slot % len(self.devices)]
        return subprocess.Popen([*REPRO, "-s", row], cwd=root(), env=env, start_new_session=True)


def devices(env: Mapping[str, str], listed: str) -> list[str]:
    """What a row may have as its CUDA_VISIBLE_DEVICES: the user's own choice, else what `nvidia-smi -L` lists.

    Of a GPU that is divided (MIG) only its parts can be used, by their UUIDs.
    """
    if "CUDA_VISIBLE_DEVICES" in env:
        return [each.strip() for each in env["CUDA_VISIBLE_DEVICES"].split(",") if each.strip()]
    found: list[str] = []
    gpus = 0
    for line in listed.splitlines():
        if line.startswith("GPU "):
            found.append(str(gpus))
            gpus += 1
        elif "UUID: MIG-" in line:
            found = found[:-1] if found[-1] == str(gpus - 1) else found
            found.append(line.rpartition("UUID: ")[2].rstrip(")"))
    return found


def gpus() -> str:
    """What `nvidia-smi -L` prints; "" where there is none."""
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
