"""Where weights begin: pretrained files, positions drawn anew, and the whole way of a fine-tuned row."""

import csv
import json

import numpy as np
import pytest
import timm
import torch
from conftest import redraw
from torchvision.transforms.v2.functional import to_pil_image

from gmmvit import data, fetch
from gmmvit.data.sets import POOLED
from gmmvit.train import start as starts
from gmmvit.train import train
from gmmvit.train.checks import BadRow, check, problems
from gmmvit.train.classify import Classification
from gmmvit.train.processes import World
from gmmvit.train.rows import Row
from gmmvit.train.start import position_parameters, starting_model, unmasked_model
from gmmvit.train.weights import WeightsNotObtained

RNG = np.random.default_rng(0)


@pytest.fixture
def weights(tmp_path):
    """A file as a run of ours leaves it, of a vit_relpos for 10 classes."""
    model = redraw(unmasked_model(Row("cifar10", "vit_relpos")), torch.zeros(1, 3, 32, 32))
    torch.save({"row": "{}", "timm": timm.__version__, "model": model.state_dict()}, tmp_path / "weights.pt")
    return tmp_path / "weights.pt", model.state_dict()


def row(path, **settings):
    return Row("cifar10-mini", "vit_relpos", set={"pretrained_file": str(path), **settings})


@pytest.mark.parametrize("reset", [False, True])
def test_weights_come_from_the_file_and_positions_anew_where_asked(weights, reset):
    path, stored = weights
    got = starting_model(row(path, reset_positions=reset)).state_dict()
    torch.manual_seed(0)
    fresh = unmasked_model(row(path))
    anew = position_parameters(fresh) if reset else []
    assert len(position_parameters(fresh)) == 36  # two layers with biases in each of nine position MLPs
    for name, value in got.items():
        assert torch.equal(value, fresh.state_dict()[name] if name in anew else stored[name]), name


def test_only_the_classifier_is_fresh_where_classes_differ(weights):
    path, stored = weights
    wider = Row("cifar100", "vit_relpos", set={"pretrained_file": str(path)})
    got = starting_model(wider).state_dict()
    assert {name for name in got if got[name].shape != stored[name].shape} == {"head.weight", "head.bias"}
    assert all(torch.equal(value, stored[name]) for name, value in got.items() if not name.startswith("head."))


def test_a_safetensors_file_of_timm_is_read(tmp_path):
    from safetensors.torch import save_file

    model = timm.create_model("test_vit", num_classes=5)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    got = starting_model(Row("cifar10-mini", "test_vit", set={"pretrained_file": str(tmp_path / "model.safetensors")}))
    assert torch.equal(got.state_dict()["blocks.0.attn.qkv.weight"], model.state_dict()["blocks.0.attn.qkv.weight"])


def without(state, name):
    return {key: value for key, value in state.items() if key != name}


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda s: without(s, "blocks.3.attn.qkv.weight"), "got no blocks.3.attn.qkv.weight$"),
        (lambda s: s | {"pos_embed": torch.zeros(1)}, "got pos_embed, which the model has not$"),
        (
            lambda s: s | {"patch_embed.proj.bias": torch.zeros(7)},
            r"got patch_embed.proj.bias of shape \(7,\) instead of \(192,\)$",
        ),
        (lambda s: {}, "got no .*, and 154 more$"),
    ],
)
def test_weights_of_another_model_are_refused_and_nothing_is_left_random(weights, change, said):
    path, stored = weights
    torch.save({"model": change(stored)}, path)
    with pytest.raises(ValueError, match=f"(?s)weights.pt: expected the weights of this RelPosViT, {said}"):
        starting_model(row(path))


def test_a_file_that_holds_no_weights_is_named(tmp_path):
    (tmp_path / "text.pt").write_text("not weights")
    with pytest.raises(ValueError, match=r"expected weights \(.safetensors, .pth or .pt\), got .*text.pt"):
        starting_model(row(tmp_path / "text.pt"))


def test_a_file_that_is_not_there_is_said_before_anything_else(tmp_path):
    with pytest.raises(BadRow, match="pretrained_file: expected a file of weights, got .*nowhere.pt, which is not"):
        check(row(tmp_path / "nowhere.pt"))


def test_where_the_hub_cannot_be_reached_a_sentence_says_what_to_do(monkeypatch):
    made = timm.create_model

    def unreachable(name, pretrained=False, **options):
        if pretrained:
            raise ConnectionError("no route to the hub")
        return made(name, **options)

    monkeypatch.setattr(timm, "create_model", unreachable)
    asked = Row("cifar10-mini", "test_vit", set={"pretrained": True})
    assert problems(asked) == []
    with pytest.raises(WeightsNotObtained, match=r"test_vit.*no route to the hub.*set: \{pretrained_file: <path>\}"):
        starting_model(asked)


def test_timms_weights_are_taken_up_under_a_new_classifier(monkeypatch):
    shipped = redraw(timm.create_model("test_vit"), torch.zeros(1, 3, 160, 160))
    made = timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda name, pretrained=False, **o: shipped if pretrained else made(name, **o)
    )
    monkeypatch.setattr(starts, "resized", lambda *_: None)
    asked = Row("cifar10-mini", "test_vit", set={"pretrained": True})
    monkeypatch.setattr(starts, "unmasked_model", lambda row: made("test_vit", num_classes=10))
    got, stored = starting_model(asked).state_dict(), shipped.state_dict()
    assert all(torch.equal(got[name], stored[name]) for name in got if not name.startswith("head."))
    assert got["head.weight"].shape == (10, 64)


