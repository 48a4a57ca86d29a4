"""The training engine, on a model of timm that is small enough to train in a second."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from timm.layers import DropPath

import gmmvit
from gmmvit import data
from gmmvit.train import Diverged, OtherRun, checkpoint, launch, recipes, train
from gmmvit.train.checks import BadRow
from gmmvit.train.classify import Classification
from gmmvit.train.depth import Depth
from gmmvit.train.gradients import Gradients
from gmmvit.train.precision import Working, resolve
from gmmvit.train.processes import World
from gmmvit.train.rows import Row
from gmmvit.train.shares import share
from gmmvit.train.update import Update

MIXED = {"epochs": 2, "passes": 1, "batch": 100, "warmup_epochs": 1}
ROW = {"dataset": "cifar10-mini", "model": "test_vit", "mask": "gmm", "recipe": "gmm", "seed": 3, "set": MIXED}
FILES = ("metrics.json", "scores.json", "history.csv", "layers.csv", "timing.json", "masks.npz", "weights.pt")


def quiet(line):
    pass


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run, its metrics, and what it said."""
    out, said = tmp_path_factory.mktemp("runs") / "run", []
    return out, train(ROW, out, say=said.append), said


def test_a_run_leaves_its_record(finished):
    out, metrics, said = finished
    assert all((out / name).exists() for name in FILES) and len(list(out.iterdir())) == len(FILES)
    assert json.loads((out / "metrics.json").read_text()) == metrics
    assert json.loads((out / "scores.json").read_text()) == {"top1": metrics["top1"]}  # what DVC shows
    assert metrics["row"] == {**ROW, "name": Row(**ROW).name}
    lines = (out / "history.csv").read_text().splitlines()
    assert lines[0] == "epoch,lr,train_loss,test_loss,top1" and [line[:2] for line in lines[1:]] == ["1,", "2,"]
    assert metrics["top1"] == float(lines[-1].split(",")[-1]) and metrics["best_top1"] >= metrics["top1"]
    assert metrics["images"] == 4000 and metrics["epochs"] == 2
    times = json.loads((out / "timing.json").read_text())
    assert times["images_per_second"] > 10 and times["peak_memory_bytes"] > 1e8 and times["threads"] >= 1
    assert (out / "masks.npz").stat().st_size < 300_000
    assert len(said) == 7 and "float32" in said[0] and "epoch 2" in said[3], said


@pytest.mark.slow
def test_threads_are_those_of_the_row_and_not_of_the_environment(tmp_path):
    """The number of threads decides the last digits: it is asked for, recorded, and given back."""
    before, said = torch.get_num_threads(), []
    try:
        for outside, asked in ((2, 1), (1, 1), (2, None)):
            torch.set_num_threads(outside)
            metrics = train(ROW, tmp_path / f"{outside}-{asked}", threads=asked, say=quiet)
            assert metrics["threads"] == (asked or outside) and torch.get_num_threads() == outside
        one, two = (torch.load(tmp_path / f"{n}-1" / "weights.pt", weights_only=True)["model"] for n in (1, 2))
        assert all(torch.equal(one[name], two[name]) for name in one)
        with pytest.raises(ZeroDivisionError):
            train(ROW, tmp_path / "run", threads=1, say=quiet, on_epoch=lambda history: 1 / (2 - len(history)))
        train(ROW, tmp_path / "run", threads=2, say=said.append)
    finally:
        torch.set_num_threads(before)
    assert any("begun with 1 thread(s), goes on with 2" in line for line in said), said


def test_the_weights_load_into_the_model_and_give_the_accuracy_that_was_reported(finished):
    out, metrics, _ = finished
    content = torch.load(out / "weights.pt", weights_only=True)
    model = gmmvit_model()
    model.load_state_dict(content["model"])
    source = data.load("cifar10-mini")["test"]
    images = torch.from_numpy(source.images.copy()).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(values)[:, None, None] for values in data.find("cifar10-mini").statistics)
    with torch.no_grad():
        scores = model.eval()((images - mean) / std)
        assert torch.equal(gmmvit.load(out)((images - mean) / std), scores)  # which knows no row and no data set
    assert 100 * (scores.argmax(1).numpy() == source.labels).mean() == pytest.approx(metrics["top1"], abs=0.11)


def gmmvit_model():
    import timm

    model = timm.create_model("test_vit", img_size=32, num_classes=10, drop_path_rate=0.1)
    gmmvit.attach(model, "gmm", img_size=32)
    return model


def test_a_finished_run_is_not_trained_again(finished):
    out, metrics, _ = finished
    before, said = (out / "weights.pt").stat().st_mtime_ns, []
    assert train(ROW, out, say=said.append) == metrics
    assert (out / "weights.pt").stat().st_mtime_ns == before and "already ended" in said[0]


