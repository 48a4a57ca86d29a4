"""The recipes against what the papers say: steps, learning rates, decayed parameters, shares of mixing."""

import dataclasses
import math

import numpy as np
import pytest
import timm
import torch

from gmmvit import attach, create_model
from gmmvit.data import AUGMENTATIONS
from gmmvit.train import recipes
from gmmvit.train.recipes import RECIPES, find


def one_weight(lr):
    return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(2)], lr=lr)


def rates(recipe, steps_per_epoch, steps):
    set_lr = recipe.schedule(one_weight(recipe.lr), steps_per_epoch)
    return [set_lr(step) for step in steps]


@pytest.mark.parametrize(
    "images, per_epoch, total, lr_sum",
    [(50_000, 1_171, 117_100, 58.6), (73_257, 1_716, 171_600, 85.9), (100_000, 2_343, 234_300, 117.3)],
)
def test_gmm_has_the_published_steps_and_sum_of_learning_rates(images, per_epoch, total, lr_sum):
    recipe = find("gmm")
    assert recipe.steps_per_epoch(images) == per_epoch
    assert recipe.total_epochs * per_epoch == total
    assert sum(rates(recipe, per_epoch, range(total))) == pytest.approx(lr_sum, abs=0.05)


def test_gmm_schedule_is_a_warm_up_and_then_a_cosine_of_the_step():
    steps = [0, 5_855, 11_710, 11_710 + 52_695, 117_099]
    expected = [1e-6, (1e-6 + 1e-3) / 2, 1e-3, (1e-3 + 1e-6) / 2, 1e-6]
    assert rates(find("gmm"), 1_171, steps) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("name", RECIPES)
def test_learning_rate_of_a_step_does_not_depend_on_the_steps_before(name):
    recipe = find(name)
    steps = range(0, 7 * recipe.total_epochs, 13)
    assert rates(recipe, 7, steps) == [rates(recipe, 7, [step])[0] for step in steps]


def test_learning_rate_is_set_in_every_group():
    optimiser = one_weight(0.01)
    lr = find("gab-finetune").schedule(optimiser, 40)(3_000)
    assert [group["lr"] for group in optimiser.param_groups] == [lr, lr]


def test_resumed_optimiser_goes_on_with_the_same_schedule():
    recipe, first = find("gmm"), one_weight(1e-3)
    expected = recipe.schedule(first, 10)(500)
    resumed = one_weight(1e-3)
    resumed.load_state_dict(first.state_dict())
    assert recipe.schedule(resumed, 10)(500) == expected


def test_gab_finetune_is_a_cosine_of_the_epoch_to_zero():
    per_epoch = rates(find("gab-finetune"), 40, range(0, 8_000, 40))
    assert per_epoch == pytest.approx([0.005 * (1 + math.cos(math.pi * epoch / 200)) for epoch in range(200)])
    assert len(set(rates(find("gab-finetune"), 40, range(40)))) == 1
    assert rates(find("gab-finetune"), 40, [8_000]) == [0.0]


def test_deit_counts_its_cosine_from_the_first_epoch_and_cools_down():
    lr = rates(find("deit-transmix"), 10, range(0, 3_100, 10))
    assert len(lr) == 310
    assert lr[10] == pytest.approx((1e-6 + 1e-3) / 2)
    assert lr[20] == pytest.approx(1e-5 + 0.5 * (1e-3 - 1e-5) * (1 + math.cos(math.pi * 20 / 300)))
    assert lr[300:] == [1e-5] * 10


def test_short_warms_up_for_half_an_epoch():
    assert np.argmax(rates(find("short"), 390, range(1_950))) == 195


