"""Several processes of one run: how they find each other and their devices, and what they must agree on."""

import dataclasses
import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from gmmvit.cli import main
from gmmvit.train import checkpoint, devices, launchers, recipes, record, train
from gmmvit.train.pace import Pace
from gmmvit.train.processes import World
from gmmvit.train.update import Update

SETTINGS = {"epochs": 2, "passes": 1, "batch": 500, "warmup_epochs": 0, "mix_prob": 0.0}
ROW = {"dataset": "cifar10-mini", "model": "test_vit", "mask": "gmm", "recipe": "gmm", "seed": 1, "set": SETTINGS}


def words(out, *more):
    options = [f"--set={key}={value}" for key, value in SETTINGS.items()]
    named = [f"--{key}={ROW[key]}" for key in ("dataset", "model", "mask", "recipe", "seed")]
    return ["train", *named, *options, f"--out={out}", *more]


# ---- devices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, told",
    [
        ("foo", "unknown device 'foo': expected one of cpu, cuda, mps, xpu"),
        ("meta", "unknown device 'meta': expected one of cpu, cuda, mps, xpu"),
        ("cuda", "device cuda: torch finds none on this machine; expected one of cpu"),
        ("mps", "device mps: torch finds none on this machine; expected one of cpu"),
        ("cpu:3", "device cpu:3: expected a number below 1, for so many are here"),
    ],
)
def test_a_device_that_is_not_there_is_one_sentence(name, told, tmp_path, capsys, monkeypatch):
    for kind in ("cuda", "mps", "xpu"):
        monkeypatch.setitem(devices.COUNTS, kind, lambda: 0)
    assert main(words(tmp_path / "run", f"--device={name}")) == 1
    assert capsys.readouterr().err.splitlines()[0].startswith(f"gmmvit train: {told}")
    assert not list(tmp_path.iterdir())
    assert main(["bench", "masks", f"--device={name}"]) == 1
    assert told in capsys.readouterr().err


def test_each_process_of_a_machine_takes_a_gpu_of_its_own_and_the_only_one_where_it_is_shown_one(monkeypatch):
    monkeypatch.setitem(devices.COUNTS, "cuda", lambda: 4)
    assert [str(devices.find("cuda", local)) for local in range(4)] == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert str(devices.find("cuda:2", 1)) == "cuda:2"
    monkeypatch.setitem(devices.COUNTS, "cuda", lambda: 1)  # srun --gpus-per-task=1
    assert [str(devices.find("cuda", local)) for local in range(4)] == ["cuda:0"] * 4


# ---- launchers ------------------------------------------------------------------------------------------------------

SLURM = {
    "SLURM_JOB_ID": "51234",
    "SLURM_STEP_ID": "2",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "rack1node[003-006,010],gpu1",
}


@pytest.mark.parametrize(
    "nodes, first",
    [
        ("node7", "node7"),
        ("b,a", "b"),
        ("node[003-006,010],gpu1", "node003"),
        ("gpu-[12,15]", "gpu-12"),
        ("rack[1-2]node[04-09]-ib,x", "rack1node04-ib"),
    ],
)
def test_the_first_of_a_list_of_hosts(nodes, first):
    assert launchers.first_host(nodes) == first


def test_srun_s_processes_are_told_what_torchrun_would_tell_them():
    made = launchers.told(SLURM)
    port = made.pop("MASTER_PORT")
    assert made == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "rack1node003",
    }
    assert 1024 < int(port) < 32_768
    assert launchers.told(SLURM | {"SLURM_JOB_ID": "51235"})["MASTER_PORT"] != port
    assert "MASTER_PORT" not in launchers.told(SLURM | {"MASTER_PORT": "29500"})


def test_torchrun_s_own_variables_win_and_a_process_alone_stays_alone():
    assert launchers.told(SLURM | {"WORLD_SIZE": "1"}) == {}
    batch_script = {name: value for name, value in SLURM.items() if "STEP" not in name}
    assert launchers.told(batch_script) == {}
    assert launchers.told(SLURM | {"SLURM_STEP_NUM_TASKS": "1"}) == {}
    assert launchers.told({}) == {}


def free_port():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return str(one.getsockname()[1])


def srun(program, *arguments, processes=2, outs=None):
    """What srun does on one machine: (exit code, stdout, stderr) of each process."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", "RANK")} | SLURM
    environment |= {"SLURM_STEP_NUM_TASKS": str(processes), "SLURM_STEP_NODELIST": "localhost", "MASTER_PORT": port}
    started = []
    for rank in range(processes):
        own = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        call = [sys.executable, "-c", program, *arguments, *([outs[rank]] if outs else [])]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(call, env=environment | own, **pipes))
    said = [process.communicate(timeout=300) for process in started]
    return [(process.returncode, *each) for process, each in zip(started, said, strict=True)]


MEETING = """
import json, torch
from gmmvit.train.processes import Disagreement, joined
with joined("cpu") as world:
    world.agreed("all here")
    numbers = [torch.arange(4.0).view(2, 2).t() + world.rank, torch.tensor(world.rank), torch.ones(2).bfloat16()]
    world.take_the_first_ones(numbers)
    try:
        world.agreed(f"at step {world.rank}")
    except Disagreement as error:
        told = str(error)
    world.agreed("still here")
