"""What the engine and the library do on a GPU, pretend or real, beside what they do on the CPU."""

import dataclasses
import functools
from contextlib import nullcontext

import numpy as np
import pytest
import timm
import torch
import torch.nn as nn
import torch.nn.functional as F

import gmmvit
from gmmvit import fetch
from gmmvit.core import ways
from gmmvit.core.transmix import TransMix
from gmmvit.fetch import shapes
from gmmvit.models import create_model
from gmmvit.train import recipes, train
from gmmvit.train.classify import Classification
from gmmvit.train.processes import World
from gmmvit.train.rows import Row
from gmmvit.train.update import Update

CUDA = torch.device("cuda", 0)
MASKS = [None, "gmm", "elm", "gab"]
SGD = dataclasses.replace(
    recipes.find("gmm"), optimizer="sgd", lr=0.03, warmup_epochs=0, momentum=0.9, weight_decay=0.0
)
SETTINGS = {
    "clip": {"clip": 1.0},
    "ema": {"ema": 0.9},
    "accumulate": {"accumulate": 2},
    "gradient checkpointing": {"checkpoint_gradients": True},
    "adamw": {"optimizer": "adamw", "lr": 1e-3},
}
slow = pytest.mark.slow


def close(gpu) -> float:
    """How near numbers of a GPU come to those of the CPU: a real one sums in another order, and rounds to TF32."""
    return 1e-6 if gpu is not None else 1e-2


def quiet(line):
    pass


# ---- steps of the engine --------------------------------------------------------------------------------------------


def shallow(name, mask, **options):
    """A backbone with two layers of each stage: what a third does on a GPU the second does too."""
    model = create_model(name, num_classes=5, **options)
    for module in list(model.modules()):
        for part, layers in module.named_children():
            if isinstance(layers, nn.Sequential | nn.ModuleList) and len(layers) > 2 and hasattr(layers[0], "attn"):
                setattr(module, part, layers[:2])
    if mask:
        gmmvit.attach(model, mask)
    return model


def cross_entropy(model, images, labels, step):
    return F.cross_entropy(model(images).float(), labels)


def transmix():
    """The loss of batches that are all cut and mixed."""
    mix = TransMix(cutmix_alpha=1.0, mixup_alpha=0.0, num_classes=5)
    return lambda model, images, labels, step: mix.loss(model, images.clone(), labels)


class Steps:
    """Two steps of the engine on a device: their losses and the weights after them."""

    def __init__(self, make, device="cpu", dtype=torch.float32, recipe=SGD, loss=cross_entropy, gpu=None):
        torch.manual_seed(0)
        np.random.seed(0)
        world = World(device=torch.device(device))
        self.update = Update(make(), recipe, loss, torch.zeros(1, 3, 32, 32), 10, dtype, 0, world)
        self.update.working.module.train()
        images, labels = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
        parts = [slice(at, None, recipe.accumulate) for at in range(recipe.accumulate)]
        reports = []
        for number in range(2):
            if gpu is not None:
                gpu.log.clear()  # the first step may look at the model
            reports.append(self.update([(np.arange(4)[p], images[p], labels[p]) for p in parts], number))
        self.waits = gpu.waits() if gpu is not None else set()
        self.losses = torch.stack(reports).cpu()[:, 0]
        self.weights = {name: value.detach().cpu() for name, value in self.update.result.state_dict().items()}


def assert_near(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], relative: float):
    """All floating-point tensors together, and those of the masks."""
    assert list(one) == list(other)
    floats = [name for name in one if one[name].is_floating_point()]
    for names in (floats, [name for name in floats if "spatial_masks" in name]):
        if names:
            ours, theirs = (torch.cat([w[name].double().flatten() for name in names]) for w in (one, other))
            assert (ours - theirs).norm() <= relative * theirs.norm(), names[0]


def compare(make, gpu, recipe=SGD, loss=lambda: cross_entropy, times=1) -> Steps:
    """Asserts that steps on the GPU are those of the CPU, to rounding in float32 and near in bfloat16; the former."""
    with ways.avoiding(ways.NATIVE):  # whose sums are in another order than those of torch's operators
        expected = Steps(make, recipe=recipe, loss=loss())
    with gpu() as watched:
        found = Steps(make, CUDA, recipe=recipe, loss=loss(), gpu=watched)
        rounded = Steps(make, CUDA, torch.bfloat16, recipe, loss(), watched)
    torch.testing.assert_close(found.losses, expected.losses, rtol=close(watched), atol=0)
    assert_near(found.weights, expected.weights, times * close(watched))
    torch.testing.assert_close(rounded.losses, expected.losses, rtol=0.05, atol=0)
    assert all(value.isfinite().all() for value in rounded.weights.values())
    assert_near(rounded.weights, expected.weights, 0.05)
    return found


