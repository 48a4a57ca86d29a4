"""Position parameters, and relative biases against what the attention really adds, pair by pair."""

import copy

import numpy as np
import pytest
import timm
import torch
from conftest import redraw
from timm.models.vision_transformer_relpos import VisionTransformerRelPos

import gmmvit
from gmmvit.analysis.positions import position_biases, reset_positions, sliced
from gmmvit.models import create_model
from gmmvit.paper.gab import centre_fits
from gmmvit.train.start import position_parameters

SMALL = dict(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=5)
NAMES = {
    "deit_tiny_patch16_224": {"pos_embed"},
    "xcit_nano_12_p16_224": {"pos_embed"},
    "vit_relpos_small_patch16_224": {"mlp"},
    "vit_srelpos_small_patch16_224": {"mlp"},
    "swin_tiny_patch4_window7_224": {"relative_position_bias_table"},
    "swinv2_tiny_window8_256": {"cpb_mlp"},
    "beit_base_patch16_224": {"relative_position_bias_table"},
    "gmmvit_vit": {"pos_embed"},
    "gmmvit_swin": {"pos_embed", "relative_position_bias_table"},
    "resnet18": set(),
    "twins_svt_small": set(),  # its positions are convolutions
}


@pytest.mark.parametrize("name", NAMES)
def test_the_parameters_that_say_where_patches_are(name):
    with torch.device("meta"):
        found = position_parameters(timm.create_model(name, num_classes=3))
    parts = {part for each in found for part in each.split(".")}
    assert NAMES[name] <= parts and bool(found) == bool(NAMES[name])
    assert not parts & {"qkv", "proj", "head", "norm", "fc", "cls_token", "logit_scale"}


@pytest.mark.parametrize("name", ("vit", "swin", "cait", "pit", "vit_relpos"))
def test_a_reset_changes_the_positions_and_nothing_else(name):
    torch.manual_seed(0)
    model, fresh = create_model(name, mask="gab"), create_model(name)
    before, taken = copy.deepcopy(model.state_dict()), copy.deepcopy(fresh.state_dict())
    assert reset_positions(model, fresh) is model
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    positions = set(position_parameters(model))
    assert changed and changed <= positions
    assert {key for key in positions if "bias" not in key.split(".")} <= changed  # an MLP's bias begins at zero
    assert all(torch.equal(model.state_dict()[key], taken[key]) for key in positions)
    assert all(torch.equal(value, taken[key]) for key, value in fresh.state_dict().items())


def test_a_reset_reaches_biases_that_are_remembered():
    torch.manual_seed(0)
    model, fresh = (timm.create_model("levit_128s", num_classes=3).eval() for _ in range(2))
    image = torch.randn(2, 3, 224, 224)
    redraw(fresh, image, seed=1)
    with torch.no_grad():
        before = model.forward_features(image)
        assert not torch.equal(reset_positions(model, fresh).forward_features(image), before)


def test_a_reset_that_cannot_be_done_is_refused():
    with pytest.raises(ValueError, match="ResNet has no position parameters"):
        reset_positions(timm.create_model("resnet18"), timm.create_model("resnet18"))
    with pytest.raises(ValueError, match="only one has blocks.0.attn.rel_pos.mlp.fc1.bias"):
        reset_positions(create_model("vit_relpos"), create_model("vit"))
    with pytest.raises(ValueError, match=r"expected pos_embed of shape \(1, 64, 192\).*got \(1, 64, 252\)"):
        reset_positions(create_model("vit"), create_model("vit_d6"))


# ---- biases ---------------------------------------------------------------------------------------------------------


def pair_by_pair(bias, grid):
    """The table of a bias (heads, N, N) by a plain loop, which also checks that only the relative position counts."""
    rows, columns = grid
    table = np.full((len(bias), 2 * rows - 1, 2 * columns - 1), np.nan)
    for i in range(rows * columns):
        for j in range(rows * columns):
            at = j // columns - i // columns + rows - 1, j % columns - i % columns + columns - 1
            seen = table[:, at[0], at[1]]
            assert np.isnan(seen).all() or np.allclose(seen, bias[:, i, j], atol=1e-6)
            table[:, at[0], at[1]] = bias[:, i, j]
    return table


def added(model, name, image):
    """What an attention of timm really adds to its scores: those with the bias minus those without."""
    attention, met = model.get_submodule(name), []
    hook = attention.attn_drop.register_forward_pre_hook(lambda module, args: met.append(args[0].detach()))
    attention.fused_attn = False
    attention.qkv.weight.data.zero_()  # scores are the bias alone
    with torch.no_grad():
        model.eval()(image)
    hook.remove()
    log = met[0][0].log()  # (heads, N, N) up to a constant for each query
    return log.numpy()


