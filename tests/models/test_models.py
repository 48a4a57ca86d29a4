"""The backbones: exact sizes, forward passes written by hand, initialisation, stochastic depth, timm's interface."""

import copy
import math

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from conftest import devices
from timm.data import resolve_data_config
from timm.utils import ModelEmaV3

import gmmvit.models
from gmmvit.models import create_model

FIVE = ["vit", "swin", "cait", "pit", "t2t"]
# Trainable parameters without a mask, [32 px and 10 classes, 32 px and 100 classes, 64 px and 200 classes].
PARAMETERS = {
    ("vit", "mean"): [2_692_042, 2_709_412, 2_756_360],
    ("vit", "token"): [2_692_426, 2_709_796, 2_756_744],
    ("swin", "mean"): [7_073_188, 7_107_838, 7_149_794],
    ("cait", "token"): [5_078_834, 5_088_644, 5_115_096],
    ("pit", "token"): [6_972_586, 7_007_236, 7_049_192],
    ("t2t", "mean"): [6_484_672, 6_509_210 - 1_408, 6_657_854],
}
# Depth variants, 32 px and 10 classes: layers, heads, with class token, with mean read-out and mixtures of 5 kernels.
VARIANTS = {
    "vit_d6": (6, 12, 3_092_302, 3_092_518),
    "vit_d15": (15, 12, 2_523_898, 2_525_410),
    "vit_d30": (30, 12, 1_270_594, 1_274_050),
    "vit_d30_108": (30, 12, 2_839_006, 2_842_390),
    "vit_d30_192": (30, 12, 8_917_834, 8_921_050),
    "vit_d60": (60, 12, 2_532_034, 2_539_090),
    "vit_wide": (8, 4, 4_283_146, 4_282_954),
    "vit_heat": (8, 6, 2_425_930, 2_426_026),
    "vit_xs": (6, 6, 459_178, 458_986 + 2 * 5 * 6 * 6),
}


def trainable(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


# ---- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "readout"), PARAMETERS)
def test_parameters_are_the_papers(name, readout):
    sizes = [(32, 10), (32, 100), (64, 200)]
    assert [trainable(create_model(name, *size, readout=readout)) for size in sizes] == PARAMETERS[name, readout]


@pytest.mark.parametrize("name", VARIANTS)
def test_parameters_of_the_depth_variants(name):
    layers, heads, with_token, mean_and_mask = VARIANTS[name]
    assert trainable(create_model(name, readout="token")) == with_token
    assert trainable(create_model(name)) == mean_and_mask - 2 * 5 * heads * layers


def test_a_mask_is_attached_with_its_options():
    assert trainable(create_model("vit", mask="gmm")) == 2_693_122
    assert trainable(timm.create_model("gmmvit_vit", mask="gmm", kernels=1)) == 2_692_042 + 2 * 9 * 12
    assert trainable(create_model("t2t", mask="elm")) == 6_599_360


def test_a_mask_leaves_the_initial_weights_alone():
    torch.manual_seed(0)
    plain = create_model("vit").state_dict()
    torch.manual_seed(0)
    masked = create_model("vit", mask="gmm").state_dict()
    assert all(torch.equal(weight, masked[name]) for name, weight in plain.items())


@pytest.mark.parametrize("device", devices(pytest.mark.slow), indirect=True)
@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("name", [*FIVE, "vit_wide"])
def test_forward_and_backward(name, size, device):
    model = create_model(name, size, num_classes=7).to(device)
    logits = model(torch.randn(2, 3, size, size, device=device))
    assert logits.shape == (2, 7)
    logits.square().sum().backward()
    missing = [
        n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.isfinite().all())
    ]
    assert not missing


@pytest.mark.parametrize(
    ("name", "size", "tokens"),
    [
        ("vit", 32, [64] * 9),
        ("vit", 96, [64] * 9),
        ("vit_wide", 32, [256] * 8),
        ("vit_wide", 64, [64] * 8),
        ("vit_heat", 64, [256] * 8),
        ("vit_xs", 32, [64] * 6),
        ("swin", 64, [16] * 12),
        ("cait", 64, [64] * 24 + [1] * 2),
        ("pit", 64, [257] * 2 + [65] * 6 + [17] * 4),
        ("t2t", 32, [256] + [64] * 12),
        ("t2t", 64, [1024, 256] + [64] * 12),
    ],
)
def test_tokens_of_every_attention_layer(name, size, tokens):
    seen = []
    model = create_model(name, size)
    for module in model.modules():
        if hasattr(module, "num_heads"):
            module.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[1]))
    model(torch.zeros(1, 3, size, size))
    assert seen == tokens


