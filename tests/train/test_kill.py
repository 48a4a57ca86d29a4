"""A run that is killed and started again ends like one that was left alone, to the last byte."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
import torch
from forks import Forked, command

from gmmvit.train import signals

pytestmark = pytest.mark.slow

SETTINGS = {"epochs": 3, "passes": 1, "batch": 100, "warmup_epochs": 1, "ema": 0.9, "mix_prob": 1.0}
RESULTS = ("metrics.json", "history.csv", "layers.csv", "masks.npz")


def words(out):
    row = {"dataset": "cifar10-mini", "model": "test_vit", "mask": "gmm", "recipe": "gmm", "seed": 1}
    options = [f"--set={key}={value}" for key, value in SETTINGS.items()]
    return [*(f"--{key}={value}" for key, value in row.items()), *options, f"--out={out}"]


def start(out, code=""):
    """A training process; `code` runs before the training in the same process."""
    return Forked(command, ["train", *words(out)], code)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    process = start(out)
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    return out


def assert_same(out, undisturbed):
    for name in RESULTS:
        assert (out / name).read_bytes() == (undisturbed / name).read_bytes(), name
    ours, theirs = (torch.load(folder / "weights.pt", weights_only=True)["model"] for folder in (out, undisturbed))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


SLOW = """
import os, time
from gmmvit.train import update
call = update.Update.__call__
def slowly(*arguments):
    time.sleep(float(os.environ.get("SLOWLY", "0.05")))
    return call(*arguments)
update.Update.__call__ = slowly
"""


def test_killed_at_random_moments(undisturbed, tmp_path):
    out, moments, lengths = tmp_path / "run", random.Random(0), []
    for _ in range(5):
        process = start(out, SLOW)
        try:
            process.wait(moments.uniform(0.5, 2.0))
        except subprocess.TimeoutExpired:
            process.kill()
            lengths.append(len(process.communicate()[0].splitlines()))
    process = start(out)
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    assert len(lengths) >= 2  # it was killed more than once before it could end
    assert_same(out, undisturbed)


KILL_INSIDE = """
import os, signal
from gmmvit.train import checkpoint
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
counts = {"write": 0}
%s
"""
MOMENTS = {
    "with half of the bytes written": """