def test_a_record_without_scores_gets_them(finished, tmp_path):
    out, metrics, _ = finished
    shutil.copytree(out, tmp_path / "older")
    (tmp_path / "older" / "scores.json").unlink()
    assert train(ROW, tmp_path / "older", say=quiet) == metrics
    assert (tmp_path / "older" / "scores.json").read_bytes() == (out / "scores.json").read_bytes()


@pytest.mark.slow
def test_the_seed_decides_every_byte(finished, tmp_path):
    out, _, _ = finished
    train(ROW, tmp_path / "again", say=quiet)
    for name in ("metrics.json", "history.csv", "masks.npz"):
        assert (out / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name
    other = train({**ROW, "seed": 4}, tmp_path / "other", say=quiet)
    assert other["train_loss"] != json.loads((out / "metrics.json").read_text())["train_loss"]


def losses(out):
    return np.loadtxt(out / "history.csv", delimiter=",", skiprows=1)[:, 2:4]


@pytest.mark.slow
def test_two_processes_follow_the_curve_of_one(finished, tmp_path):
    metrics = launch(ROW, 2, tmp_path / "two", say=quiet)
    assert metrics["images"] == 4000
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(finished[0]), atol=1e-3)
    assert json.loads((tmp_path / "two" / "timing.json").read_text())["processes"] == 2


@pytest.mark.slow
def test_an_accumulated_batch_follows_the_curve_of_a_whole_one(finished, tmp_path):
    train({**ROW, "set": {**MIXED, "accumulate": 5}}, tmp_path / "parts", say=quiet)
    np.testing.assert_allclose(losses(tmp_path / "parts"), losses(finished[0]), atol=1e-3)


@pytest.mark.parametrize("shares", (1, 2, 4))
def test_shares_are_a_partition_that_keeps_pairs_together(shares):
    keys = np.random.default_rng(0).permutation(1000)[:16]
    parts = [share(keys, number, shares) for number in range(shares)]
    assert sorted(np.concatenate(parts)) == sorted(keys)
    partner = dict(zip(keys, keys[::-1], strict=True))
    for part in parts:
        assert [partner[key] for key in part] == list(part[::-1])


def test_mixing_belongs_to_the_step_and_leaves_the_global_stream_alone():
    task = Classification(Row(**ROW), World())
    images, labels = torch.rand(8, 3, 32, 32), torch.arange(8)
    seen = []

    def model(x):
        seen.append(x.clone())
        return torch.zeros(len(x), 10)

    np.random.seed(0)
    expected = np.random.rand()
    np.random.seed(0)
    for step in (1, 1, *range(2, 12)):
        task.loss(model, images.clone(), labels, step)
    assert np.random.rand() == expected
    assert torch.equal(seen[0], seen[1])
    assert len({each[0].sum().item() for each in seen}) > 3  # half of the batches are mixed


# ---- stochastic depth, precision, averages --------------------------------------------------------------------------


def small(mask=None, drop_path=0.3):
    torch.manual_seed(0)
    return gmmvit.create_model("vit_d6", mask=mask, drop_path=drop_path)


def test_dropped_branches_depend_on_the_sample_and_not_on_its_batch():
    model, image = small(), torch.zeros(1, 3, 32, 32)
    depth = Depth(model, image, seed=5)
    model.train()
    images, keys = torch.randn(6, 3, 32, 32), np.arange(100, 106)
    depth.draw(keys, image.device, torch.float32)
    whole = model(images)
    assert not torch.allclose(whole, model.eval()(images))
    model.train()
    for part in ([0, 1, 2], [5, 3]):
        depth.draw(keys[part], image.device, torch.float32)
        torch.testing.assert_close(model(images[part]), whole[part])


def test_branches_are_dropped_at_their_rate_and_keep_their_mean():
    model = small(drop_path=0.3)
    depth = Depth(model, torch.zeros(1, 3, 32, 32), seed=5)
    depth.draw(np.arange(4000), torch.device("cpu"), torch.float32)
    paths = [m for m in model.modules() if isinstance(m, DropPath)]
    assert depth.factors.shape == (len(paths), 4000) == (12, 4000)
    assert torch.allclose(depth.factors.mean(1), torch.ones(12), atol=0.05)
    torch.testing.assert_close(depth.factors.unique(), torch.tensor([0.0, 1 / 0.7]))
    assert depth.factors.corrcoef().fill_diagonal_(0).abs().max() < 0.08  # layers are independent