# ---- against forward passes written by hand, in float64 -------------------------------------------------------------


def layer_norm(x, w, name):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


def linear(x, w, name):
    return torch.einsum("...i,oi->...o", x, w[f"{name}.weight"]) + w.get(f"{name}.bias", 0)


def mlp(x, w, name):
    return linear(F.gelu(linear(x, w, f"{name}.fc1")), w, f"{name}.fc2")


def heads_of(x, heads):
    return x.reshape(*x.shape[:2], heads, -1)  # (B, N, heads, d)


def attention(x, w, name, heads):
    q, k, v = (heads_of(t, heads) for t in linear(x, w, f"{name}.qkv").chunk(3, -1))
    weights = (torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(q.shape[-1])).softmax(-1)
    return linear(torch.einsum("bhnm,bmhd->bnhd", weights, v).flatten(2), w, f"{name}.proj")


def pre_norm_block(x, w, name, heads):
    x = x + attention(layer_norm(x, w, f"{name}.norm1"), w, f"{name}.attn", heads)
    return x + mlp(layer_norm(x, w, f"{name}.norm2"), w, f"{name}.mlp")


def patches_of(x, w, name, patch):
    """Patches cut out and multiplied by a matrix, (B, N, C)."""
    batch, channels, rows, columns = x.shape
    cut = x.reshape(batch, channels, rows // patch, patch, columns // patch, patch).permute(0, 2, 4, 1, 3, 5)
    return cut.flatten(3).flatten(1, 2) @ w[f"{name}.weight"].flatten(1).T + w[f"{name}.bias"]


def redrawn(name, size, scale, **options):
    """A model in float64 with every learned weight redrawn (a fresh one hides much), its weights, and images."""
    torch.manual_seed(1)
    model = create_model(name, size, **options).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=scale)
    return model, model.state_dict(), torch.randn(2, 3, size, size, dtype=torch.double)


@pytest.mark.parametrize("readout", ["mean", "token"])
def test_vit_equals_its_formulas(readout):
    model, w, images = redrawn("vit", 64, 0.2, readout=readout)
    x = patches_of(images, w, "patch_embed.proj", 8)
    if readout == "token":
        x = torch.cat([w["cls_token"].expand(2, -1, -1), x], 1)
    x = x + w["pos_embed"]
    for i in range(9):
        x = pre_norm_block(x, w, f"blocks.{i}", heads=12)
    pooled = x[:, 0] if readout == "token" else x.mean(1)
    torch.testing.assert_close(model(images), linear(layer_norm(pooled, w, "fc_norm"), w, "head"))


def test_swin_is_timms_with_a_position():
    model, w, images = redrawn("swin", 64, 0.1)
    position = w.pop("patch_embed.pos_embed")
    sizes = {"embed_dim": 96, "depths": (2, 6, 4), "num_heads": (3, 6, 12), "window_size": 4, "mlp_ratio": 2}
    plain = timm.models.SwinTransformer(img_size=64, patch_size=4, num_classes=10, **sizes).double().eval()
    plain.load_state_dict(w)
    x = plain.patch_embed(images)
    assert not torch.allclose(model(images), plain(images))
    torch.testing.assert_close(model(images), plain.head(plain.norm(plain.layers(x + position))))


def test_cait_equals_its_formulas():
    model, w, images = redrawn("cait", 64, 0.2)

    def talking_heads(x, context, name):
        q = heads_of(linear(x, w, f"{name}.q"), 4)
        k, v = (heads_of(t, 4) for t in linear(context, w, f"{name}.kv").chunk(2, -1))
        scores = torch.einsum("bnhd,bmhd->bhnm", q, k) / 8
        weights = torch.einsum("bhnm,hg->bgnm", scores, w[f"{name}.mix_scores"]).softmax(-1)
        weights = torch.einsum("bhnm,hg->bgnm", weights, w[f"{name}.mix_probabilities"])
        return linear(torch.einsum("bhnm,bmhd->bnhd", weights, v).flatten(2), w, f"{name}.proj")

    x = patches_of(images, w, "patch_embed.proj", 8) + w["pos_embed"]
    for i in range(24):
        block = f"blocks.{i}"
        y = layer_norm(x, w, f"{block}.norm1")
        x = x + w[f"{block}.gamma_1"] * talking_heads(y, y, f"{block}.attn")
        x = x + w[f"{block}.gamma_2"] * mlp(layer_norm(x, w, f"{block}.norm2"), w, f"{block}.mlp")
    token = w["cls_token"].expand(2, -1, -1)
    for i in range(2):
        block = f"blocks_token_only.{i}"
        y = layer_norm(token, w, f"{block}.norm1")
        token = token + w[f"{block}.gamma_1"] * talking_heads(y, x, f"{block}.attn")
        token = token + w[f"{block}.gamma_2"] * mlp(layer_norm(token, w, f"{block}.norm2"), w, f"{block}.mlp")
    torch.testing.assert_close(model(images), linear(layer_norm(token[:, 0], w, "norm"), w, "head"))