save = checkpoint.torch.save
def half(content, file):
    counts["write"] += 1
    if counts["write"] == 2:
        import io
        whole = io.BytesIO(); save(content, whole)
        file.write(whole.getvalue()[:whole.tell() // 2]); file.flush(); die()
    save(content, file)
checkpoint.torch.save = half
""",
    "before the new file takes the old one's place": """
replace = os.replace
def last(a, b):
    if str(b).endswith("last.pt"):
        counts["write"] += 1
        if counts["write"] == 2: die()
    replace(a, b)
os.replace = last
""",
    "after the results, before the checkpoint is removed": """
from gmmvit.train import loop
loop.checkpoint.remove = die
""",
    "with the first results written": """
from gmmvit.train import record
record.learned.save = die
""",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_inside_writing(undisturbed, tmp_path, moment):
    process = start(tmp_path / "run", KILL_INSIDE % MOMENTS[moment])
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    process = start(tmp_path / "run")
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    assert ("already ended" if "removed" in moment else "resumed at epoch") in said
    assert_same(tmp_path / "run", undisturbed)


@pytest.mark.parametrize("number, code", ((signal.SIGINT, 130), (signal.SIGTERM, 143)))
def test_asked_to_stop_in_an_epoch_it_saves_and_goes_on_there(undisturbed, tmp_path, number, code):
    saved = tmp_path / ".checkpoints" / "run" / "last.pt"
    process = start(tmp_path / "run", SLOW)
    wait_for(saved.exists)  # the first epoch has ended
    time.sleep(0.2)
    process.send_signal(number)
    said, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    assert "the same command goes on from" in errors and "Traceback" not in errors
    place = torch.load(saved, weights_only=True)["place"]
    assert place["epoch"] >= 1 and place["step"] > 0
    process = start(tmp_path / "run")
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    assert f"resumed at epoch {place['epoch']}, step {place['step']}" in said
    assert_same(tmp_path / "run", undisturbed)


@pytest.fixture(scope="module")
def undisturbed_by_two(tmp_path_factory):
    out = tmp_path_factory.mktemp("two") / "run"
    done = subprocess.run(launched(out), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return out


def launched(out, *options):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "gmmvit", "train"]
    return [*launcher, *words(out), *options]


def test_two_processes_that_are_killed_go_on_together(undisturbed_by_two, tmp_path):
    call = launched(tmp_path / "run")
    saved = tmp_path / ".checkpoints" / "run" / "last.pt"
    process = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(saved.exists)
    workers = children(process.pid)
    assert len(workers) == 2
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    assert process.wait(60) != 0
    done = subprocess.run(call, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "resumed" in done.stdout
    assert_same(tmp_path / "run", undisturbed_by_two)


# ---- a queue's signal goes to every process of a job, those that load among them -------------------------------------


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


def children(process):
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def family(process):
    """A process and all that descend from it."""
    return [process, *(each for child in children(process) for each in family(child))]


def alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def in_a_notebook(out, tmp_path):
    """As dvc.yaml starts papermill, with a notebook that trains as run.ipynb does, slowly."""
    code = f"{SLOW}\nfrom gmmvit.cli import main\nassert main({['train', *words(out), '--workers=2']!r}) == 0"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)], metadata={"kernelspec": kernel})
    nbformat.write(notebook, tmp_path / "train.ipynb")
    papermill = f"papermill {tmp_path}/train.ipynb {tmp_path}/run.ipynb -k python3 --log-output --no-progress-bar"
    return ["sh", "-c", f"trap '' TERM; {papermill}"]


def alone(out, tmp_path):
    program = f"import sys\n{SLOW}\nfrom gmmvit.cli import main\nsys.exit(main(['train', *sys.argv[1:]]))"
    return [sys.executable, "-c", program, *words(out), "--workers=2"]


def by_two(out, tmp_path):
    return launched(out, "--workers=1")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks into /proc")
@pytest.mark.parametrize("number", (signal.SIGTERM, signal.SIGINT))
@pytest.mark.parametrize("way", (alone, in_a_notebook, by_two))
def test_a_signal_to_all_processes_of_a_job_loses_nothing(request, tmp_path, way, number):
    call, saved = way(tmp_path / "run", tmp_path), tmp_path / ".checkpoints" / "run" / "last.pt"
    process = subprocess.Popen(
        call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    wait_for(saved.exists)  # the first epoch has ended
    time.sleep(0.2)
    members = family(process.pid)
    assert sum("pt_data_worker" in Path(f"/proc/{each}/comm").read_text() for each in members) == 2
    before = torch.load(saved, weights_only=True)["place"]
    for group in {os.getpgid(each) for each in members}:
        os.killpg(group, number)
    said, _ = process.communicate(timeout=120)
    code = 128 + number if way is alone else 1  # of papermill and of torchrun, where the signal reaches their children
    both = way is in_a_notebook and number == signal.SIGINT  # reach papermill: it ends by that, or by its cell's end
    assert process.returncode in ((-number, code) if both else (code,)), said
    wait_for(lambda: not any(alive(each) for each in members), 30)
    place = torch.load(saved, weights_only=True)["place"]
    assert (place["epoch"], place["step"]) > (before["epoch"], before["step"]) and place["step"] > 0
    env = os.environ | {"SLOWLY": "0"}
    done = subprocess.run(call, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    assert_same(tmp_path / "run", request.getfixturevalue("undisturbed_by_two" if way is by_two else "undisturbed"))


def test_the_same_request_may_come_twice():
    with signals.remembered() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert stop.signal == signal.SIGTERM
        time.sleep(signals.SOON + 0.1)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
