"""A process that dies before each of its file operations in turn, and the same command again: same bytes, no litter.

Runs, records that are replaced, and sets of every kind; on images so few that a run takes a tenth of a second.
"""

import gc
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gmmvit import data, fetch
from gmmvit.cli import main
from gmmvit.data import arrays, sets
from gmmvit.data.places import write_json
from gmmvit.data.sets import POOLED
from gmmvit.fetch import annotated, shapes
from gmmvit.train import train
from gmmvit.train.rows import Row

pytestmark = [pytest.mark.slow, pytest.mark.forks, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]

CHANGING = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
MOST = 400  # operations: a sweep that does not come to an end by then is wrong


def forked(act, folder, dies_at=0):
    """The exit code of `act` in a process of its own: -9 where it was killed before its n-th file operation."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chdir(folder)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2) if dies_at else None
            torch.set_num_threads(1)  # a pool of threads does not survive a fork
            if dies_at:
                die_at(dies_at, str(folder))
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at(number, folder):
    """From now on this process is killed before operation `number` that changes something below a folder."""
    count, fsync = 0, os.fsync

    def operation():
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event, arguments):
        opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
        if (opened or event in CHANGING) and isinstance(arguments[0], (str, bytes, os.PathLike)):
            path = os.path.abspath(os.fsdecode(arguments[0]))
            if path.startswith(folder):
                operation()

    def synced(handle):
        operation()  # with the bytes written, before the file has its name
        fsync(handle)

    os.fsync = synced
    sys.addaudithook(hook)


def litter(folder):
    """What a command should have cleared away."""
    names = [path for path in folder.rglob("*") if path.name.endswith((".partial", ".lock"))]
    return [str(path) for path in [*names, *folder.rglob(".checkpoints/*")]]


def sweep(tmp_path, prepare, act, result, least):
    """Kills `act` before each of its operations, of which there are more than `least`; see _sweep."""
    assert forked(lambda: _sweep(tmp_path, prepare, act, result, least), tmp_path) == 0


def _sweep(tmp_path, prepare, act, result, least):
    """Repeats what was killed and compares `result(folder)`, in a process that has acted once.

    So those forked off it have loaded what an act loads; frozen, it is not looked through for garbage, which copies it.
    """
    whole = tmp_path / "whole"
    prepare(whole)
    os.chdir(whole)
    act()
    gc.freeze()
    expected, bad = result(whole), {}
    for number in range(1, MOST):
        folder = tmp_path / str(number)
        prepare(folder)
        code = forked(act, folder, number)
        again = forked(act, folder)
        if again or litter(folder):
            bad[number] = f"again: {again}, {litter(folder)}"
        elif result(folder) != expected:
            found = result(folder)
            bad[number] = [name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)]
        shutil.rmtree(folder)
        if code != -signal.SIGKILL:
            assert code == 0 and number - 1 > least, (code, number - 1)
            assert not bad, bad
            return
    pytest.fail(f"no end after {MOST} operations")


def bytes_of(folder, leave=()):
    files = (path for path in folder.rglob("*") if path.is_file() and path.name[0] != "." and path.name not in leave)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def few(monkeypatch):
    """A data set of twelve images, laid out by the function that it gives."""
    monkeypatch.setitem(
        data.SETS, "cifar100", sets.find("cifar100")._replace(classes=3, counts={"train": 12, "test": 6})
    )

    def lay_out(place):
        folder, random = place / "data" / "cifar100", np.random.default_rng(0)
        folder.mkdir(parents=True)
        for split, count in (("train", 12), ("test", 6)):
            arrays.save(folder, split, random.integers(0, 256, (count, 32, 32, 3)), np.arange(count) % 3)
        arrays.seal(sets.find("cifar100"), folder, "here")

    return lay_out


SET = {"epochs": 2, "passes": 1, "batch": 6, "warmup_epochs": 0, "ema": 0.9}
ROW = {"dataset": "cifar100", "model": "test_vit", "mask": "gmm", "seed": 1, "set": SET}
RESULTS = ("metrics.json", "scores.json", "history.csv", "layers.csv", "masks.npz", "weights.pt")


def trained():
    os.environ["GMMVIT_DATA"] = str(Path.cwd() / "data")
    train(ROW, "runs/row", say=lambda line: None)


def results(folder):
    found = bytes_of(folder / "runs", leave=("timing.json",))
    assert {Path(name).name for name in found} == set(RESULTS)
    return found


def test_a_run(tmp_path, few):
    sweep(tmp_path, few, trained, results, least=30)


def test_a_record_that_is_replaced(tmp_path, few):
    """The record of a fresh clone, whose weights are not in the repository, is never mixed with the new one."""

    def prepare(place):
        few(place)
        folder = place / "runs" / "row"
        folder.mkdir(parents=True)
        write_json(folder / "metrics.json", {"row": vars(Row(**ROW)), "top1": 99.0})
        write_json(folder / "timing.json", {})
        (folder / "history.csv").write_text("epoch,top1\n1,99.0\n")
        (folder / "masks.npz").write_bytes(b"old")

    sweep(tmp_path, prepare, trained, results, least=30)


def pictures(place):
    """Three breeds of five images as Oxford's archives leave them."""
    home, random = place / "data" / "downloads" / "oxford-iiit-pet", np.random.default_rng(0)
    (home / "images").mkdir(parents=True)
    (home / "annotations").mkdir()
    stems = [f"{breed}_{number}" for breed in ("a", "b", "c") for number in range(5)]
    for stem in stems:
        Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).save(home / "images" / f"{stem}.jpg")
    (home / "annotations" / "trainval.txt").write_text("".join(f"{stem} 1 1 1\n" for stem in stems))
    (home / "annotations" / "test.txt").write_text("")