def decayed(model, recipe):
    """Names of the parameters that have a weight decay, after a look that each is in one group."""
    groups = recipes.parameter_groups(model, recipe)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    grouped = [names[id(parameter)] for group in groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(names.values())
    return {names[id(p)] for group in groups if group["weight_decay"] == recipe.weight_decay for p in group["params"]}


def ends(names, *suffixes):
    return {name for name in names if name.endswith(suffixes)}


def test_gmm_decays_everything_sigma_and_alpha_too():
    model = create_model("vit", mask="gmm")
    everything = {name for name, _ in model.named_parameters()}
    assert decayed(model, find("gmm")) == everything
    without = dataclasses.replace(find("gmm"), decay_masks=False)
    assert everything - decayed(model, without) == ends(everything, ".sigma", ".alpha")


def test_decay_of_masks_is_independent_of_that_of_biases():
    recipe = dataclasses.replace(find("gmm"), decay_all=False, decay_masks=True)
    kept = decayed(create_model("vit", mask="gmm"), recipe)
    assert len(ends(kept, ".sigma", ".alpha")) == 18
    assert not ends(kept, ".bias", "pos_embed", "norm1.weight")


@pytest.mark.parametrize("name", RECIPES)
def test_gaussian_bias_is_never_decayed(name):
    recipe = dataclasses.replace(find(name), decay_masks=True)
    model = create_model("vit", mask="gab")
    everything = {name for name, _ in model.named_parameters()}
    assert len(ends(everything, ".amplitude", ".sigma")) == 18
    assert not ends(decayed(model, recipe), ".amplitude", ".sigma")


def test_bias_beside_a_mixture_keeps_their_sigmas_apart():
    model = create_model("vit", mask="gmm")
    attach(model, "gab")
    kept = ends(decayed(model, find("gmm")), ".sigma", ".alpha", ".amplitude")
    assert len(kept) == 18 and all(".gmm." in name for name in kept)


def test_deit_groups_are_those_of_timm():
    model, recipe = timm.create_model("deit_tiny_patch16_224", depth=2, num_classes=10), find("deit-transmix")
    timms = timm.optim.param_groups_weight_decay(model, recipe.weight_decay, True, model.no_weight_decay())
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    expected = {names[id(p)] for group in timms if group["weight_decay"] for p in group["params"]}
    kept = decayed(model, recipe)
    assert kept == expected
    assert "blocks.0.attn.qkv.weight" in kept and not ends(kept, ".bias", "pos_embed", "cls_token", "norm1.weight")


def stepped(recipe, device, *gradients):
    """The optimiser, and a weight of 2 after steps with these gradients."""
    model = torch.nn.Linear(1, 1, bias=False).to(device)
    torch.nn.init.constant_(model.weight, 2.0)
    optimiser = recipes.optimizer(model, recipe)
    for gradient in gradients:
        model.weight.grad = torch.full_like(model.weight, gradient)
        optimiser.step()
    return optimiser, model.weight.item()


def test_adamw_decays_apart_from_the_gradient_in_torch_s_fused_kernel(device):
    optimiser, weight = stepped(find("gmm"), device, 5.0)
    assert type(optimiser) is torch.optim.AdamW and optimiser.defaults["fused"]
    assert weight == pytest.approx(2 * (1 - 1e-3 * 0.05) - 1e-3, abs=1e-6)  # Adam's first step is the gradient's sign


def test_sgd_has_classical_momentum_in_torch_s_fused_kernel(device):
    optimiser, weight = stepped(find("gab-finetune"), device, 1.0, -3.0)
    assert type(optimiser) is torch.optim.SGD and optimiser.defaults["fused"]
    expected, momentum = 2.0, 0.0
    for gradient in (1.0, -3.0):
        momentum = 0.9 * momentum + gradient + 5e-4 * expected
        expected -= 0.01 * momentum
    assert weight == pytest.approx(expected, abs=1e-6)


def shares(recipe, batches=2_000):
    """Shares of CutMix, Mixup and clean batches, seen in the images."""
    mix, found = recipes.mixer(recipe, classes=2), {"cutmix": 0, "mixup": 0, "clean": 0}
    np.random.seed(0)
    for _ in range(batches):
        images = torch.stack([torch.zeros(1, 16, 16), torch.ones(1, 16, 16)])
        mixed, _ = mix(images, torch.tensor([0, 1]))
        values = mixed[0].unique().tolist()
        found["clean" if values == [0.0] else "cutmix" if set(values) <= {0.0, 1.0} else "mixup"] += 1
    return [found[kind] / batches for kind in ("cutmix", "mixup", "clean")]


def test_mixing_shares():
    assert shares(find("gmm")) == pytest.approx([0.25, 0.25, 0.5], abs=0.03)
    assert shares(find("deit-transmix")) == pytest.approx([0.8, 0.2, 0], abs=0.03)


def test_mixed_labels_are_smoothed_over_all_classes():
    recipe = dataclasses.replace(find("gmm"), mix_prob=0.0)
    _, target = recipes.mixer(recipe, 10)(torch.zeros(2, 3, 4, 4), torch.tensor([3, 3]))
    assert target[0, 3].item() == pytest.approx(0.91) and target[0, 4].item() == pytest.approx(0.01)


def test_recipes_without_mixing_have_no_mixer():
    assert [name for name in RECIPES if recipes.mixer(find(name), 10) is None] == ["short", "gab-finetune", "smoke"]


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_names_an_augmentation_and_lies_within_the_ranges(name):
    recipe = find(name)
    assert recipe.augmentation == ("short" if name == "smoke" else name) and recipe.augmentation in AUGMENTATIONS
    for test, settings in recipes.RANGES.values():
        assert all(test(getattr(recipe, setting)) for setting in settings)


def test_unknown_recipe_is_answered_with_the_nearest_name():
    with pytest.raises(ValueError, match="unknown recipe 'gab_imagenet'.*nearest is 'gab-imagenet'"):
        find("gab_imagenet")
