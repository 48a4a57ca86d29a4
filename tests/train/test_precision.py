"""What a step computes in: its name, its scaler, its norms, and where its gradients lie."""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import timm
import torch
import torch.nn as nn
import torch.nn.functional as F

import gmmvit
from gmmvit.train import kernels, recipes, tasks, train
from gmmvit.train.gradients import Gradients
from gmmvit.train.precision import Working, resolve
from gmmvit.train.processes import World
from gmmvit.train.update import Update

CPU, CUDA, HALF = torch.device("cpu"), torch.device("cuda", 0), torch.float16
SGD = dataclasses.replace(
    recipes.find("short"), optimizer="sgd", momentum=0.0, lr=0.1, final_lr=0.1, warmup_epochs=0, weight_decay=0.0
)


@pytest.fixture
def gpu(monkeypatch):
    """What torch would say of a GPU: gpu(bfloat16=False) is a V100."""

    def say(bfloat16):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: bfloat16)
        monkeypatch.setattr(torch.cuda, "is_tf32_supported", lambda: bfloat16)

    return say


@pytest.mark.parametrize(
    "asked, bfloat16, name, why",
    [
        ("auto", True, "bfloat16", "in hardware"),
        ("auto", False, "float16", "its gradients scaled: this cuda has no bfloat16 in hardware"),
        ("bfloat16", True, "bfloat16", "as asked"),
        ("bfloat16", False, "float16", "would only emulate the bfloat16 that was asked for"),
        ("float16", True, "float16", "as asked"),
        ("tf32", True, "tf32", "as asked"),
        ("tf32", False, "float32", "this cuda has no TF32"),
        ("float32", True, "float32", "as asked"),
    ],
)
def test_what_a_gpu_computes_in(asked, bfloat16, name, why, gpu):
    gpu(bfloat16)
    found = resolve(asked, CUDA)
    assert found.name == name and why in found.why
    assert found.dtype == (torch.float32 if "32" in name else getattr(torch, name))


def test_elsewhere_bfloat16_is_what_was_asked_and_tf32_is_float32():
    assert resolve("bfloat16", CPU).name == "bfloat16" and resolve("float16", CPU).name == "float16"
    assert resolve("tf32", CPU) == resolve("tf32", CPU) and resolve("tf32", CPU).name == "float32"
    assert resolve("tf32", CPU).why == "this cpu has no TF32"
    assert resolve("auto", torch.device("mps")).name == "float32"


def switches():
    cudnn, order = torch.backends.cudnn, torch.are_deterministic_algorithms_enabled()
    floats = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    return (*floats, cudnn.benchmark, order, os.environ.get("CUBLAS_WORKSPACE_CONFIG"))