def obtained(name, obtain):
    def act():
        os.environ["GMMVIT_DATA"] = str(Path.cwd() / "data")
        obtain(name)
        assert main(["data", name, "--record", "record.json"]) == 0

    return act


def test_a_set_of_files(tmp_path, monkeypatch):
    monkeypatch.setitem(data.SETS, "pets", data.SETS["pets"]._replace(classes=3, counts={POOLED: 15}))
    sweep(tmp_path, pictures, obtained("pets", fetch.obtain), bytes_of, least=10)


def test_a_set_of_arrays(tmp_path, monkeypatch):
    small = sets.find("tiny-imagenet")._replace(classes=2, counts={"train": 4, "test": 2})
    monkeypatch.setitem(data.SETS, "tiny-imagenet", small)

    def prepare(place):
        home, random = place / "data" / "downloads" / "tiny-imagenet-200", np.random.default_rng(0)
        for part in ("train/n1/images", "train/n2/images", "val/images"):
            (home / part).mkdir(parents=True)
            for number in range(2):
                picture = Image.fromarray(random.integers(0, 256, (64, 64, 3), np.uint8))
                picture.save(home / part / f"{number}.JPEG", "JPEG")
        (home / "val" / "val_annotations.txt").write_text("0.JPEG\tn1\n1.JPEG\tn2\n")

    sweep(tmp_path, prepare, obtained("tiny-imagenet", fetch.obtain), bytes_of, least=10)


@pytest.mark.parametrize("name", ["coco-shapes", "ade20k-shapes"])
def test_drawn_shapes(tmp_path, monkeypatch, name):
    pytest.importorskip("pycocotools")
    draw, few = {"coco-shapes": shapes.write_coco, "ade20k-shapes": shapes.write_ade}[name], {"train": 2, "test": 1}
    monkeypatch.setitem(annotated.DRAWN, name, (lambda home: draw(home, few), annotated.DRAWN[name][1]))
    say = {"say": lambda line: None}
    obtain = obtained(name, lambda name: annotated.obtain(name, **say))
    sweep(tmp_path, Path.mkdir, obtain, bytes_of, least=20)