def test_a_mask_on_trained_weights_starts_as_its_paper_starts_it(weights, caplog):
    row = Row("cifar10", "vit_relpos", "gab", set={"pretrained_file": str(weights[0])})
    model = starts.model_of(row)
    assert {site.start for site in model.spatial_sites} == {"paper"} and not caplog.records
    for site in model.spatial_sites:
        assert site.mask.base is None and (site.mask.amplitude == 2).all() and (site.mask.sigma == 5).all()


@pytest.mark.parametrize(
    "model, settings, said",
    [
        ("vit_relpos", {"pretrained": True}, "there are no pretrained weights of vit_relpos; expected pretrained_file"),
        ("vit_relpos", {"reset_positions": True}, "reset_positions: expected pretrained or pretrained_file too"),
        ("resnet18", {"pretrained": True, "reset_positions": True}, "resnet18 has no position embedding or relative"),
        ("vit", {"pretrained": "yes"}, "pretrained: expected true or false, got 'yes'"),
    ],
)
def test_starts_that_make_no_sense_are_named(model, settings, said):
    (wrong,) = problems(Row("cifar10-mini", model, set=settings))
    assert said in wrong


# ---- a fine-tuned row, from image files to its test accuracy --------------------------------------------------------


def shades(folder, monkeypatch):
    """Pets in their official layout, of three breeds: noise around three shades of grey."""
    monkeypatch.setenv("GMMVIT_DATA", str(folder))
    images = folder / "downloads" / "oxford-iiit-pet" / "images"
    images.mkdir(parents=True)
    (images.parent / "annotations").mkdir()
    stems = [f"{breed}_{n}" for breed in ("Abyssinian", "Bengal", "Birman") for n in range(40)]
    for number, stem in enumerate(stems):
        pixels = RNG.integers(0, 120, (48, 40, 3)) + 60 * (number // 40)
        to_pil_image(pixels.astype(np.uint8)).save(images / f"{stem}.jpg", "JPEG")
    for part, some in (("trainval", stems[::2]), ("test", stems[1::2])):
        (images.parent / "annotations" / f"{part}.txt").write_text("".join(f"{stem} 1 1 1\n" for stem in some))
    small = data.SETS["pets"]._replace(classes=3, size=32, counts={POOLED: 120})
    monkeypatch.setitem(data.SETS, "pets", small)
    fetch.obtain("pets")
    return images


def fine_tuned(path, **settings):
    options = {"pretrained_file": str(path), "reset_positions": True, "epochs": 5, "batch": 14, "lr": 0.002}
    return Row("pets", "vit_relpos", "gab", "gab-finetune", set=options | settings)


@pytest.mark.slow
def test_a_fine_tuned_row_reports_the_test_accuracy_of_its_best_epoch_by_validation(weights, tmp_path, monkeypatch):
    shades(tmp_path / "data", monkeypatch)
    asked, out = fine_tuned(weights[0]), tmp_path / "run"
    metrics = train(asked, out, say=lambda line: None)

    split = json.loads((tmp_path / "data" / "pets" / "split.json").read_text())
    assert {part: len(names) for part, names in split.items()} == {"train": 84, "val": 18, "test": 18}
    with open(out / "history.csv") as file:
        lines = [{key: float(value) for key, value in line.items()} for line in csv.DictReader(file)]
    best = max(lines, key=lambda line: line["val_top1"])  # the first of equals
    assert (metrics["epoch"], metrics["top1"], metrics["val_top1"]) == (best["epoch"], best["top1"], best["val_top1"])
    assert len({line["val_top1"] for line in lines}) > 1 and metrics["images"] == 5 * 84
    assert metrics["best_top1"] == max(line["top1"] for line in lines)

    task = Classification(asked, World(), workers=0)
    model = task.model()
    model.load_state_dict(torch.load(out / "weights.pt", weights_only=True)["model"])
    again = task.test(model.eval())
    assert abs(again["top1"] - metrics["top1"]) <= 100 / 18 + 1e-3  # at most one image apart in float32
    assert abs(again["loss"] - metrics["test_loss"]) < 0.02


def test_an_image_that_changed_since_it_was_checked_stops_a_run_before_it_begins(weights, tmp_path, monkeypatch):
    images = shades(tmp_path / "data", monkeypatch)
    (images / "Bengal_7.jpg").write_bytes(b"\xff\xd8 cut short")
    with pytest.raises(ValueError, match=r"pets is damaged: .*Bengal_7.jpg is not the file that was checked"):
        train(fine_tuned(weights[0]), tmp_path / "run", say=lambda line: None)
    assert not (tmp_path / "run").exists()


def test_a_corrupt_image_is_named_when_the_set_is_laid_out(tmp_path, monkeypatch):
    images = shades(tmp_path / "data", monkeypatch)
    (tmp_path / "data" / "pets" / "complete.json").unlink()
    (images / "Birman_3.jpg").write_bytes((images / "Birman_3.jpg").read_bytes()[:300])
    with pytest.raises(ValueError, match=r"pets in .*Birman_3.jpg cannot be decoded"):
        fetch.obtain("pets")