print(json.dumps([world.rank, world.size, numbers[0].tolist(), numbers[1].item(), told]))
"""


@pytest.mark.slow
def test_processes_of_srun_meet_share_and_disagree_without_a_hang():
    found = srun(MEETING)
    assert [code for code, *_ in found] == [0, 0], found
    lines = [json.loads(said.splitlines()[-1]) for _, said, _ in found]
    assert [line[:2] for line in lines] == [[0, 2], [1, 2]]
    assert all(line[2:4] == [[[0.0, 2.0], [1.0, 3.0]], 0] for line in lines)
    assert all("rank 0: at step 0; rank 1: at step 1; expected one folder" in line[4] for line in lines)


# ---- what they must agree on ----------------------------------------------------------------------------------------


TRAIN = "import sys\nfrom gmmvit.cli import main\nsys.exit(main(sys.argv[1:]))"


@pytest.mark.slow
def test_processes_that_see_different_checkpoints_are_refused(tmp_path):
    class Enough(Exception):
        pass

    def stop(history):
        raise Enough

    for epoch in (1, 2):
        with pytest.raises(Enough):
            train(ROW, tmp_path / "seen", say=print, on_epoch=lambda h, epoch=epoch: len(h) == epoch and stop(h))
    assert torch.load(checkpoint.folder_for(tmp_path / "seen") / "last.pt")["place"]["epoch"] == 1
    found = srun(TRAIN, *words(tmp_path)[:-1], outs=[f"--out={tmp_path / name}" for name in ("seen", "unseen")])
    for code, _, errors in found:
        assert code == 1 and "Traceback" not in errors
        assert "rank 0:" in errors and "at epoch 1, step 0, weights" in errors and "rank 1:" in errors
        assert "at its start; expected one folder that all of them read" in errors


@pytest.mark.slow
def test_processes_of_which_one_has_the_results_are_refused(tmp_path):
    metrics = train(ROW, tmp_path / "seen", say=print)
    outs = [f"--out={tmp_path / name}" for name in ("unseen", "seen")]
    found = srun(TRAIN, *words(tmp_path)[:-1], outs=outs)
    assert [code for code, *_ in found] == [1, 1] and all("has ended; expected" in errors for *_, errors in found)
    found = srun(TRAIN, *words(tmp_path / "both"))
    assert [code for code, *_ in found] == [0, 0], found
    together = json.loads((tmp_path / "both" / "metrics.json").read_text())
    assert together["train_loss"] == pytest.approx(metrics["train_loss"], abs=1e-3)
    assert json.loads((tmp_path / "both" / "timing.json").read_text())["processes"] == 2


class Noisy(nn.Module):
    """A model whose logits show what dropout left of the features."""

    def __init__(self):
        super().__init__()
        self.weight, self.drop = nn.Parameter(torch.ones(64)), nn.Dropout(0.5)

    def forward(self, images):
        return self.drop(self.weight.repeat(len(images), 1))


def dropped(rank, number):
    """What dropout made of ones in a step of this process."""
    seen = []

    def loss(model, images, labels, step):
        seen.append(model(images))
        return seen[-1].sum()

    recipe = dataclasses.replace(recipes.find("short"), drop_path=0.0)
    update = Update(Noisy(), recipe, loss, torch.zeros(1, 3, 8, 8), 10, torch.float32, 5, World(rank=rank))
    update.working.module.train()
    with torch.no_grad():
        update.model.weight.fill_(1.0)
    update([(np.arange(2), torch.zeros(2, 3, 8, 8), torch.zeros(2))], number)
    return seen[0].detach()


def test_dropout_belongs_to_step_and_process():
    assert torch.equal(dropped(1, 7), dropped(1, 7))
    assert not torch.equal(dropped(0, 7), dropped(1, 7)) and not torch.equal(dropped(1, 7), dropped(1, 8))
    first = dropped(0, 7)  # is what one process alone has
    torch.manual_seed(5 * 1_000_003 + 7)
    assert torch.equal(first, F.dropout(torch.ones(2, 64, requires_grad=True), 0.5))


def test_the_most_memory_is_that_of_all_starts_of_a_run(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 9)
    cuda = torch.device("cuda")
    assert record.peak_memory(cuda, {}) == {"peak_memory_bytes": 5, "reserved_memory_bytes": 9}
    before = {"peak_memory_bytes": 7, "reserved_memory_bytes": 8}
    assert record.peak_memory(cuda, before) == {"peak_memory_bytes": 7, "reserved_memory_bytes": 9}
    (here,) = record.peak_memory(torch.device("cpu"), {}).items()
    assert here[0] == "peak_memory_bytes" and here[1] > 1e8
    assert record.peak_memory(torch.device("cpu"), {"peak_memory_bytes": 10**15}) == {"peak_memory_bytes": 10**15}


# ---- when they look at the loss -------------------------------------------------------------------------------------


def looks(seconds_of_step, ranks=2, steps=4000, device="cuda"):
    """The steps at which each process looks, when a step takes so long on its own clock."""
    paces = [Pace(World(rank, ranks, torch.device(device))) for rank in range(ranks)]
    seen, last = [[] for _ in paces], [0] * ranks
    for step in range(1, steps):
        flag = sum(pace.flag for pace in paces) / ranks
        for rank, pace in enumerate(paces):
            if pace.due():
                pace.looked(flag, step - last[rank], (step - last[rank]) * seconds_of_step[rank])
                seen[rank].append(step)
                last[rank] = step
    return seen


def test_all_processes_look_at_the_same_steps_about_once_a_second_of_the_first_ones_clock():
    first, second = looks([0.02, 0.7])
    assert first == second
    gaps = np.diff(first)
    assert gaps[0] <= 2 and gaps.max() <= 50 and set(gaps[-20:]) == {50}
    assert set(np.diff(looks([3.0], ranks=1, steps=20)[0])) == {1}


def test_on_a_cpu_every_step_is_looked_at():
    assert looks([1e-5], ranks=1, steps=50, device="cpu")[0] == list(range(1, 50))