@pytest.mark.parametrize("mask", MASKS)
def test_steps_of_the_vit(mask, gpu):
    assert compare(lambda: shallow("vit", mask), gpu).waits == set()


@slow
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["swin", "cait", "pit", "t2t", "vit_relpos"])
def test_steps_of_every_backbone(name, mask, gpu):
    assert compare(lambda: shallow(name, mask), gpu).waits == set()


@slow
@pytest.mark.parametrize("mask", [None, "gmm", "gab"])
@pytest.mark.parametrize("name", ["vit, token", "vit", "swin", "cait", "pit"])
def test_steps_of_transmix(name, mask, gpu):
    name, _, readout = name.partition(", ")
    options = {"readout": readout} if readout else {}
    assert compare(functools.partial(shallow, name, mask, **options), gpu, loss=transmix).waits == set()


@slow
@pytest.mark.parametrize("mask", ["gmm", "gab"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_steps_with_a_setting(setting, mask, gpu):
    recipe = dataclasses.replace(SGD, **SETTINGS[setting])
    times = 10 if setting == "adamw" else 1  # it divides by gradients that are next to nothing
    compare(lambda: create_model("vit", num_classes=5, mask=mask), gpu, recipe, times=times)


# ---- runs -----------------------------------------------------------------------------------------------------------


def weights(folder):
    return torch.load(folder / "weights.pt", weights_only=True)["model"]


def assert_same_run(one, other):
    for name in ("history.csv", "layers.csv"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    assert all(torch.equal(value, weights(other)[name]) for name, value in weights(one).items())


def broken_off(history):
    if len(history) == 2:
        raise KeyboardInterrupt


@slow
@pytest.mark.parametrize("mask", ["gmm", "gab"])
def test_a_run_goes_on_where_it_broke_off_and_is_that_of_the_cpu(mask, gpu, tmp_path):
    settings = {"epochs": 2, "passes": 1, "batch": 500, "warmup_epochs": 1, "ema": 0.9, "clip": 1.0}
    row = Row("cifar10-mini", "test_vit", mask, "gmm", set=settings)
    options = {"workers": 0, "say": quiet}
    train(row, tmp_path / "cpu", device="cpu", **options)
    with gpu() as watched:
        train(row, tmp_path / "gpu", device="cuda", **options)
        with pytest.raises(KeyboardInterrupt):
            train(row, tmp_path / "parts", device="cuda", on_epoch=broken_off, **options)
        said = []
        train(row, tmp_path / "parts", device="cuda", workers=0, say=said.append)
    assert any("resumed at epoch 1" in line for line in said)
    assert_same_run(tmp_path / "gpu", tmp_path / "parts")
    assert_near(weights(tmp_path / "gpu"), weights(tmp_path / "cpu"), close(watched))


@slow
@pytest.mark.parametrize("mask", ["none", "gmm", "gab"])
def test_a_run_of_transmix_in_bfloat16(mask, gpu, tmp_path):
    """All that a run does, such as its notes and samples, under CUDA's autocast."""
    mixed = {"transmix": True, "cutmix": 1.0, "mixup": 0.8, "switch_prob": 0.8, "mix_prob": 1.0}
    settings = {"epochs": 1, "passes": 1, "batch": 500, "warmup_epochs": 0, "precision": "bfloat16"}
    row = Row("cifar10-mini", "test_vit", mask, "gmm", set=settings | mixed)
    with gpu():
        metrics = train(row, tmp_path / "run", device="cuda", workers=0, say=quiet)
    assert metrics["precision"] == "bfloat16" and np.isfinite(metrics["train_loss"])


@slow
@pytest.mark.parametrize(("dataset", "recipe"), [("coco-shapes", "coco-3x"), ("ade20k-shapes", "ade20k-160k")])
@pytest.mark.parametrize("mask", ["none", "gab"])
def test_detection_and_segmentation(dataset, recipe, mask, gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("GMMVIT_DATA", str(tmp_path))
    shapes.write_coco(tmp_path / "coco-shapes", {"train": 5, "test": 3})
    shapes.write_ade(tmp_path / "ade20k-shapes", {"train": 5, "test": 3})
    fetch.obtain(dataset)
    settings = {"batch": 2, "epochs": 1, "epoch_steps": 2, "width": 16, "precision": "float32"}
    if dataset == "coco-shapes":
        settings["regions"] = 16
    row = Row(dataset, "swin_micro", mask, recipe, set=settings)
    expected = train(row, tmp_path / "cpu", device="cpu", workers=0, say=quiet)
    with gpu() as watched:
        found = train(row, tmp_path / "gpu", device="cuda", workers=0, say=quiet)
    assert found["train_loss"] == pytest.approx(expected["train_loss"], rel=close(watched))
    assert_near(weights(tmp_path / "gpu"), weights(tmp_path / "cpu"), close(watched))
    low = dataclasses.replace(row, set=settings | {"precision": "bfloat16"})
    with gpu():
        rounded = train(low, tmp_path / "low", device="cuda", workers=0, say=quiet)
    assert rounded["train_loss"] == pytest.approx(expected["train_loss"], rel=0.05)


# ---- the library ----------------------------------------------------------------------------------------------------


def tiny():
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", img_size=64, depth=2, num_classes=5).eval()


def test_a_classifier_is_tested(forward_gpu):
    row = Row("cifar10-mini", "test_vit", recipe="short")
    scores = []
    for device in (torch.device("cpu"), CUDA):
        with nullcontext() if device.type == "cpu" else forward_gpu():
            task = Classification(row, World(device=device), workers=0)
            scores.append(task.test(task.model().to(device).eval()))
    assert scores[1] == pytest.approx(scores[0], rel=1e-3)


@pytest.mark.parametrize("mask", MASKS[1:])
def test_attach_to_a_model_that_is_there(mask, forward_gpu):
    with forward_gpu():
        assert [site.name for site in gmmvit.attach(tiny().to(CUDA), mask)] == ["blocks.0.attn", "blocks.1.attn"]


@pytest.mark.parametrize("mask", MASKS)
def test_attention_maps_are_the_first_call_after_moving(mask, forward_gpu):
    model, image = tiny(), torch.randn(2, 3, 64, 64)
    if mask:
        gmmvit.attach(model, mask)

    def maps(model, image):
        with torch.no_grad(), gmmvit.attention_maps(model) as found:
            model(image)
        return {name: value.cpu() for name, value in found.items()}

    with forward_gpu():
        found = maps(model.to(CUDA), image.to(CUDA))
        model.cpu()
    for name, expected in maps(model, image).items():
        torch.testing.assert_close(found[name], expected, atol=1e-5, rtol=0)


UNLIKE = {
    "vit": ("vit_tiny_patch16_224", {"img_size": 64, "depth": 2}),
    "swin": ("swin_tiny_patch4_window7_224", {"img_size": 56, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)}),
    "cait": ("cait_xxs24_224", {"img_size": 64, "embed_dim": 48, "depth": 2}),
    "distilled": ("deit_tiny_distilled_patch16_224", {"img_size": 64, "depth": 2}),
    "beit": ("beit_base_patch16_224", {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 3}),
    "eva": ("eva02_tiny_patch14_224", {"img_size": 56, "depth": 2}),
    "maxvit": ("maxvit_rmlp_pico_rw_256", {"img_size": 64}),
}


@slow
@pytest.mark.parametrize("mask", MASKS[1:])
@pytest.mark.parametrize("family", UNLIKE)
def test_attach_before_and_after_moving(family, mask, forward_gpu):
    name, options = UNLIKE[family]
    torch.manual_seed(0)
    moved = timm.create_model(name, num_classes=5, **options).eval()
    size = options["img_size"]
    made, image = timm.create_model(name, num_classes=5, **options).eval(), torch.randn(2, 3, size, size)
    sites = [site.name for site in gmmvit.attach(moved, mask, img_size=size)]
    with torch.no_grad():
        expected = moved(image)
        with forward_gpu():
            there = gmmvit.attach(made.to(CUDA), mask, img_size=size)
            made.load_state_dict(moved.state_dict())
            found = made(image.to(CUDA)).cpu(), moved.to(CUDA)(image.to(CUDA)).cpu()
    assert [site.name for site in there] == sites
    for logits in found:
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
