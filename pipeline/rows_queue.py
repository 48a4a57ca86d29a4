"""The rows of params.yaml that are not done, several at a time, each on a device of its own where there are several.

python pipeline/rows_queue.py 4       # without a number: as many as there are GPUs, without a GPU two
python pipeline/rows_queue.py 4 --all # and then the notebooks with tables and figures, as many at a time
python pipeline/rows_queue.py 4 --new # without the rows that this engine has a record of, wherever their weights are
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping

from names import DATA, ROOT, ROWS, names
from stage import QUEUED
from stopping import Stop, passed_on

NOT_BESIDE = {"run", "profile"}  # notebooks: that of a row, and one that times operators, which wants the machine alone
REPRO = ("python", "pipeline/repro.py")  # by name, as dvc.yaml has it: the Python of the environment in force


def main(jobs: int, notebooks: bool = False, new: bool = False) -> int:
    """0 when all rows have ended; asked to stop, it waits until the rows under way have saved their state."""
    try:
        known = names()
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if not stale():
        return 0
    stages = {kind: [f"{kind}@{name}" for name in known[kind]] for kind in (*DATA, *ROWS)}
    with passed_on(_say) as stop:
        data = [stage for kind in DATA for stage in stages[kind]]
        before = subprocess.call([*REPRO, "--keep-going", "clean", *data], cwd=ROOT)
        rows = [stage for kind in ROWS for stage in stages[kind]]
        if new:
            from gmmvit.paper.runs import recorded

            kept = recorded(known["profile"])
            rows = [stage for stage in rows if stage.partition("@")[2] not in kept]
        rows = [] if stop.signal else rows if new else stale("-s", *rows)
        failed = Queue("row", rows, jobs, stop).run()  # where a data set is not there, its rows fail at once
        if notebooks and not (stop.signal or failed or before):
            failed = _tables(known["profile"], jobs, stop)
    return stop.code or (1 if failed or before else 0)


def _tables(profile: str, jobs: int, stop: Stop) -> list[str]:
    """The notebooks with tables and figures that failed, when all have been run, after what they show was drawn."""
    if subprocess.call([*REPRO, "-s", f"analyse@{profile}"], cwd=ROOT):
        return [f"analyse@{profile}"]
    names = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb") if path.stem not in NOT_BESIDE)
    waiting = [] if stop.signal else stale("-s", *(f"notebook@{profile}-{name}" for name in names))
    return Queue("notebook", waiting, jobs, stop).run()


def stale(*words: str) -> list[str]:
    """The stages that `dvc repro` would run, of all or of some."""
    said = subprocess.run([*REPRO, "--dry", *words], cwd=ROOT, capture_output=True, text=True).stdout  # errors: later
    return re.findall(r"^Running stage '(.*)':$", said, re.MULTILINE)


def _say(stop: Stop) -> None:
    print("stopping: the rows under way save their state, and the same command goes on from there", flush=True)


class Queue:
    """Stages of one kind that wait, those under way by the slot they have, and those that failed."""

    def __init__(self, kind: str, stages: list[str], jobs: int, stop: Stop):
        self.kind, self.stages, self.stop, self.failed = kind, stages, stop, []
        self.devices = devices(os.environ, gpus())
        self.jobs = jobs or len(self.devices) or min(2, cores())
        self.running: dict[int, tuple[str, subprocess.Popen]] = {}

    def run(self) -> list[str]:
        """The stages that failed, when none is left."""
        waiting = list(enumerate(self.stages, 1))
        while self.running or waiting and not self.stop.signal:
            for slot in range(self.jobs):
                if waiting and slot not in self.running and not self.stop.signal:
                    number, stage = waiting.pop(0)
                    print(f"{self.kind} {number} of {len(self.stages)}: {stage}", flush=True)
                    self.running[slot] = stage, self.start(stage, slot)
            time.sleep(0.1)
            for slot, (stage, process) in list(self.running.items()):
                if process.poll() is not None:
                    del self.running[slot]
                    self.failed += [stage] * bool(process.returncode)
        if self.stages and not self.stop.signal:
            ended = f"{len(self.stages) - len(self.failed)} of {len(self.stages)} {self.kind}s have ended"
            print(ended + "".join(f"; {stage} failed" for stage in self.failed), flush=True)
        return self.failed

    def start(self, stage: str, slot: int) -> subprocess.Popen:
        """A stage's process, in a session of its own: Ctrl-C in the terminal is for us to pass on."""
        env = {"OMP_NUM_THREADS": str(max(1, cores() // self.jobs)), **os.environ, QUEUED: str(self.jobs)}
        if len(self.devices) > 1:
            env["CUDA_VISIBLE_DEVICES"] = self.devices[slot % len(self.devices)]
        return subprocess.Popen([*REPRO, "-s", stage], cwd=ROOT, env=env, start_new_session=True)


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    given = [word for word in sys.argv[1:] if not word.startswith("--")]
    sys.exit(main(int((given or [0])[0]), "--all" in sys.argv, "--new" in sys.argv))