@pytest.mark.parametrize("name", ("cait", "vit_d6"))  # CaiT's blocks call their DropPath twice
def test_gradient_checkpointing_changes_no_gradient(name):
    images, labels, gradients = torch.randn(4, 3, 32, 32), torch.arange(4), []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = gmmvit.create_model(name, mask="gmm", drop_path=0.3)
        model.set_grad_checkpointing(checkpointing)
        depth = Depth(model, images[:1], seed=1)
        model.train()
        for _ in range(2):
            depth.draw(np.arange(4), images.device, torch.float32)
            model.zero_grad()
            F.cross_entropy(model(images), labels).backward()
        gradients.append([p.grad for p in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        assert (plain is None) == (recomputed is None)
        if plain is not None:
            torch.testing.assert_close(plain, recomputed)


@pytest.mark.parametrize("name, mask", (("vit_d6", "gmm"), ("swin", "elm"), ("t2t", "gab")))
def test_a_bfloat16_step_has_the_gradients_of_autocast(name, mask):
    torch.manual_seed(0)
    model = gmmvit.create_model(name, mask=mask, drop_path=0.0).train()
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
    working = Working(model, torch.bfloat16, torch.device("cpu"))
    with working.context():
        F.cross_entropy(working.module(images).float(), labels).backward()
    Gradients(working.pairs, World()).collect()
    ours = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    assert all(gradient.dtype == torch.float32 for gradient in ours.values())
    model.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    theirs = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert ours.keys() == theirs.keys()
    both = [torch.cat([g.flatten() for g in each.values()]) for each in (ours, theirs)]
    assert F.cosine_similarity(*both, dim=0) > 0.99
    assert both[0].norm() / both[1].norm() == pytest.approx(1, abs=0.05)


def test_the_bfloat16_copy_follows_every_update_and_shares_masks_and_norms():
    model = small("gmm")
    update = Update(model, recipes.find("short"), cross_entropy, torch.zeros(1, 3, 32, 32), 10, torch.bfloat16)
    update.working.module.train()
    before = model.head.weight.clone()
    for number in range(1, 3):
        update([(np.arange(8), torch.randn(8, 3, 32, 32), torch.arange(8))], number)
    low = dict(update.working.module.named_parameters())
    for name, full in model.named_parameters():
        if name.endswith((".sigma", ".alpha")) or "norm" in name:
            assert low[name] is full
        else:
            assert low[name].dtype == torch.bfloat16 and torch.equal(low[name], full.to(torch.bfloat16))
    assert not torch.equal(before, model.head.weight)


def cross_entropy(model, images, labels, step):
    return F.cross_entropy(model(images).float(), labels)


def test_the_average_follows_the_weights():
    recipe = recipes.Recipe(epochs=1, augmentation="short", lr=0.1, final_lr=0.1, weight_decay=0, ema=0.75)
    model = small(drop_path=0.0)
    update = Update(model, recipe, cross_entropy, torch.zeros(1, 3, 32, 32), 10, torch.float32)
    expected = model.head.weight.detach().clone()
    for number in range(3):
        update([(np.arange(8), torch.randn(8, 3, 32, 32), torch.arange(8))], number)
        expected = 0.75 * expected + 0.25 * model.head.weight.detach()
    torch.testing.assert_close(update.result.head.weight.detach(), expected)
    assert update.tested is update.result


def test_clipping_bounds_the_gradient():
    recipe = recipes.Recipe(
        epochs=1, augmentation="short", optimizer="sgd", momentum=0.0, lr=1.0, final_lr=1.0, weight_decay=0, clip=0.01
    )
    model = small(drop_path=0.0)
    before = [p.detach().clone() for p in model.parameters()]
    update = Update(model, recipe, cross_entropy, torch.zeros(1, 3, 32, 32), 10, torch.float32)
    update([(np.arange(8), torch.randn(8, 3, 32, 32), torch.arange(8))], 0)
    moved = torch.stack([(p - b).norm() for p, b in zip(model.parameters(), before, strict=True)]).norm()
    assert moved.item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.slow
def test_a_compiled_run_has_the_losses_of_a_plain_one(finished, tmp_path):
    train({**ROW, "set": {**MIXED, "compile": True}}, tmp_path / "compiled", say=quiet)
    np.testing.assert_allclose(losses(tmp_path / "compiled"), losses(finished[0]), atol=2e-3)


def test_auto_precision_says_why():
    found = resolve("auto", torch.device("cpu"))
    assert found.dtype == (torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32)
    assert "bfloat16" in found.why or "has it" in found.why
    assert resolve("float32", torch.device("cpu")).dtype == torch.float32


# ---- when something goes wrong --------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step(tmp_path):
    row = {**ROW, "set": {**MIXED, "lr": 1e30, "warmup_epochs": 0, "final_lr": 1e29}}
    with pytest.raises(Diverged, match=r"loss is (nan|inf) in epoch 1, step \d+; no checkpoint was written"):
        train(row, tmp_path / "run", say=quiet)
    assert not (tmp_path / "run").exists()


def test_a_run_that_diverges_later_names_the_last_good_checkpoint(tmp_path, monkeypatch):
    original = Classification.loss

    def loss(self, model, images, labels, step):
        value = original(self, model, images, labels, step)
        return value * float("nan") if step == 25 else value

    monkeypatch.setattr(Classification, "loss", loss)
    with pytest.raises(Diverged, match=r"nan in epoch 2, step 6; the last good checkpoint is .*last.pt"):
        train(ROW, tmp_path / "run", say=quiet)
    saved = torch.load(checkpoint.folder_for(tmp_path / "run") / "last.pt", weights_only=True)
    assert saved["place"]["epoch"] == 1
    assert all(value.isfinite().all() for value in saved["state"]["model"].values() if value.is_floating_point())


def test_a_checkpoint_of_another_row_is_refused_by_name(tmp_path):
    class Enough(Exception):
        pass

    def stop(history):
        raise Enough

    with pytest.raises(Enough):
        train({**ROW, "name": "first"}, tmp_path / "run", say=quiet, on_epoch=lambda h: len(h) == 2 and stop(h))
    with pytest.raises(
        OtherRun, match="belongs to the row 'first', which has name 'first' instead of 'second', seed 3"
    ):
        train({**ROW, "name": "second", "seed": 5}, tmp_path / "run", say=quiet)


def test_a_bad_row_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(BadRow, match="3 problems"):
        train({**ROW, "mask": "gm", "model": "vitt", "set": {**MIXED, "batch": 101}}, tmp_path / "run", say=quiet)
    assert not list(tmp_path.iterdir())


LIMITED = """
import resource, signal, sys
from gmmvit.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from gmmvit.train import checkpoint
write, count = checkpoint.write, 0
def limited(path, content):
    global count
    count += 1
    if count == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    write(path, content)
checkpoint.write = limited
sys.exit(main(sys.argv[1:]))
"""


def words(out, **settings):
    options = [f"--set={key}={value}" for key, value in {**MIXED, **settings}.items()]
    named = [f"--{key}={ROW[key]}" for key in ("dataset", "model", "mask", "recipe", "seed")]
    return ["train", *named, *options, f"--out={out}"]


@pytest.mark.slow
def test_a_full_disk_is_a_sentence_and_the_previous_checkpoint_stays(tmp_path):
    pytest.importorskip("resource")
    call = [sys.executable, "-c", LIMITED, *words(tmp_path / "run")]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    saved = checkpoint.folder_for(tmp_path / "run") / "last.pt"
    assert f"{saved} could not be written" in done.stderr and "the previous one is whole" in done.stderr
    assert "File too large" in done.stderr
    assert torch.load(saved, weights_only=True)["place"]["epoch"] == 1
    assert [path.name for path in saved.parent.iterdir()] == ["last.pt"]


# ---- the command ----------------------------------------------------------------------------------------------------


def gmmvit_command(*arguments, **options):
    call = [sys.executable, "-m", "gmmvit", "train", *arguments]
    return subprocess.run(call, capture_output=True, text=True, timeout=300, **options)


@pytest.mark.slow
def test_the_command_trains_a_row_of_params_into_the_profiles_folder(tmp_path, finished):
    row = {**ROW, "set": MIXED}
    (tmp_path / "params.yaml").write_text(json.dumps({"profile": "tiny", "rows": {"tiny-one": row}}))
    (tmp_path / "dvc.yaml").touch()
    (tmp_path / "notebooks").mkdir()
    data_folder = Path(gmmvit.__file__).parents[1] / "data"
    done = gmmvit_command(
        "tiny-one", "--tensorboard", cwd=tmp_path / "notebooks", env={**os.environ, "GMMVIT_DATA": str(data_folder)}
    )
    assert done.returncode == 0, done.stderr
    out = tmp_path / "reports" / "tiny" / "runs" / "tiny-one"
    assert (out / "history.csv").read_bytes() == (finished[0] / "history.csv").read_bytes()
    assert list((out / "tensorboard").glob("events*"))
    lines = done.stdout.splitlines()
    assert len(lines) == 7 and "it/s" not in done.stderr, (lines, done.stderr)  # one line an epoch, no bar in a log


@pytest.mark.slow
def test_the_command_names_the_nearest_row(tmp_path):
    (tmp_path / "params.yaml").write_text(json.dumps({"profile": "tiny", "rows": {"tiny-one": ROW}}))
    (tmp_path / "dvc.yaml").touch()
    done = gmmvit_command("tiny-on", cwd=tmp_path)
    assert done.returncode == 1 and "the nearest is 'tiny-one'" in done.stderr and "Traceback" not in done.stderr
