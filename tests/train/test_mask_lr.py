"""The learning rate of masks, masks that are frozen, and runs on a share of the images."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import gmmvit
from gmmvit import dense
from gmmvit.train import recipes
from gmmvit.train.checks import problems
from gmmvit.train.classify import Classification
from gmmvit.train.processes import World
from gmmvit.train.recipes import Recipe
from gmmvit.train.rows import Row, row_name
from gmmvit.train.start import fresh_model, starting_model, unmasked_model
from gmmvit.train.update import Update

IMAGES, LABELS = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(8)
RECIPE = Recipe(epochs=2, augmentation="short", lr=1e-3, final_lr=1e-5, weight_decay=0.05, warmup_epochs=1, drop_path=0)


def model(mask="gmm"):
    torch.manual_seed(0)
    return gmmvit.create_model("vit_xs", mask=mask, drop_path=0.0)


def cross_entropy(model, images, labels, step):
    return F.cross_entropy(model(images).float(), labels)


def updated(recipe, steps=3, mask="gmm", parts=1):
    update = Update(model(mask), recipe, cross_entropy, IMAGES[:1], 4, torch.float32)
    update.model.train()
    batch = [(np.arange(8), *part) for part in zip(IMAGES.chunk(parts), LABELS.chunk(parts), strict=True)]
    for number in range(1, 1 + steps):
        update(batch, number)
    return update


def masks_and_rest(update, own="result"):
    named = dict(getattr(update, own).named_parameters())
    mine = {name for name in named if ".spatial_masks." in name or name.endswith((".sigma", ".alpha"))}
    return {n: named[n].detach() for n in mine}, {n: each.detach() for n, each in named.items() if n not in mine}


def test_masks_learn_at_their_own_rate():
    """Against AdamW over two groups, written out; an accumulated batch and resumed steps as well."""
    recipe = dataclasses.replace(RECIPE, mask_lr=60.0)
    by_hand, set_lr = model().train(), recipe.schedule(torch.optim.SGD([torch.zeros(1)], lr=recipe.lr), 4)
    spared = {each for name, each in by_hand.named_parameters() if each.ndim < 2 or "pos_embed" in name}
    mine = {each for mask in gmmvit.masks_of(by_hand).values() for each in mask.parameters()}
    assert len(mine) == 2 * 6
    groups = [
        {"params": [each], "weight_decay": 0.0 if each in spared | mine else 0.05, "factor": 60 if each in mine else 1}
        for each in by_hand.parameters()
    ]
    optimizer = torch.optim.AdamW(groups)
    for number in range(1, 4):
        for group in optimizer.param_groups:
            group["lr"] = set_lr(number) * group["factor"]
        cross_entropy(by_hand, IMAGES, LABELS, number).backward()
        optimizer.step()
        optimizer.zero_grad()
    ours, parts = updated(recipe), updated(recipe, parts=2)
    assert ours.lr == pytest.approx(set_lr(3))  # what the history says is the model's
    resumed = Update(model(), recipe, cross_entropy, IMAGES[:1], 4, torch.float32)
    resumed.load(updated(recipe, steps=2).state())
    resumed.model.train()
    resumed([(np.arange(8), IMAGES, LABELS)], 3)
    for name, expected in by_hand.named_parameters():
        found = ours.model.get_parameter(name)
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(parts.model.get_parameter(name), found, atol=2e-4, rtol=1e-3)
        assert torch.equal(resumed.model.get_parameter(name), found)


@pytest.mark.parametrize("settings", [{"mask_lr": 0.0}, {"freeze_masks": True, "ema": 0.9}])
def test_masks_that_cannot_move_stay_and_the_others_do_not(settings):
    masks, rest = masks_and_rest(updated(dataclasses.replace(RECIPE, decay_masks=True, **settings), 2))
    before, others = masks_and_rest(updated(RECIPE, steps=0))
    assert masks and all(torch.equal(masks[name], before[name]) for name in before)
    assert not any(torch.equal(rest[name], others[name]) for name in rest if name.endswith("qkv.weight"))


def test_without_a_factor_the_groups_are_timms_and_with_one_each_parameter_is_in_one():
    plain = recipes.parameter_groups(model("elm"), RECIPE)
    assert len(plain) == 2 and not any("lr_scale" in group for group in plain)
    built = model("elm")
    parts = recipes.parameter_groups(built, dataclasses.replace(RECIPE, mask_lr=3.0))
    assert sorted(id(p) for part in parts for p in part["params"]) == sorted(map(id, built.parameters()))
    assert [part.get("lr_scale", 1) for part in parts] == [1, 1, 3.0]


def test_the_schedules_of_dense_recipes_scale_it_too():
    groups = [{"params": [torch.zeros(1)]}, {"params": [torch.zeros(1)], "lr_scale": 5.0}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    lr = dense.RECIPES["coco-3x"].schedule(optimizer, 100)(2_000)
    assert [group["lr"] for group in optimizer.param_groups] == [lr, 5 * lr]


# ---- rows -----------------------------------------------------------------------------------------------------------

ROW = {"dataset": "cifar10-mini", "model": "vit_xs", "mask": "gmm"}


@pytest.mark.parametrize(
    "fields, told",
    [
        ({"set": {"mask_lr": -1}}, "mask_lr: expected a number at least 0, got -1"),
        ({"set": {"freeze_masks": 1}}, "freeze_masks: expected true or false, got 1"),
        ({"set": {"fraction": 0}}, "fraction: expected a number above 0, at most 1, got 0"),
        ({"set": {"fraction": 1.5}}, "fraction: expected a number above 0, at most 1, got 1.5"),
        (
            {"set": {"fraction": 0.05}},
            "fraction: expected at least 0.064, so that a batch of 128 is there of the 2,000 training images, "
            "got 0.05 (100 images)",
        ),
        ({"mask": "none", "set": {"mask_lr": 60}}, "mask_lr: expected a mask that it is said of, got 60 and the mask"),
        ({"mask": "none", "set": {"freeze_masks": True}}, "freeze_masks: expected a mask that it is said of, got True"),
        ({"mask": "none", "set": {"start": "paper"}}, "start: expected a mask that it is said of, got 'paper'"),
        ({"set": {"start": "neutrl"}}, "unknown start 'neutrl': the nearest is 'neutral'"),
        ({"recipe": "coco-shapes", "set": {"fraction": 0.5}}, "unknown setting 'fraction'"),
    ],
)
def test_what_a_row_says_of_masks_and_images_is_checked(fields, told):
    lines = problems(ROW | fields)
    assert any(told in line for line in lines) and (len(lines) == 1 or "recipe" in fields), lines


def test_a_mask_without_a_neutral_start_is_told(monkeypatch):
    class Bare(gmmvit.SpatialMask):
        """Nothing."""

    monkeypatch.setitem(gmmvit.MASKS, "bare", Bare)
    told = "start: expected 'paper', for the mask bare has no neutral start, got 'neutral'"
    assert problems(ROW | {"mask": "bare", "set": {"start": "neutral"}}) == [told]
    assert problems(ROW | {"mask": "bare", "set": {"start": "paper"}}) == []


def test_rows_say_so_in_their_names_and_reach_the_mask():
    settings = {"mask_lr": 60, "freeze_masks": True, "fraction": 0.1, "start": "neutral", "kernels": 2}
    assert problems(ROW | {"set": settings}) == []
    name = row_name("cifar10", "vit", "gmm", 0, settings)
    assert name == "cifar10-vit-gmm-fraction0.1-freeze_masks-kernels2-mask_lr60-start_neutral-s0"
    task = Classification(Row(**ROW, set=settings), World())
    masks = gmmvit.masks_of(task.model()).values()
    assert all(mask.base == 1 and not mask.alpha.any() and len(mask.alpha) == 2 for mask in masks)
    assert all(mask.base is None for mask in gmmvit.masks_of(Classification(Row(**ROW), World()).model()).values())


@pytest.mark.parametrize("name", ["mimetic", "impulse"])
def test_a_row_may_begin_with_weights_that_are_made_and_not_drawn(name):
    row = Row("cifar10-mini", "vit_xs", "gmm", seed=2, set={"init_weights": name})
    assert problems(row) == [] and row.name == f"cifar10-mini-vit_xs-gmm-init_weights_{name}-s2"
    torch.manual_seed(2)
    expected = gmmvit.models.initialise(unmasked_model(row), name).state_dict()
    for found in (starting_model(row), fresh_model(row)):
        assert all(torch.equal(value, expected[key]) for key, value in found.state_dict().items())
    plain = fresh_model(Row("cifar10-mini", "vit_xs", seed=2)).state_dict()
    changed = {key.split(".", 2)[-1] for key in plain if not torch.equal(plain[key], expected[key])}
    assert {"attn.qkv.weight", "attn.proj.weight"} <= changed <= {"attn.qkv.weight", "attn.proj.weight", "pos_embed"}


def test_made_weights_that_do_not_fit_are_told():
    (told,) = problems({"dataset": "cifar10-mini", "model": "swin", "set": {"init_weights": "impulse"}})
    assert told.startswith("init_weights: Swin has no position embedding")
    pretrained = {"pretrained": True, "init_weights": "mimetic"}
    (told,) = problems({"dataset": "cifar10-mini", "model": "deit_tiny_patch16_224", "set": pretrained})
    assert told == "init_weights: expected no pretrained weights, which would take their place"
    lines = problems(
        {"dataset": "coco-shapes", "model": "swin_micro", "recipe": "coco-shapes", "set": {"init_weights": "mimetic"}}
    )
    assert lines == ["init_weights: expected no such setting in a row of detection"]


# ---- a share of the images ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_share_has_as_many_steps_as_the_whole(passes, accumulate):
    settings = {"batch": 100, "passes": passes, "accumulate": accumulate}
    whole, tenth, again = (
        Classification(Row(**ROW, seed=seed, set=settings | extra), World())
        for seed, extra in ((5, {}), (5, {"fraction": 0.15}), (5, {"fraction": 0.15}))
    )
    assert tenth.steps == whole.steps == passes * 20
    chosen, seen = set(tenth.sources["train"].chosen), []
    for epoch in (0, 1):
        groups = tenth.groups("train", epoch)
        assert [len(keys) for keys in groups] == [len(keys) for keys in whole.groups("train", epoch)]
        seen += [*np.concatenate(groups)]
        assert all(map(np.array_equal, groups, again.groups("train", epoch)))  # what a resumed run reads
    assert len(chosen) == 300 and {tenth.sources["train"].chosen[key % 300] for key in seen} == chosen
    times = np.bincount(np.array(seen) % 300)
    assert len(set(seen)) == len(seen) and times.max() - times.min() <= 2  # no draw twice, no image much more often
    assert all(map(np.array_equal, tenth.groups("test", 0), whole.groups("test", 0)))
