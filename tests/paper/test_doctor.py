"""`gmmvit doctor`: the machine, what is chosen on it, and what would stop a row."""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gmmvit.cli import main
from gmmvit.core import native
from gmmvit.core.masks import MASKS
from gmmvit.core.ways import TABLE
from gmmvit.paper import doctor, obstacles
from gmmvit.train import precision
from gmmvit.train.rows import Row

ROOT = Path(__file__).parents[2]
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
NAMES = ["device", "versions", "precision", "attention", "cores", "loading", "shared memory", "disk", "C compiler"]
GOOD = "profile: mine\nrows:\n  good: {dataset: cifar10-mini, model: vit, mask: gmm}\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with nothing in data/."""
    (tmp_path / "dvc.yaml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GMMVIT_DATA", raising=False)
    monkeypatch.setattr("gmmvit.train.devices._fastest", lambda: "cpu")
    return tmp_path


def told(capsys):
    """The lines of the machine by name, and what comes after them."""
    said = capsys.readouterr().out
    found = dict(re.findall(r"^([\w ]{14}) (.+)$", said.split("\nprofile ")[0].split("\nno row is known")[0], re.M))
    return {name.strip(): words for name, words in found.items()}, said


def test_where_nothing_stops_a_row_it_says_so(project, capsys):
    (project / "params.yaml").write_text(GOOD)
    assert main(["doctor"]) == 0
    found, said = told(capsys)
    assert list(found) == [*NAMES, "data sets"]
    assert found["device"].startswith("cpu: ") and f"torch {torch.__version__}" in found["versions"]
    chosen = precision.resolve("auto", CPU)
    assert found["precision"] == f"auto is {chosen.name} ({chosen.why})"
    way = {"gpsa": "explicit"} if native.library() else dict.fromkeys(MASKS, "explicit")  # gpsa acts after the softmax
    assert found["attention"] == "; ".join(f"{mask} {way.get(mask, 'native')}" for mask in MASKS)
    assert found["cores"].startswith(f"{len(os.sched_getaffinity(0))} for a process")
    assert found["data sets"] == "cifar10-mini there" and "MB free in /dev/shm" in found["shared memory"]
    assert said.endswith("profile mine: nothing stops its rows here\n")


def test_each_cause_is_told_once_with_its_rows(project, capsys):
    lines = [f"  far-{seed}: {{dataset: svhn, model: vit, mask: gmm, seed: {seed}}}\n" for seed in range(3)]
    lines.append("  wrong: {dataset: cifar10-mini, model: vit, set: {epoch: 1}}\n")
    lines.append("dense_rows:\n  boxes: {dataset: coco, model: swin_micro, recipe: coco-3x}\n")
    lines.append("  drawn: {dataset: coco-shapes, model: swin_micro, recipe: coco-3x}\n")
    (project / "params.yaml").write_text(GOOD + "".join(lines))
    assert main(["doctor"]) == 1
    found, said = told(capsys)
    assert found["data sets"] == "cifar10-mini there, svhn not there, coco not there, coco-shapes not there"
    causes = said.split("profile mine: what would stop a row\n")[1].splitlines()
    assert [cause.split(": ")[0].strip() for cause in causes] == [
        "3 of 7 rows (far-0, far-1, ...)",
        "1 of 7 rows (wrong)",
        "1 of 7 rows (boxes)",
    ]
    assert (
        "svhn is not in" in causes[0] and "unknown setting 'epoch'" in causes[1] and "`gmmvit data coco`" in causes[2]
    )


@pytest.mark.parametrize(
    "content, sentence",
    [(None, "params.yaml is not there"), ("profile: {", "cannot be read as YAML"), ("", "expected")],
)
def test_without_rows_the_machine_and_one_sentence_are_left(project, capsys, content, sentence):
    if content is not None:
        (project / "params.yaml").write_text(content)
    assert main(["doctor"]) == 1
    found, said = told(capsys)
    assert list(found) == NAMES
    (last,) = said.split("\nno row is known: ")[1].splitlines()
    assert sentence in last


def test_the_attention_is_that_of_the_table():
    least = TABLE["cuda"]["multiplicative"][0][0]
    flex = [str(keys) for keys in doctor.LENGTHS if keys >= least]
    product = [str(keys) for keys in doctor.LENGTHS if keys < least]
    gmm, elm, gab, *others = doctor.attention(CUDA)
    assert {"gpsa explicit", "rope fused"} <= set(others)
    assert gmm == f"gmm explicit ({', '.join(product)} keys), flex ({', '.join(flex)} keys)" and gab == "gab fused"
    assert elm == gmm.replace("gmm", "elm")


def test_a_gpu_is_named_with_what_it_is(monkeypatch):
    a100 = SimpleNamespace(name="NVIDIA A100-SXM4-80GB", total_memory=80 * 2**30, major=8, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: a100)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    words = doctor.device_words(torch.device("cuda", 0))
    assert words == ("cuda:0: NVIDIA A100-SXM4-80GB, 80 GB, compute capability 8.0 (1 of 2, CUDA_VISIBLE_DEVICES=3,5)")


def test_on_a_gpu_little_shared_memory_and_a_missing_compiler_stop_a_row(monkeypatch):
    monkeypatch.setattr(obstacles, "check", lambda row: row)
    monkeypatch.setattr(obstacles, "shared_memory_free", lambda: 64 << 20)
    monkeypatch.setattr("gmmvit.data.workers.cores", lambda: 17)
    monkeypatch.setattr(obstacles, "compiler", lambda: "/usr/bin/cc")
    row = Row("imagenet", "deit_small_patch16_224", "gmm", "deit-transmix")
    (cause,) = obstacles.causes(row, CUDA)
    assert "/dev/shm: expected" in cause and "got 64 MB" in cause and "--shm-size" in cause
    assert obstacles.causes(row, CPU) == []  # where the process itself loads
    monkeypatch.setattr(obstacles, "compiler", lambda: None)
    assert "expected a C compiler" in obstacles.causes(row, CUDA)[1]
    compiled = Row("cifar10", "vit", set={"compile": True})
    assert ["C compiler" in cause for cause in obstacles.causes(compiled, CPU)] == [True]


def test_a_full_disk_stops_all_rows(monkeypatch):
    monkeypatch.setattr(obstacles.shutil, "disk_usage", lambda place: SimpleNamespace(free=2**30))
    (found,) = obstacles.obstacles({"a": Row("cifar10-mini", "vit", name="a")}, CPU)
    assert found == "all rows: expected 2 GB of free disk for checkpoints, got 1.0 GB"


@pytest.mark.slow
def test_it_takes_less_than_ten_seconds():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "gmmvit_command", "doctor"], cwd=ROOT, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime  # whatever else runs on the machine
    assert 0.5 < used < 10