def test_pit_equals_its_formulas():
    model, w, images = redrawn("pit", 64, 0.2)
    maps = patches_of(images, w, "patch_embed.conv", 4).transpose(1, 2).unflatten(2, (16, 16)) + w["pos_embed"]
    token = w["cls_token"].expand(2, -1, -1) + w["transformers.0.pool.position"]
    for stage, (depth, heads, side) in enumerate([(2, 2, 16), (6, 4, 8), (4, 8, 4)]):
        if stage:
            pool = f"transformers.{stage}.pool"
            depthwise, pointwise = ((w[f"{pool}.conv.{i}.weight"], w[f"{pool}.conv.{i}.bias"]) for i in range(2))
            maps = F.conv2d(F.conv2d(maps, *depthwise, stride=2, padding=1, groups=maps.shape[1]), *pointwise)
            token = linear(token, w, f"{pool}.fc")
        x = torch.cat([token, maps.flatten(2).transpose(1, 2)], 1)
        for i in range(depth):
            x = pre_norm_block(x, w, f"transformers.{stage}.blocks.{i}", heads)
        token, maps = x[:, :1], x[:, 1:].transpose(1, 2).unflatten(2, (side, side))
    torch.testing.assert_close(model(images), linear(layer_norm(token[:, 0], w, "norm"), w, "head"))


