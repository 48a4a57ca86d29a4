"""The committed record of cpu: trained by one engine, which is that of the commit it names; weights that load."""

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest
import torch

import gmmvit
from gmmvit import data
from gmmvit.data.loader import Stream
from gmmvit.paper import project, runs
from gmmvit.train.engine import rooms

ROOT = Path(__file__).parents[2]
RECORD = {run["row"]["name"]: run for run in runs.its_own(project.rows("cpu").rows, runs.runs(ROOT / "reports/cpu"))}
SHARED = sorted(path.parent for path in (ROOT / "reports/cpu/runs").glob("*/model.safetensors"))
IMAGES = 500


def test_all_rows_were_trained_by_one_engine():
    engines = {json.dumps(run.get("engine")) for run in RECORD.values()}
    assert len(engines) == 1, engines


def test_the_engine_is_that_of_the_commit_which_the_record_names():
    engine = next(iter(RECORD.values()))["engine"]
    folders = [f"gmmvit/{room}" for room in rooms("classification")]
    command = ["git", "archive", "--format=tar", engine["commit"], "--", *folders]
    found = subprocess.run(command, cwd=ROOT, capture_output=True)
    if found.returncode:
        pytest.skip(f"commit {engine['commit']} is not in this clone")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as tar:
        names = sorted(name for name in tar.getnames() if name.endswith((".py", ".toml", ".c")))
        code = hashlib.sha256(b"".join(tar.extractfile(name).read() for name in names))
    assert code.hexdigest().startswith(engine["modules"])


def test_shared_weights_are_those_of_rows_that_were_run_and_small():
    wanted = project.rows("cpu").rest["shared_weights"]
    assert {run.name for run in SHARED} == {name for name in wanted if name in RECORD}
    sizes = [(run / "model.safetensors").stat().st_size for run in SHARED]
    assert all(size <= 1e6 for size in sizes) and sum(sizes) <= 30e6


@pytest.mark.slow
@pytest.mark.parametrize("run", SHARED, ids=lambda run: run.name)
def test_shared_weights_are_as_accurate_as_the_record(run):
    """On 500 images of the embedded sample, whose accuracy has a standard error of two points."""
    test = data.load("cifar10-mini")["test"]
    keys = torch.arange(IMAGES).numpy()
    images, labels = Stream(test, data.augmentation("short", data.find("cifar10-mini"), train=False))[keys]
    model = gmmvit.load(run)
    with torch.inference_mode():
        top1 = 100 * (model(images).argmax(1) == labels).double().mean().item()
    assert abs(top1 - RECORD[run.name]["top1"]) < 3 * 2.2