@pytest.mark.parametrize(
    "change, expected",
    [
        ({"precision": "float32"}, ("highest", False, False, False, None)),
        ({"precision": "tf32"}, ("high", True, False, False, None)),
        ({"precision": "tf32", "deterministic": True}, ("high", True, False, True, ":4096:8")),
        ({"precision": "auto", "kind": "segmentation"}, ("highest", False, True, False, None)),
    ],
)
def test_torch_s_switches_are_a_run_s_own_and_as_before_afterwards(change, expected, gpu, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    gpu(True)
    recipe, before = dataclasses.replace(recipes.find("gmm"), **change), switches()
    with pytest.raises(KeyError), kernels.chosen(recipe, CUDA):
        assert switches() == expected
        with kernels.many_shapes():
            assert not torch.backends.cudnn.benchmark
        assert switches() == expected
        raise KeyError
    assert switches() == before
    with kernels.chosen(recipe, CPU):
        assert switches() == before


def test_the_papers_float32_recipes_stay_float32():
    assert [name for name, recipe in recipes.RECIPES.items() if recipe.precision == "float32"] == [
        "gmm",
        "deit-transmix",
    ]
    assert not any(recipe.deterministic or recipe.compile for recipe in tasks.recipes().values())


# ---- float16 --------------------------------------------------------------------------------------------------------


def cross_entropy(model, images, labels, step):
    return F.cross_entropy(model(images).float(), labels)


def vit(mask="gmm"):
    torch.manual_seed(0)
    model = timm.create_model("test_vit", img_size=32, num_classes=10)
    gmmvit.attach(model, mask, img_size=32)
    return model


def updated(recipe=SGD, dtype=HALF, loss=cross_entropy, world=World()):  # noqa: B008  frozen
    update = Update(vit(), recipe, loss, torch.zeros(1, 3, 32, 32), 10, dtype, 0, world)
    update.working.module.train()
    return update


def take(update, numbers, scale=1.0):
    """Steps on images that belong to their number; the losses."""
    losses = []
    for number in numbers:
        draw = torch.Generator().manual_seed(number)
        images, labels = torch.randn(8, 3, 32, 32, generator=draw), torch.randint(10, (8,), generator=draw)
        losses.append(update([(np.arange(8), scale * images, labels)], number)[0].item())
    return losses


def weights(update):
    return torch.cat([value.detach().flatten() for value in update.result.parameters()]).clone()


def test_float16_follows_the_curve_of_float32():
    recipe = dataclasses.replace(SGD, lr=0.02, final_lr=0.02)
    ours, theirs = updated(recipe), updated(recipe, torch.float32)
    start = weights(ours)
    np.testing.assert_allclose(take(ours, range(5)), take(theirs, range(5)), rtol=0.02)
    moved, expected = weights(ours) - start, weights(theirs) - start
    assert F.cosine_similarity(moved, expected, dim=0) > 0.99 and int(ours.skipped) == 0


def too_large(steps):
    """A loss whose gradients no float16 holds in these steps."""

    def loss(model, images, labels, step):
        return cross_entropy(model, images, labels, step) * (1e4 if step in steps else 1)

    return loss


@pytest.mark.parametrize("optimizer", ("sgd", "adamw"))
def test_a_step_whose_gradients_overflow_is_left_out_counted_and_the_scale_is_halved(optimizer):
    recipe = dataclasses.replace(SGD, optimizer=optimizer, lr=1e-3, weight_decay=0.1, ema=0.5, clip=1.0)
    update = updated(recipe, loss=too_large({1, 2}))
    take(update, [0])
    before, scale = update.model.head.weight.detach().clone(), update.scaler.get_scale()
    take(update, [1, 2])
    assert torch.equal(update.model.head.weight, before) and update.scaler.get_scale() == scale / 4
    assert int(update.skipped) == 2 and update.state()["scaler"]["skipped"] == 2
    take(update, [3])
    assert not torch.equal(update.model.head.weight, before) and int(update.skipped) == 2
    assert all(value.isfinite().all() for value in update.result.state_dict().values())


def test_small_gradients_survive_in_float16_and_are_clipped_after_the_scale_is_taken_away():
    recipe = dataclasses.replace(SGD, lr=1.0, final_lr=1.0, clip=0.01)
    update = updated(recipe)
    before = weights(update)
    take(update, [0])
    assert (weights(update) - before).norm().item() == pytest.approx(0.01, rel=0.02)
    tiny = updated(
        loss=lambda *given: 1e-7 * cross_entropy(*given), recipe=dataclasses.replace(SGD, lr=1e6, final_lr=1e6)
    )
    plain = updated()
    start = weights(tiny)
    take(tiny, [0])
    take(plain, [0])
    assert F.cosine_similarity(weights(tiny) - start, weights(plain) - start, dim=0) > 0.99


def test_a_float16_run_that_is_taken_up_again_ends_with_the_same_bytes(tmp_path):
    make = lambda: updated(dataclasses.replace(SGD, optimizer="adamw", lr=1e-3), loss=too_large({1, 6}))  # noqa: E731
    through, first, second = make(), make(), make()
    take(through, range(8))
    take(first, range(3))
    torch.save(first.state(), tmp_path / "state.pt")
    second.load(torch.load(tmp_path / "state.pt", weights_only=True))
    take(second, range(3, 8))
    assert torch.equal(weights(through), weights(second))
    assert through.state()["scaler"] == second.state()["scaler"] and int(second.skipped) == 2


def test_a_run_goes_on_in_float16_where_another_gpu_left_it_in_bfloat16():
    recipe = dataclasses.replace(SGD, lr=0.02, final_lr=0.02)
    first, second = updated(recipe, torch.bfloat16), updated(recipe)
    take(first, range(2))
    second.load(first.state())
    assert torch.equal(weights(first), weights(second))
    take(second, range(2, 5))
    assert weights(second).isfinite().all() and not torch.equal(weights(first), weights(second))


OVERFLOW = """
import os, sys
sys.path.insert(0, sys.argv[1])
from test_precision import too_large, take, updated
from gmmvit.train.processes import joined
with joined("cpu") as world:
    update = updated(loss=too_large({1} if world.rank else {}), world=world)
    update.unite()
    for number in range(3):
        take(update, [number])
        os.write(1, f"{update.digest()} {int(update.skipped)} {update.scaler.get_scale()}\\n".encode())  # whole lines
"""


@pytest.mark.slow
def test_what_overflows_in_one_process_is_left_out_in_all():
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python"]
    call = [*launcher, sys.executable, "-c", OVERFLOW, os.path.dirname(__file__)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = sorted(done.stdout.split("\n"))[-6:]
    assert len(set(said)) == 3 and all(said.count(line) == 2 for line in said)  # both say the same of each step
    digests = [line.split()[0] for line in said]
    assert len(set(digests)) == 2  # of three steps, for the second one moved nothing
    assert sorted(line.split()[1] for line in said) == ["0", "0", "1", "1", "1", "1"]


@pytest.mark.slow
def test_precision_is_in_the_log_and_in_the_record(tmp_path):
    settings = {"epochs": 1, "passes": 1, "batch": 500, "warmup_epochs": 0}
    row = {"dataset": "cifar10-mini", "model": "test_vit", "mask": "gmm", "recipe": "gmm", "seed": 1}
    said, found = [], {}
    for asked in ("tf32", "float16", "float32"):
        found[asked] = train(
            row | {"set": settings | {"precision": asked}}, tmp_path / asked, say=said.append, device="cpu"
        )
    assert found["tf32"]["precision"] == "float32" and "float32 (this cpu has no TF32)" in said[0]
    assert found["float16"]["precision"] == "float16" and found["float16"]["skipped_steps"] == 0
    assert "skipped_steps" not in found["float32"]
    assert (tmp_path / "tf32/history.csv").read_bytes() == (tmp_path / "float32/history.csv").read_bytes()
    assert json.loads((tmp_path / "float16/metrics.json").read_text())["precision"] == "float16"


# ---- norms on CUDA --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda'")
@pytest.mark.parametrize("name", ("test_vit", "swin", "test_convnext"))
def test_norms_of_a_step_on_cuda_compute_in_the_step_s_type_and_learn_in_float32(name):
    torch.manual_seed(0)
    model = timm.create_model(name if "test" in name else f"gmmvit_{name}", num_classes=10).eval()
    size = model.pretrained_cfg["input_size"][-1]
    if name == "test_vit":
        gmmvit.attach(model, "gmm", img_size=size)
    working, met = Working(model, torch.bfloat16, CUDA), []
    norms = [m for m in working.module.modules() if isinstance(m, nn.LayerNorm)]
    for norm in norms:
        assert all(p.dtype == torch.bfloat16 for p in norm.parameters())
        norm.register_forward_hook(lambda norm, inputs, output: met.append(output.dtype))
    images = torch.randn(2, 3, size, size, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        found = working.module(images).float()
    assert set(met) == {torch.bfloat16} and len(met) == len(norms) > 3
    torch.testing.assert_close(found, model(images.float()), atol=0.05, rtol=0.05)
    found.sum().backward()
    Gradients(working.pairs, World()).collect()
    named = {n: p for n, p in model.named_parameters() if "norm" in n and p.grad is not None}
    assert named and all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters() if p.grad is not None)
    low = dict(working.module.named_parameters())
    assert all(low[n] is p for n, p in model.named_parameters() if n.endswith((".sigma", ".alpha")))
    with torch.no_grad():
        for parameter in named.values():
            parameter.add_(1.0)
    working.refresh()
    assert all(torch.equal(low[n], p.bfloat16()) for n, p in named.items())


def test_norms_of_a_step_on_a_cpu_are_shared_as_they_are():
    model = vit()
    working = Working(model, torch.bfloat16, CPU)
    low = dict(working.module.named_parameters())
    assert all(low[name] is p for name, p in model.named_parameters() if "norm" in name)
    both = zip(working.module.modules(), model.modules(), strict=True)  # a norm may take native.c (test_norms.py)
    assert all(isinstance(m, type(own)) for m, own in both)


# ---- where gradients lie --------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """A convolution in another layout, a head, and a weight that nothing reaches."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last), nn.Linear(5, 7)
        self.unreached = nn.Parameter(torch.ones(3))

    def forward(self, images):
        return self.head(self.stem(images).mean((2, 3)))


class Two(World):
    """Two processes, of which the other one's gradients are twice this one's and its loss is 3."""

    def agreed(self, mine):
        self.said.append(mine)

    def average(self, values):
        other = 2 * values
        other[-3] = 3.0
        values.add_(other).div_(2)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("alone, owned", ((True, False), (True, True), (False, False)))
def test_gradients_of_all_parts_are_added_up_in_float32(dtype, alone, owned):
    torch.manual_seed(0)
    model, parts = Odd(), torch.randn(3, 4, 3, 6, 6)
    expected = {}
    for images in parts:
        copy = Working(model, dtype, CPU).module if dtype != torch.float32 else model
        copy.zero_grad()
        copy(images.to(dtype)).float().square().mean().backward()
        for name, parameter in copy.named_parameters():
            if parameter.grad is not None:
                expected[name] = expected.get(name, 0) + parameter.grad.float()
    model.zero_grad()
    world = World() if alone else Two(size=2)
    object.__setattr__(world, "said", [])
    working = Working(model, dtype, CPU)
    gradients = Gradients(working.pairs, world, owned)
    for _ in range(2):
        for images in parts:
            working.module(images.to(dtype)).float().square().mean().backward()
            gradients.collect()
        report = gradients.exchange(torch.tensor(1.0), 0.0, 4.0)
        assert report.tolist() == ([1.0, 0.0, 4.0] if alone else [2.0, 0.0, 6.0])
        for name, parameter in model.named_parameters():
            if name not in expected:
                assert parameter.grad is None
                continue
            torch.testing.assert_close(parameter.grad, expected[name] * (1 if alone else 1.5))
            assert parameter.grad.stride() == parameter.stride()
            if owned or not alone:
                assert parameter.grad.untyped_storage().data_ptr() == gradients.flat.untyped_storage().data_ptr()
        model.zero_grad()
    assert world.said == ([] if alone else ["gradients of 4 of 5 weights, the last one [4]"])