def test_t2t_equals_its_formulas():
    model, w, images = redrawn("t2t", 64, 0.1)

    def unfolded(maps):
        windows = F.pad(maps, (1, 1, 1, 1)).unfold(2, 3, 2).unfold(3, 3, 2)  # (B, C, rows, columns, 3, 3)
        return windows.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)

    maps = images
    for i, side in enumerate([32, 16]):
        name, tokens = f"patch_embed.transformers.{i}", unfolded(maps)
        q, k, v = linear(layer_norm(tokens, w, f"{name}.norm1"), w, f"{name}.attn.qkv").chunk(3, -1)
        weights = (q @ k.transpose(1, 2) / math.sqrt([27, 576][i])).softmax(-1)
        tokens = v + linear(weights @ v, w, f"{name}.attn.proj")
        tokens = tokens + mlp(layer_norm(tokens, w, f"{name}.norm2"), w, f"{name}.mlp")
        maps = tokens.transpose(1, 2).unflatten(2, (side, side))
    x = linear(unfolded(maps), w, "patch_embed.proj").clone()
    for position in range(64):
        for column in range(256):
            angle = position / 10000 ** (2 * (column // 2) / 256)
            x[:, position, column] += math.cos(angle) if column % 2 else math.sin(angle)
    for i in range(12):
        y = layer_norm(x, w, f"blocks.{i}.norm1")
        x = x + y + attention(y, w, f"blocks.{i}.attn", heads=4)
        x = x + mlp(layer_norm(x, w, f"blocks.{i}.norm2"), w, f"blocks.{i}.mlp")
    expected = linear(layer_norm(x, w, "norm").mean(1), w, "head")
    torch.testing.assert_close(model(images), expected, rtol=1e-5, atol=1e-5)  # the model's sinusoids are float32


def test_t2ts_sinusoids_are_those_of_float64():
    """The public code makes the table in NumPy's float64 and rounds it at the end."""
    table = create_model("t2t").pos_embed[0]
    columns = np.arange(256)
    angles = np.arange(64)[:, None] / np.power(10000, 2 * (columns // 2) / 256)
    angles[:, 0::2], angles[:, 1::2] = np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])
    assert torch.equal(table, torch.from_numpy(angles).float())


@pytest.mark.parametrize("name", FIVE)
def test_every_layer_norm_has_the_papers_epsilon(name):
    norms = [module for module in create_model(name).modules() if isinstance(module, torch.nn.LayerNorm)]
    assert len(norms) > 18 and {norm.eps for norm in norms} == {1e-5}


# ---- initialisation and stochastic depth ----------------------------------------------------------------------------


def assert_normal(weight, std):
    slack = 4 / math.sqrt(2 * weight.numel())  # four standard errors of a standard deviation
    assert weight.std().item() == pytest.approx(std, rel=max(slack, 0.02))
    assert abs(weight.mean().item()) < 4 * std / math.sqrt(weight.numel())


@pytest.mark.parametrize("name", ["vit", "cait", "pit"])
def test_xavier_normal_weights_and_normal_positions(name):
    torch.manual_seed(0)
    model = create_model(name, readout="mean" if name != "vit" else "token")
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            assert_normal(module.weight, math.sqrt(2 / (module.in_features + module.out_features)))
        if isinstance(module, (torch.nn.Linear, torch.nn.Conv2d)) and module.bias is not None:
            assert not module.bias.any()
    assert_normal(model.pos_embed, 1)
    assert_normal(model.cls_token, 1)


@pytest.mark.parametrize(("name", "std"), [("vit", math.sqrt(2 / (48 + 192))), ("cait", math.sqrt(2 / (48 + 108)))])
def test_patches_are_initialised_as_one_matrix(name, std):
    torch.manual_seed(0)
    assert_normal(create_model(name).patch_embed.proj.weight, std)


def test_pit_initialises_its_convolutions_as_convolutions():
    torch.manual_seed(0)
    model = create_model("pit")
    assert_normal(model.patch_embed.conv.weight, math.sqrt(2 / (4 * 3 + 4 * 96)))
    assert_normal(model.transformers[1].pool.conv[0].weight, math.sqrt(2 / (9 + 9 * 192)))


def test_cait_scales_layers_by_depth_and_mixes_heads_at_random():
    torch.manual_seed(0)
    model = create_model("cait")
    scales = [block.gamma_1 for block in model.blocks] + [block.gamma_1 for block in model.blocks_token_only]
    assert [scale.unique().item() for scale in scales] == pytest.approx([0.1] * 18 + [1e-5] * 6 + [0.1] * 2)
    assert_normal(torch.cat([block.attn.mix_scores for block in model.blocks]), 1)
    assert_normal(torch.cat([block.attn.mix_probabilities for block in model.blocks]), 1)


def test_swin_keeps_pytorchs_initialisation():
    torch.manual_seed(0)
    model = create_model("swin")
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            bound = 1 / math.sqrt(module.in_features)  # uniform, weights and biases
            assert module.weight.abs().max() <= bound
            assert module.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
            assert module.bias is None or 0 < module.bias.abs().max() <= bound
    assert_normal(model.patch_embed.pos_embed, 0.02)
    assert_normal(model.layers[2].blocks[0].attn.relative_position_bias_table, 0.02)


def test_t2t_draws_weights_from_a_truncated_normal():
    torch.manual_seed(0)
    model = create_model("t2t")
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            assert_normal(module.weight, 0.02)
            assert module.bias is None or not module.bias.any()


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("vit", [0.1] * 18),
        ("cait", [0.1] * 26),
        ("pit", [0.1] * 24),
        ("swin", [0.1 * layer / 11 for layer in range(12) for _ in "12"]),
        ("t2t", [0.1 * layer / 11 for layer in range(12) for _ in "12"]),
    ],
)
def test_stochastic_depth_drops_branches_at_the_papers_rates(name, rates):
    torch.manual_seed(0)
    samples = 40_000  # one standard error is at most 0.0015
    model = create_model(name).train()
    paths = [
        model.get_submodule(path) for path, _ in model.named_modules() if path.split(".")[-1].startswith("drop_path")
    ]
    dropped = [(path(torch.ones(samples, 1, 1)) == 0).float().mean().item() for path in paths]
    assert dropped == pytest.approx(rates, abs=0.006)


@pytest.mark.parametrize("name", FIVE)
def test_without_stochastic_depth_training_is_deterministic(name):
    x = torch.randn(2, 3, 32, 32)
    still, moving = create_model(name, drop_path=0.0).train(), create_model(name, drop_path=0.5).train()
    assert torch.equal(still(x), still(x))
    assert not torch.equal(moving(x), moving(x))


