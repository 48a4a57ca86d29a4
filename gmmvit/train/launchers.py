"""What a launcher tells each process: torchrun's own variables, or the same made of those that SLURM's srun sets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

FIRST_PORT, PORTS = 12_000, 20_000  # below those that the system hands out


def told(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Torchrun's variables for a process that srun started among others; {} where torchrun did, or for one alone.

    They are those of srun's step: a batch script that is alone has the job's SLURM_NTASKS too.
    """
    size = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if "WORLD_SIZE" in environment or size == "1":
        return {}
    port = FIRST_PORT + (7 * int(environment["SLURM_JOB_ID"]) + int(environment["SLURM_STEP_ID"])) % PORTS
    made = {
        "MASTER_ADDR": first_host(environment["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": str(port),
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": size,
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": re.match(r"\d+", environment.get("SLURM_STEP_TASKS_PER_NODE", "1"))[0],
    }
    return {name: value for name, value in made.items() if name not in environment}


def first_host(nodes: str) -> str:
    """The first of SLURM's list of hosts: node003 of node[003-006,010],gpu1."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)[0]
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)


def size_asked_for() -> int:
    """How many processes a launcher started; 1 without one."""
    return int((os.environ | told()).get("WORLD_SIZE", 1))


@contextmanager
def as_torchrun() -> Iterator[None]:
    """Within, the environment is torchrun's, also under srun."""
    added = told()
    os.environ.update(added)
    try:
        yield
    finally:
        for key in added:
            del os.environ[key]
