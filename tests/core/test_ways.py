"""Three ways of a masked attention with the same values and gradients: explicit product, fused kernel, FlexAttention.

On a CPU the ways of a GPU are taken by putting them into the table: torch's own un-compiled arithmetic stands for the
kernels, and FlexAttention's refusal of gradients there is switched off.
"""

import copy
import tomllib
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torch.nn as nn
import torch.nn.attention.flex_attention as flex
from conftest import redraw

import gmmvit
from gmmvit.bench import ways as bench_ways
from gmmvit.core import ways
from gmmvit.core.masks import ElementMask, GaussianBias, GaussianMixtureMask
from gmmvit.core.ways import EXPLICIT, FLEX, FUSED

VIT = {"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 3}
SWIN = {"img_size": 56, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)}
FAMILIES = (
    "vit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "vit_relpos_small_patch16_224",
    "beit_base_patch16_224",
    "swin_tiny_patch4_window7_224",
)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The way table of a GPU for tensors of the CPU, FlexAttention from the first key on."""
    table = {"additive": [[0, FUSED]], "multiplicative": [[0, FLEX]]}
    monkeypatch.setattr(flex, "_validate_device", lambda *tensors: None)
    return lambda: monkeypatch.setitem(ways.TABLE, "cpu", table)


def small(name="vit_tiny_patch16_224"):
    """A model of timm whose attention is one that torch's fused kernel could compute, and two images."""
    torch.manual_seed(0)
    swin = name.startswith("swin")
    model = timm.create_model(name, num_classes=10, **(SWIN if swin else VIT))
    image = torch.randn(2, 3, *model.patch_embed.img_size)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = True
    return redraw(model, image), image


def test_a_gpu_takes_flex_attention_for_long_sequences_and_a_cpu_never():
    assert ways.best_way("cpu", additive=False, keys=4096) == ways.best_way("cpu", additive=True, keys=64) == EXPLICIT
    assert ways.best_way("cuda", additive=True, keys=64) == FUSED
    assert ways.best_way("cuda", additive=False, keys=64) == EXPLICIT
    assert ways.best_way("cuda", additive=False, keys=197) == FLEX
    assert ways.best_way("a new device", additive=False, keys=197) == EXPLICIT


def test_a_deterministic_run_does_not_take_a_way_that_is_not():
    torch.use_deterministic_algorithms(True)
    try:
        assert ways.best_way("cuda", additive=False, keys=197) == EXPLICIT
    finally:
        torch.use_deterministic_algorithms(False)


def literal(query, key, value, mask, weight, bias=None):
    """softmax(M * Q K^T / sqrt(d) + B) V as it is written."""
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    scores = scores + weight if mask.additive else scores * weight
    return (scores if bias is None else scores + bias).softmax(-1) @ value


@pytest.mark.parametrize("kind", (GaussianMixtureMask, ElementMask, GaussianBias))
@pytest.mark.parametrize("tokens, prefix", ((64, 0), (65, 1), (197, 1)))
@pytest.mark.parametrize("bias", (False, True))
def test_flex_attention_equals_the_explicit_product_with_all_gradients(as_on_a_gpu, kind, tokens, prefix, bias):
    as_on_a_gpu()
    torch.manual_seed(0)
    side = round((tokens - prefix) ** 0.5)
    mask = kind((side, side), 2, prefix=prefix)
    for parameter in mask.parameters():
        nn.init.normal_(parameter, mean=2.0)
    inputs = [torch.randn(2, 2, tokens, 8, requires_grad=True) for _ in range(3)]
    added = torch.randn(1, 2, tokens, tokens, requires_grad=True) if bias else None
    leaves = [*inputs, *mask.parameters(), *([added] if bias else [])]
    found = ways.flexed(*inputs, [mask], added)
    expected = literal(*inputs, mask, mask.full_weight(), added)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    wanted = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(out, leaves, wanted) for out in (found, expected))
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm() + 1e-6 * tokens  # a scalar's is a sum over tokens^2 pairs