# ---- timm's interface -----------------------------------------------------------------------------------------------


def test_every_backbone_is_registered_with_timm():
    assert set(timm.list_models("gmmvit_*")) == {f"gmmvit_{name}" for name in gmmvit.models.BACKBONES}
    assert len(gmmvit.models.BACKBONES) == 15


@pytest.mark.parametrize("name", FIVE)
def test_timm_makes_and_understands_them(name):
    model = timm.create_model(f"gmmvit_{name}", num_classes=7, img_size=64).eval()
    config = resolve_data_config({}, model=model)
    assert config["input_size"] == (3, 64, 64)
    assert config["mean"] == (0.4914, 0.4822, 0.4465) and config["std"] == (0.2470, 0.2435, 0.2616)
    assert model.pretrained_cfg["num_classes"] == 7
    x = torch.randn(2, 3, 64, 64)
    features = model.forward_features(x)
    torch.testing.assert_close(model.forward_head(features), model(x))
    assert model.forward_head(features, pre_logits=True).shape == (2, model.head_hidden_size)
    model.reset_classifier(3)
    assert model(x).shape == (2, 3) and model.get_classifier().out_features == 3
    assert {path for path, _ in model.named_parameters() if "pos" in path} <= set(model.no_weight_decay())
    maps = timm.create_model(f"gmmvit_{name}", features_only=True, out_indices=(1, 2))
    assert [m.shape[1] for m in maps(torch.randn(1, 3, 32, 32))] == maps.feature_info.channels()


@pytest.mark.parametrize("device", devices(pytest.mark.slow), indirect=True)
@pytest.mark.parametrize("name", FIVE)
def test_checkpointing_copies_and_averages(name, device):
    torch.manual_seed(0)
    model = create_model(name, drop_path=0.0).to(device).train()
    x = torch.randn(2, 3, 32, 32, device=device)
    twin = copy.deepcopy(model)
    twin.set_grad_checkpointing()
    for each in (model, twin):
        each(x).square().sum().backward()
    for (path, plain), recomputed in zip(model.named_parameters(), twin.parameters(), strict=True):
        if plain.requires_grad:
            torch.testing.assert_close(recomputed.grad, plain.grad, msg=path)
    average = ModelEmaV3(model, decay=0.5)
    average.update(model)
    torch.testing.assert_close(average.module.eval()(x), model.eval()(x))


@pytest.mark.slow
@pytest.mark.parametrize("name", FIVE)
def test_dynamo_sees_one_graph(name):
    model = create_model(name).eval()
    if hasattr(model, "blocks"):
        model.blocks = model.blocks[:2]  # enough for a graph break, and quicker
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))


@pytest.mark.parametrize("name", ["vit", "t2t"])
def test_fused_attention_is_the_explicit_product(name, device):
    model = create_model(name).to(device).eval()
    x = torch.randn(2, 3, 32, 32, device=device)
    logits = []
    for fused in (False, True):
        for module in model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = fused
        logits.append(model(x))
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("accelerator", [False, True])
def test_fused_attention_is_for_accelerators(accelerator, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: accelerator)
    monkeypatch.setattr("timm.layers.config._USE_FUSED_ATTN", 1)  # as on a machine that is left alone
    attentions = [module for module in create_model("t2t").modules() if hasattr(module, "fused_attn")]
    assert len(attentions) == 13
    assert all(module.fused_attn is accelerator for module in attentions)


