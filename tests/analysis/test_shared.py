"""Weights of runs as float16, beside their record."""

import json

import pytest
import torch

import gmmvit
from gmmvit.analysis.shared import shared
from gmmvit.train import train

ROW = {
    "dataset": "cifar10-mini",
    "model": "vit_xs",
    "mask": "gmm",
    "set": {"epochs": 1, "epoch_steps": 2, "warmup_epochs": 0},
}


def quiet(line):
    pass


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "row"
    train(ROW, out, say=quiet)
    return out


def test_shared_weights_are_small_and_those_of_the_run(trained):
    assert list(shared([trained], ["another"])) == []
    (line,) = shared([trained], ["row"])
    assert "weights shared as float16" in line and list(shared([trained], ["row"])) == []
    assert (trained / "model.safetensors").stat().st_size < 1e6
    kept = torch.load(trained / "weights.pt", weights_only=True)["model"]
    back = gmmvit.load(trained)
    assert len(gmmvit.masks_of(back)) == 6 and not back.training
    for name, value in back.state_dict().items():
        assert torch.equal(value, kept[name].half().float() if kept[name].is_floating_point() else kept[name])


def test_weights_that_are_not_as_accurate_as_the_record_are_refused(trained):
    (trained / "config.json").unlink(missing_ok=True)
    metrics = json.loads((trained / "metrics.json").read_text())
    (trained / "metrics.json").write_text(json.dumps(metrics | {"top1": metrics["top1"] + 0.3}))
    with pytest.raises(ValueError, match="row: expected the top-1 of its record"):
        list(shared([trained], ["row"]))
    assert not (trained / "config.json").exists()
    (trained / "metrics.json").write_text(json.dumps(metrics))


def test_a_new_training_takes_shared_weights_away(trained):
    list(shared([trained], ["row"]))
    assert (trained / "config.json").exists()
    (trained / "metrics.json").unlink()
    train(ROW, trained, say=quiet)
    assert not (trained / "config.json").exists() and not (trained / "model.safetensors").exists()
