"""Every kind of bad row is refused with all its problems at once."""

import re

import pytest

from gmmvit.train import checks
from gmmvit.train.checks import BadRow, check
from gmmvit.train.rows import Row

GOOD = {"dataset": "cifar10-mini", "model": "vit"}


def problems(row=None, processes=1, **fields):
    """The lines of the refusal, without the first."""
    with pytest.raises(BadRow) as caught:
        check(row or GOOD | fields, processes)
    return str(caught.value).splitlines()[1:]


def with_settings(settings, **fields):
    return problems(set=settings, **fields)


def test_good_row_comes_back_with_defaults_and_a_name():
    row = check(GOOD)
    assert row == Row("cifar10-mini", "vit", "none", "short", 0, {}, "cifar10-mini-vit-none-s0")
    assert check(row) is row


def test_all_problems_of_a_row_are_told_at_once_with_the_nearest_names():
    lines = problems(
        {"dataset": "cifr10", "model": "vitt", "mask": "gm", "recipe": "shrt", "sed": 1, "set": {"epoch": 3}}
    )
    nearest = [re.search(r"nearest is '(.+)'", line)[1] for line in lines]
    assert sorted(nearest) == ["cifar10", "epochs", "gmm", "seed", "short", "vit"]


def test_many_wrong_settings_are_told_together():
    settings = {"lr": "5", "kernels": 0, "sigma_init": [1, -1], "where": "nowhere", "batch": 4000, "readout": "max"}
    lines = with_settings(settings, mask="gmm")
    assert len(lines) == 6
    for start in ("lr: expected a number, got '5'", "kernels:", "sigma_init:", "unknown place", "batch:", "vit cannot"):
        assert any(line.startswith(start) for line in lines), start


@pytest.mark.parametrize(
    "fields, told",
    [
        ({"seed": "0"}, "seed: expected a whole number, got '0'"),
        ({"seed": True}, "seed: expected a whole number, got True"),
        ({"seed": -1}, "seed: expected a whole number of at least 0, got -1"),
        ({"set": None}, "set: expected settings by name, got None"),
        ({"set": {1: 2}}, "set: expected names of settings, got 1"),
        ({"model": ""}, "model: expected a name, got nothing"),
        ({"name": "a b"}, "name: expected letters.*got 'a b'"),
        ({"mask": "gmm", "set": {"share_heads": 1}}, "share_heads: expected true or false, got 1"),
        ({"mask": "gmm", "set": {"sigma_init": 10}}, "sigma_init: expected 2 numbers, got 10"),
        ({"set": {"epochs": True}}, "epochs: expected a whole number, got True"),
        ({"set": {"epochs": 2.0}}, "epochs: expected a whole number, got 2.0"),
        ({"set": {"epochs": 0}}, "epochs: expected a number at least 1, got 0"),
        ({"set": {"lr": 0}}, "lr: expected a number more than 0, got 0"),
        ({"set": {"lr": float("nan")}}, "lr: expected a number, got nan"),
        ({"set": {"mix_prob": 1.5}}, "mix_prob: expected a number from 0 to 1, got 1.5"),
        ({"set": {"drop_path": 1}}, "drop_path: expected a number from 0 to below 1, got 1"),
        ({"set": {"optimizer": "adam"}}, "unknown optimizer 'adam'.*nearest is 'adamw'"),
        ({"set": {"precision": "bf16"}}, "unknown precision 'bf16'.*nearest is 'bfloat16'"),
        ({"set": {"augmentation": "gm"}}, "unknown augmentation recipe 'gm'.*nearest is 'gmm'"),
        (
            {"mask": "elm", "set": {"kernels": 3}},
            "kernels is an option of the mask gmm and gmb, but the mask of the row is elm",
        ),
        ({"set": {"sigma": 3}}, "sigma is an option of the mask gab, but the mask of the row is none"),
        ({"set": {"img_size": 32}}, "img_size: expected no such setting"),
        ({"set": {"num_classes": 100}}, "num_classes: expected 10 as cifar10-mini has, got 100"),
        ({"set": {"batch": 2001}}, "batch: expected at most 2,000, the training images of cifar10-mini, got 2,001"),
        ({"set": {"accumulate": 3}}, "batch: expected a multiple of 3.*got 128; the nearest is 129"),
        ({"recipe": "gmm", "set": {"batch": 127}}, "batch: expected a multiple of 2.*got 127; the nearest is 128"),
        ({"recipe": "gmm", "set": {"epochs": 10}}, "warmup_epochs: expected fewer than the 10 epochs, got 10"),
        ({"set": {"per_step": False}}, "warmup_epochs: expected whole epochs where per_step is false, got 0.5"),
        ({"set": {"select": "validation"}}, "select: expected 'last', for cifar10-mini has no validation split"),
        ({"model": "swin", "set": {"readout": "token"}}, "swin has no class token"),
        ({"model": "t2t", "set": {"readout": "token"}}, "t2t has no class token"),
        ({"model": "cait", "set": {"readout": "mean"}}, "cait always reads its class token, got 'mean'"),
        ({"model": "deit_tiny_patch16_224", "set": {"readout": "mean"}}, "deit_tiny_patch16_224 reads out as timm"),
        ({"model": "deit_tiny_patch16_242"}, "unknown model.*nearest is 'deit_tiny_patch16_224'; .*timm.list_models"),
    ],
)
def test_a_single_problem_is_told_alone(fields, told):
    lines = problems(**fields)
    assert len(lines) == 1, lines
    assert re.search(told, lines[0]), lines[0]


def test_batch_must_divide_among_processes_and_pairs_must_stay_together():
    even = GOOD | {"set": {"batch": 6}}
    assert check(even, processes=2)
    assert "multiple of 4" in problems(even, processes=4)[0]
    mixing = GOOD | {"recipe": "gmm", "set": {"batch": 6}}
    assert "multiple of 4 = 2 (processes) x 1 (accumulate) x 2" in problems(mixing, processes=2)[0]


def test_recipes_and_models_that_do_not_fit_a_data_set_are_refused():
    lines = checks.problems({"dataset": "pets", "model": "t2t", "recipe": "gmm"})
    assert len(lines) == 2
    assert "recipe gmm augments 32 and 64 px arrays" in lines[0] and "t2t is defined for images of" in lines[1]
    pooled = {"dataset": "pets", "model": "vit_relpos_small_patch16_224", "recipe": "gab-finetune", "mask": "gab"}
    assert checks.problems(pooled) == []
    assert "at most 5,144" in checks.problems(pooled | {"set": {"batch": 5_145}})[0]


def test_missing_data_is_told_with_the_command_that_fetches_it(tmp_path, monkeypatch):
    monkeypatch.setenv("GMMVIT_DATA", str(tmp_path))
    row = {"dataset": "cifar100", "model": "vit", "seed": -1}
    assert problems(row)[1:] == [f"cifar100 is not in {tmp_path / 'cifar100'}: fetch it with `gmmvit data cifar100`"]
    assert len(checks.problems(row)) == 1
