"""layers.csv: attention and masks as computed directly, what is said of them, and that looking changes nothing."""

import copy
import csv
import math

import pytest
import timm
import torch
import torch.nn as nn

import gmmvit
from gmmvit.train import layers, loop, moved, recipes, train
from gmmvit.train.layers import attention, lines
from gmmvit.train.moved import Start, shape
from gmmvit.train.rows import Row

ROW = {"dataset": "cifar10-mini", "model": "test_vit", "mask": "gmm", "seed": 3}
SETTINGS = {"epochs": 2, "batch": 500, "warmup_epochs": 1, "mask_lr": 60, "fraction": 0.5, "start": "neutral"}
LEARNING = ROW | {"set": SETTINGS}


def quiet(line):
    pass


def read(out):
    with open(out / "layers.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def vit():
    torch.manual_seed(0)
    small = {"embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 10}
    model = timm.create_model("vit_tiny_patch16_224", img_size=(64, 48), **small)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape)
    return model


def far(rows, columns):
    """Distances of patches one by one."""
    places = [(y, x) for y in range(rows) for x in range(columns)]
    return torch.tensor([[math.hypot(y - v, x - u) for v, u in places] for y, x in places])


def test_entropy_and_distance_are_those_of_the_softmax_computed_by_hand(vit):
    images, tokens = torch.rand(5, 3, 64, 48), []
    for block in vit.blocks:
        block.attn.register_forward_pre_hook(lambda module, args: tokens.append(args[0]))
    found = attention(vit, images)
    assert list(found) == ["blocks.0.attn", "blocks.1.attn"]
    for block, x in zip(vit.blocks, tokens, strict=True):
        q, k, _ = block.attn.qkv(x).reshape(5, 13, 3, 3, 8).permute(2, 0, 3, 1, 4)
        p = (q @ k.mT / 8**0.5).softmax(-1).double()
        line = found["blocks.0.attn" if x is tokens[0] else "blocks.1.attn"]
        assert line["entropy"] == pytest.approx(-(p * p.log()).sum(-1).mean().item(), rel=1e-5)
        assert line["uniform"] == pytest.approx(math.log(13)) and line["entropy"] < 0.999 * line["uniform"]
        patches = p[..., 1:, 1:] / p[..., 1:, 1:].sum(-1, keepdim=True)
        assert line["distance"] == pytest.approx((patches * far(4, 3)).sum(-1).mean().item(), rel=1e-5)


def test_images_in_parts_have_the_means_of_all(vit, monkeypatch):
    images = torch.rand(5, 3, 64, 48)
    whole = attention(vit, images)
    monkeypatch.setattr(layers, "AT_ONCE", 2 * 64 * 48)
    for name, line in attention(vit, images).items():
        assert line == pytest.approx(whole[name])


def test_windows_are_measured_within_themselves():
    torch.manual_seed(0)
    model = gmmvit.create_model("swin")
    for name, parameter in model.named_parameters():
        if "qkv.weight" in name or "relative_position" in name:
            nn.init.zeros_(parameter)
    first, *_ = attention(model, torch.rand(2, 3, 32, 32)).values()
    assert first["uniform"] == pytest.approx(math.log(16)) and first["entropy"] == pytest.approx(math.log(16))
    assert first["distance"] == pytest.approx(far(4, 4).mean().item())


@pytest.mark.parametrize("name", ["cait", "pit", "t2t"])
def test_every_backbone_has_numbers_with_masks_after_the_softmax_too(name):
    torch.manual_seed(0)
    model = gmmvit.create_model(name, mask="gmm", where="probabilities")
    found = lines(0, model, torch.rand(2, 3, 32, 32), Start(model))
    assert len(found) >= len(gmmvit.masks_of(model))
    for line in found:
        assert 0 < line["entropy"] <= line["uniform"] + 1e-6
        class_attention = "token_only" in line["layer"]  # of CaiT: the class token alone asks
        assert (line["distance"] is None) == (line["moved"] is None) == class_attention, line


def test_a_model_without_attention_has_no_lines():
    model = timm.create_model("test_convnext")
    assert lines(0, model, torch.rand(2, 3, 32, 32), Start(model)) == []
    assert layers.summary([]) == {} and layers.told([]) == []


@pytest.mark.pretend
def test_layers_are_read_on_a_gpu(vit, forward_gpu):
    model, images = copy.deepcopy(vit), torch.rand(2, 3, 64, 48)
    gmmvit.attach(model, "gmm", start="paper")
    expected = lines(0, model, images, Start(model))
    with forward_gpu():
        model = model.cuda()
        found = lines(0, model, images.cuda(), Start(model))
    for line, other in zip(found, expected, strict=True):
        assert line.pop("layer") == other.pop("layer") and line == pytest.approx(other, rel=1e-3)


# ---- masks ----------------------------------------------------------------------------------------------------------


def test_a_mask_has_moved_by_the_rms_of_its_changes_in_spreads():
    torch.manual_seed(0)
    model = gmmvit.create_model("vit_xs", mask="gmm", sigma_init=(10, 0), alpha_init=(0, 2))
    masks, start = list(gmmvit.masks_of(model).values()), Start(model)
    alphas = torch.cat([mask.alpha.detach() for mask in masks])
    masks[1].sigma.data += 0.5  # spread 0 around 10: measured by 10
    masks[2].alpha.data[0, 0] += 3 * alphas.std(correction=0)
    moved = list(start.moved(model).values())
    assert moved == pytest.approx([0, 0.05 / 2**0.5, 3 / (2 * 5 * 6) ** 0.5, 0, 0, 0])
    unspread = gmmvit.create_model("vit_xs", mask="elm")
    start = Start(unspread)
    next(iter(gmmvit.masks_of(unspread).values())).element.data += 0.02
    assert max(start.moved(unspread).values()) == pytest.approx(0.02)  # all 0: measured by 1


def test_the_shape_of_a_mixture_is_that_of_its_formula():
    mask = gmmvit.MASKS["gmm"]((4, 6), 2, kernels=1)
    mask.sigma.data[:], mask.alpha.data[:] = 2.0, torch.tensor([[3.0, -1.0]])
    near, corner = shape(mask)
    assert near == pytest.approx(math.exp(-1 / 8), rel=1e-4)
    assert corner == pytest.approx(math.exp(-(3**2 + 5**2) / 8), rel=1e-4)  # opposite corners


def test_the_shape_of_a_bias_is_that_of_its_exponential_and_some_masks_have_none():
    mask = gmmvit.MASKS["gab"]((4, 4), 2, amplitude=1.5, sigma=3.0)
    bias = [1.5**2 * math.exp(-d2 / 18) for d2 in (0, 1, 18)]
    assert shape(mask) == pytest.approx([math.exp(bias[1] - bias[0]), math.exp(bias[2] - bias[0])])
    assert shape(nn.Identity()) is None and shape(gmmvit.MASKS["gmm"]((1, 1), 2)) is None
    assert shape(gmmvit.SpatialMask((2, 2), 1)) is None  # it has no weight


def test_how_far_a_mask_can_move_is_the_sum_of_its_learning_rates():
    assert "117,100 steps sum to 58.6, times mask_lr 1 that is 58.6" in moved.reach(recipes.find("gmm"), 1171)
    sixty = Row("cifar10", "vit", "gmm", set={"mask_lr": 60}).recipe_settings
    assert "1,950 steps sum to 0.98" in (said := moved.reach(sixty, 390)) and "mask_lr 60 that is 59;" in said
    assert moved.reach(Row("cifar10", "vit", "gmm", set={"freeze_masks": True}).recipe_settings, 390).endswith("start")


# ---- runs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run whose masks learn, its metrics, and what it said."""
    out, said = tmp_path_factory.mktemp("runs") / "whole", []
    return out, train(LEARNING, out, say=said.append), said


def test_a_run_leaves_a_line_for_each_layer_and_epoch_and_says_the_last_ones(whole):
    out, metrics, said = whole
    found = read(out)
    assert list(found[0]) == list(layers.COLUMNS) and [line["epoch"] for line in found] == [*"000000111111222222"]
    last = [{name: float(value) for name, value in line.items() if name != "layer"} for line in found[-6:]]
    for name in ("entropy", "distance"):
        assert metrics[name] == pytest.approx(sum(line[name] for line in last) / 6, abs=1e-6)
    assert metrics["moved"] == max(line["moved"] for line in last) > 0.01 and metrics["learned"] is True
    assert any(line.startswith("masks: the learning rates of 8 steps sum to") for line in said), said
    assert any(line.startswith("masks: learned; their numbers moved by") for line in said)
    assert any(line.startswith("attention: entropy") and "1.61 for uniform attention" in line for line in said)


def test_a_resumed_run_has_the_lines_of_an_unbroken_one_on_the_same_share_of_the_images(whole, tmp_path):
    class Killed(BaseException):
        pass

    def kill(history):
        if len(history) == 2:  # one epoch is saved
            raise Killed

    with pytest.raises(Killed):
        train(LEARNING, tmp_path / "broken", say=quiet, on_epoch=kill)
    train(LEARNING, tmp_path / "broken", say=quiet)
    for name in ("layers.csv", "metrics.json", "history.csv", "masks.npz"):
        assert (whole[0] / name).read_bytes() == (tmp_path / "broken" / name).read_bytes(), name


def test_a_run_whose_masks_cannot_move_did_not_learn(tmp_path):
    said = []
    settings = {"epochs": 1, "batch": 1000, "warmup_epochs": 0, "mask_lr": 0}
    metrics = train(ROW | {"set": settings}, tmp_path, say=said.append)
    assert (metrics["learned"], metrics["moved"]) == (False, 0)
    assert any(line.startswith("masks: did not learn; their numbers moved by 0 %") for line in said), said


@pytest.mark.slow
def test_looking_at_layers_changes_nothing_else(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(loop.layers, "lines", lambda *_: [])
    train(LEARNING, tmp_path, say=quiet)
    assert read(tmp_path) == []
    for name in ("history.csv", "masks.npz"):
        assert (whole[0] / name).read_bytes() == (tmp_path / name).read_bytes()
    one, other = (torch.load(out / "weights.pt", weights_only=True)["model"] for out in (whole[0], tmp_path))
    assert all(torch.equal(one[name], other[name]) for name in one)