@pytest.mark.parametrize("shape", ((64, 64), (2, 64, 64), (3, 1, 64, 64), (3, 1, 1, 64), (3, 2, 64, 64)))
@pytest.mark.parametrize("kind", (torch.float32, torch.bool))
def test_flex_attention_takes_every_form_of_attention_mask(as_on_a_gpu, shape, kind):
    as_on_a_gpu()
    torch.manual_seed(0)
    mask = GaussianMixtureMask((8, 8), 2)
    inputs = [torch.randn(3, 2, 64, 8, requires_grad=True) for _ in range(3)]
    given = torch.randn(shape) if kind == torch.float32 else torch.rand(shape) > 0.3
    added = given if kind == torch.float32 else torch.zeros(shape).masked_fill(~given, -torch.inf)
    found, expected = ways.flexed(*inputs, [mask], given), literal(*inputs, mask, mask.full_weight(), added)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    ours, theirs = (torch.autograd.grad(out.square().sum(), mask.parameters()) for out in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_flex_attention_in_bfloat16_is_near_the_explicit_product(as_on_a_gpu):
    as_on_a_gpu()
    torch.manual_seed(0)
    mask = GaussianMixtureMask((8, 8), 2)
    inputs = [torch.randn(2, 2, 64, 16, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    exact = [each.detach().float().requires_grad_() for each in inputs]
    found, expected = ways.flexed(*inputs, [mask]), literal(*exact, mask, mask.full_weight())
    assert found.dtype == torch.bfloat16
    assert (found.float() - expected).norm() < 0.02 * expected.norm()
    ours = torch.autograd.grad(found.float().square().sum(), [*inputs, *mask.parameters()])
    theirs = torch.autograd.grad(expected.square().sum(), [*exact, *mask.parameters()])
    for one, other in zip(ours, theirs, strict=True):
        assert (one.float() - other).norm() < 0.04 * other.norm()


@pytest.mark.parametrize("mask", ("gmm", "elm", "gab"))
@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_gives_the_same_logits_and_gradients_by_every_way(as_on_a_gpu, name, mask):
    model, image = small(name)
    sites = gmmvit.attach(model, mask, start="paper")
    scalars = [parameter for site in sites if site.reaches_output for parameter in site.mask.parameters()]
    for parameter in scalars:
        nn.init.normal_(parameter, mean=1.0)
    model.eval()
    explicit = model(image)
    theirs = torch.autograd.grad(explicit.square().sum(), scalars)
    as_on_a_gpu()
    assert ways_of(model, image) == {FUSED if mask == "gab" else FLEX}
    found = model(image)
    ours = torch.autograd.grad(found.square().sum(), scalars)
    assert (found - explicit).abs().max() <= 1e-4 * explicit.std()
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).norm() <= 1e-3 * other.norm() + 1e-6


def ways_of(model, image):
    """The ways that the masked attentions of a model would take."""
    return {module._way((image,)) for module in model.modules() if hasattr(module, "_way")}


@pytest.mark.parametrize("mask", ("gmm", "gab"))
@pytest.mark.parametrize("name", FAMILIES)
def test_a_mask_is_attached_where_fused_kernels_are_taken(as_on_a_gpu, name, mask):
    """What the GPU kernels do not call, the mask itself, is not needed to see that it reaches the output."""
    model, image = small(name)
    expected = [site.reaches_output for site in gmmvit.attach(copy.deepcopy(model), mask)]
    as_on_a_gpu()
    assert [site.reaches_output for site in gmmvit.attach(model, mask, start="paper")] == expected
    assert model(image).isfinite().all()


@pytest.mark.parametrize("mask", ("gmm", "gab"))
@pytest.mark.parametrize("training", (False, True))
def test_maps_are_read_in_the_first_call_after_a_model_has_moved(as_on_a_gpu, mask, training):
    model, image = small()
    gmmvit.attach(model, mask, start="paper")
    with gmmvit.attention_maps(model.eval()) as expected:
        model(image)
    fresh, _ = small()
    gmmvit.attach(fresh, mask, start="paper")
    fresh.load_state_dict(model.state_dict())
    as_on_a_gpu()  # as after .cuda()
    with gmmvit.attention_maps(fresh.train(training)) as maps:
        fresh(image)
    for name, attention in expected.items():
        torch.testing.assert_close(maps[name], attention, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mask", ("gmm", "gab"))
def test_transmix_reads_its_map_beside_fused_kernels(as_on_a_gpu, mask):
    losses = []
    for gpu in (False, True):
        model, image = small()
        gmmvit.attach(model, mask, start="paper")
        if gpu:
            as_on_a_gpu()
        mix = gmmvit.TransMix(mixup_alpha=0.0, cutmix_alpha=1.0, num_classes=10)
        np.random.seed(0)
        torch.manual_seed(1)
        losses.append(mix.loss(model.train(), image.clone(), torch.tensor([1, 2])))
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)


def test_a_failing_model_leaves_no_mode_behind(as_on_a_gpu):
    model, image = small()
    mix = gmmvit.TransMix(mixup_alpha=0.0, cutmix_alpha=1.0, num_classes=10)
    mix.loss(model, image.clone(), torch.tensor([1, 2]))

    def fail(*arguments):
        raise RuntimeError("out of memory, say")

    handle = model.blocks[-1].attn.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory, say"):
        mix.loss(model, image.clone(), torch.tensor([1, 2]))
    handle.remove()
    assert not torch._C._len_torch_function_stack()
    mix.loss(model, image.clone(), torch.tensor([1, 2]))


def test_a_mask_with_dropout_or_after_the_softmax_goes_the_explicit_way(as_on_a_gpu):
    torch.manual_seed(0)
    as_on_a_gpu()
    dropping = timm.create_model("vit_tiny_patch16_224", attn_drop_rate=0.5, **VIT)
    gmmvit.attach(dropping, "gmm", start="paper")
    image = torch.randn(2, 3, 64, 64)
    assert not torch.equal(dropping.train()(image), dropping(image))
    after, _ = small()
    gmmvit.attach(after, "gmm", start="paper", where="probabilities")
    found = after.eval()(image)
    with ways.avoiding(FLEX):
        assert torch.equal(found, after(image))


@pytest.mark.slow
@pytest.mark.parametrize("mask", ("gmm", "gab"))
def test_one_graph_without_breaks_by_every_way(as_on_a_gpu, mask):
    model, image = small()
    gmmvit.attach(model, mask, start="paper")
    as_on_a_gpu()  # after attach, as for a model that is moved
    model.train()
    expected = model(image)
    torch._dynamo.reset()
    fresh, _ = small()
    gmmvit.attach(fresh, mask, start="paper")
    fresh.load_state_dict(model.state_dict())
    found = torch.compile(fresh.train(), backend="aot_eager", fullgraph=True)(image)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_what_was_measured_decides_the_way(as_on_a_gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(flex, "_validate_device", lambda *tensors: None)
    monkeypatch.setattr(bench_ways, "TOKENS", 128)
    seconds = bench_ways.bench_ways("cpu", rounds=1, sides=(4, 8), say=lambda line: None)
    assert {kind: list(found) for kind, found in seconds.items()} == {kind: [16, 64] for kind in bench_ways.KINDS}
    made_up = {16: {EXPLICIT: 1.0, FLEX: 0.9}, 64: {EXPLICIT: 1.0, FLEX: 1.1}, 196: {EXPLICIT: 3.0, FLEX: 2.0}}
    made_up[256] = {EXPLICIT: 3.0, FLEX: 2.0}
    assert bench_ways.steps_of(made_up) == [[196, FLEX]]
    assert bench_ways.steps_of({64: {EXPLICIT: 1.0, FLEX: 1.1}}) == []
    path = tmp_path / "ways.toml"
    path.write_text(Path(ways.__file__).with_name("ways.toml").read_text())
    for _ in range(2):  # once more in the place of the first
        bench_ways.fill(path, "cuda", {"multiplicative": made_up, "additive": {}}, "a made-up GPU")
    table = tomllib.loads(path.read_text())
    assert table["cuda"] == {"multiplicative": [[196, FLEX]], "additive": []}
    assert table["mps"] == ways.TABLE["mps"] and path.read_text().count("measured on a made-up GPU") == 1