@pytest.mark.parametrize("device", devices(pytest.mark.slow), indirect=True)
@pytest.mark.parametrize("name", FIVE)
def test_bfloat16_autocast_stays_close(name, device):
    torch.manual_seed(0)
    model = create_model(name).to(device).eval()
    x = torch.randn(8, 3, 32, 32, device=device)
    exact = model(x)
    with torch.autocast(device.type, torch.bfloat16):
        rounded = model(x)
    assert rounded.dtype == torch.bfloat16
    assert (rounded - exact).abs().max() < 0.1 * exact.std()


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"name": "vti"}, ValueError, "unknown model 'vti'.*nearest is 'vit'"),
        ({"name": "vit", "img_size": 36}, ValueError, "multiple of 8, got 36; the nearest is 32 or 40"),
        ({"name": "swin", "img_size": 40}, ValueError, "multiple of 16, got 40; the nearest is 32 or 48"),
        ({"name": "vit", "img_size": 5}, ValueError, "multiple of 8, got 5; the nearest is 8"),
        ({"name": "vit", "img_size": (32, 64)}, ValueError, r"square image.*got \(32, 64\)"),
        ({"name": "vit", "img_size": 32.0}, ValueError, "square image.*got 32.0"),
        ({"name": "vit_wide", "img_size": 48}, ValueError, "vit_wide is defined for images of 32 and 64 px, got 48"),
        (
            {"name": "t2t", "img_size": 128},
            ValueError,
            "t2t is defined for images of 32 and 64 px, got 128; the nearest is 64",
        ),
        ({"name": "vit", "readout": "tokens"}, ValueError, "unknown readout 'tokens'.*nearest is 'token'"),
        ({"name": "swin", "readout": "token"}, ValueError, "swin has no class token"),
        ({"name": "t2t", "readout": "token"}, ValueError, "t2t has no class token"),
        ({"name": "vit", "drop_path": 1.0}, ValueError, "from 0 to below 1, got 1.0"),
        ({"name": "vit", "drop_path": "0.1"}, ValueError, "from 0 to below 1, got '0.1'"),
        ({"name": "vit", "num_classes": "10"}, ValueError, "whole number.*got '10'"),
        ({"name": "vit", "kernels": 3}, TypeError, "unknown option 'kernels'.*need mask="),
        ({"name": "vit", "drop_rat": 0.1}, TypeError, "unknown option 'drop_rat'.*nearest is 'drop_rate'"),
        ({"name": "vit", "mask": "gm"}, ValueError, "unknown mask 'gm'.*nearest is 'gmm'"),
        ({"name": "vit", "mask": "gmm", "kernel": 3}, TypeError, "'kernel'.*nearest is 'kernels'"),
        ({"name": "vit", "pretrained": True}, ValueError, "no pretrained weights"),
    ],
)
def test_bad_input_is_told_in_a_sentence(arguments, error, sentence):
    with pytest.raises(error, match=sentence):
        create_model(**arguments)


@pytest.mark.parametrize("name", FIVE)
def test_an_image_of_another_size_is_refused(name):
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        create_model(name)(torch.randn(1, 3, 64, 64))


@pytest.mark.parametrize("model", ("swin", "swin_tiny_patch4_window7_224", "vit"))
@pytest.mark.parametrize("mask", ("none", "gab"))
def test_a_row_takes_whole_attention_on_any_device_swin_too(model, mask):
    """timm leaves Swin's off; on a CPU the engine puts its own in the place of torch's (test_native.py)."""
    from gmmvit.train.classify import Classification
    from gmmvit.train.processes import World
    from gmmvit.train.rows import Row

    row = Row("cifar10-mini", model, mask)
    for kind in ("cpu", "cuda"):
        made = Classification(row, World(device=torch.device(kind)), workers=0).model()
        assert {module.fused_attn for module in made.modules() if hasattr(module, "fused_attn")} == {True}


def test_pits_pooling_is_the_same_convolution_in_bfloat16_of_a_cpu():
    torch.manual_seed(0)
    pool = create_model("pit").transformers[1].pool.conv[0]
    x, weight = torch.randn(2, 96, 16, 16), torch.linspace(0, 1, 8)
    wanted = F.conv2d(x, pool.weight, pool.bias, stride=2, padding=1, groups=96)
    (theirs,) = torch.autograd.grad((wanted * weight).sum(), pool.weight)
    with torch.autocast("cpu", torch.bfloat16):
        found = pool(x.bfloat16())
    (mine,) = torch.autograd.grad((found * weight).sum(), pool.weight)
    assert found.dtype == torch.bfloat16 and torch.allclose(found.float(), wanted, atol=2e-2)
    assert torch.allclose(mine, theirs, rtol=2e-2, atol=2e-1) and torch.equal(pool(x), wanted)


@pytest.mark.parametrize("name", ("vit", "cait", "swin", "vit_relpos"))
def test_a_tokens_channels_lie_side_by_side(name):
    """A convolution leaves them apart; every sum of such tokens with others, and every norm, would copy them."""
    model, met = create_model(name), []
    model.patch_embed.register_forward_hook(lambda module, args, tokens: met.append(tokens.is_contiguous()))
    model(torch.randn(2, 3, 32, 32))
    assert met == [True]