@pytest.mark.parametrize("kind, prefix", (("mlp", False), ("bias", False), ("bias", True)))
def test_the_bias_is_what_the_attention_adds(kind, prefix):
    torch.manual_seed(0)
    pool = {"class_token": True, "global_pool": "token"} if prefix else {}
    model = VisionTransformerRelPos(**SMALL, **pool, rel_pos_type=kind)
    image = torch.randn(1, 3, 32, 32)
    redraw(model, image)
    biases = position_biases(model.train())
    assert list(biases) == ["blocks.0.attn", "blocks.1.attn"] and model.training
    log = added(model, "blocks.1.attn", image)[:, prefix:, prefix:]
    kernel = biases["blocks.1.attn"]
    assert kernel.shape == (3, 7, 7) and kernel.dtype == np.float32 and kernel.std() > 0.05
    for query in ((0, 0), (1, 2), (3, 3)):
        seen = log[:, query[0] * 4 + query[1]].reshape(3, 4, 4)
        expected = sliced(kernel, query)
        np.testing.assert_allclose(
            seen - seen.mean((1, 2), keepdims=True), expected - expected.mean((1, 2), keepdims=True), atol=1e-5
        )


@pytest.mark.parametrize("name", ("swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256", "beit_base_patch16_224"))
def test_tables_and_continuous_biases_of_windows(name):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=3, **({"depth": 1} if "beit" in name else {}))
    image = torch.randn(1, 3, *model.pretrained_cfg["input_size"][1:])
    redraw(model, image)
    layer, kernel = next(iter(position_biases(model).items()))
    attention = model.get_submodule(layer)
    side = attention.window_size[0]
    if "v2" in name:
        attention.logit_scale.data.fill_(-100.0)  # the cosine's part vanishes
        attention.q_bias.data.zero_()
    else:
        attention.q_bias = torch.nn.Parameter(torch.zeros_like(attention.q_bias)) if "beit" in name else None
        if attention.qkv.bias is not None:
            attention.qkv.bias.data.zero_()
    log = added(model, layer, image)
    log = log[:, -(side**2) :, -(side**2) :].reshape(len(log), side**2, side, side)
    for query in (0, side + 2, side**2 - 1):
        expected = sliced(kernel, divmod(query, side))
        difference = log[:, query] - expected
        np.testing.assert_allclose(difference, difference.mean((1, 2), keepdims=True) + 0 * expected, atol=1e-4)


def test_a_gaussian_beside_the_bias_is_left_out_until_it_is_folded_in():
    torch.manual_seed(0)
    model = create_model("vit_relpos")
    alone = position_biases(model)
    gmmvit.attach(model, "gab", start="paper")
    beside = position_biases(model)
    masks = [mask.weight().detach().numpy() for mask in gmmvit.masks_of(model).values()]
    folded = position_biases(gmmvit.fold(model))
    for (name, bias), mask in zip(alone.items(), masks, strict=True):
        np.testing.assert_array_equal(beside[name], bias)
        np.testing.assert_allclose(folded[name], bias + pair_by_pair(mask, (8, 8)), atol=1e-5)


def test_grids_that_are_not_square_and_models_without_biases():
    torch.manual_seed(0)
    model = VisionTransformerRelPos(**SMALL | {"img_size": (16, 32)}, rel_pos_type="mlp").eval()
    (kernel, _) = position_biases(model).values()
    with torch.no_grad():
        expected = pair_by_pair(model.blocks[0].attn.rel_pos.get_bias()[0].numpy(), (2, 4))
    np.testing.assert_allclose(kernel, expected, atol=1e-6)
    assert position_biases(create_model("vit")) == {}


def test_a_query_outside_the_grid_or_an_even_table_is_refused():
    with pytest.raises(ValueError, match=r"a patch of the 4 x 4 grid, got \(4, 0\)"):
        sliced(np.zeros((7, 7)), (4, 0))
    with pytest.raises(ValueError, match="2n-1 rows and columns, got 8 x 7"):
        sliced(np.zeros((8, 7)), (0, 0))


def test_the_fit_recovers_the_sigma_of_a_synthetic_bias():
    steps = np.arange(-13, 14)
    d2 = steps[:, None] ** 2 + steps**2
    kernels = {f"layer {s}": np.stack([a * np.exp(-d2 / (2 * s**2)) - 3 for a in (1, 3)]) for s in (0.8, 1.5)}
    for sigma, fit in zip((0.8, 1.5), centre_fits(kernels).values(), strict=True):
        assert fit.sigma_x == pytest.approx(sigma, abs=1e-3) and fit.sigma_y == pytest.approx(sigma, abs=1e-3)
        assert (fit.x, fit.y) == (pytest.approx(6, abs=1e-3), pytest.approx(6, abs=1e-3)) and fit.r2 > 0.9999
    noise = {str(seed): np.random.default_rng(seed).normal(size=(6, 27, 27)) for seed in range(3)}
    assert max(fit.r2 for fit in centre_fits(noise).values()) < 0.1
