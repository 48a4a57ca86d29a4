"""Masks that are no weight on the scores, in a model: on query and key, and on probabilities; order and ways."""

import copy
import pickle

import pytest
import timm
import torch
import torch.nn as nn
from conftest import redraw

import gmmvit
from gmmvit.core import ways
from gmmvit.core.masks import no_decay

VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
MODELS = {  # of timm, so small that attention still is what it is there
    "vit": ("vit_tiny_patch16_224", VIT),
    "deit3": ("deit3_small_patch16_224", VIT),
    "swin": ("swin_tiny_patch4_window7_224", {"img_size": 56, "embed_dim": 24, "depths": (1, 2), "num_heads": (2, 4)}),
    "cait": ("cait_xxs24_224", {"img_size": 64, "embed_dim": 24, "depth": 1, "num_heads": 3}),
    "pit": ("pit_ti_224", {"img_size": 48}),
}
KINDS = {"gpsa": ("gpsa", {}), "rope": ("rope", {}), "mixed": ("rope", {"mixed": True})}
kinds = pytest.mark.parametrize("kind", KINDS)


def small(name="vit", seed=0):
    """A model whose attention matters, at rest, and images."""
    torch.manual_seed(seed)
    kind, options = MODELS[name]
    model = timm.create_model(kind, **{"num_classes": 5} | options).eval()
    images = torch.randn(2, 3, *[options["img_size"]] * 2)
    return redraw(model, images), images


def masked(kind, name="vit", **more):
    """The same with a mask whose numbers are drawn, so that it shows."""
    model, images = small(name)
    mask, options = KINDS[kind]
    gmmvit.attach(model, mask, **{"start": "paper"} | options | more)
    for each in gmmvit.masks_of(model).values():
        for parameter in each.parameters():
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    return model, images


def logits(model, images):
    with torch.no_grad():
        return model(images)


def near(found, expected, atol=1e-5):
    torch.testing.assert_close(found, expected, atol=atol, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_models_go_forward_and_backward(name):
    model, images = small(name)
    plain = logits(model, images)
    for kind, (mask, options) in KINDS.items():
        sites = gmmvit.attach(model.train(), mask, start="paper", **options)
        found = model(images)
        found.square().sum().backward()
        model.eval()
        assert found.isfinite().all() and not torch.allclose(logits(model, images), plain, atol=1e-3), kind
        for site in sites:
            for parameter in site.mask.parameters():
                assert parameter.grad.isfinite().all() and parameter.grad.any() or not site.reaches_output
        gmmvit.detach(model)
        near(logits(model, images), plain, atol=0)


@pytest.mark.parametrize("name", MODELS)
def test_a_neutral_gate_leaves_a_model_as_it_is_and_learns(name):
    model, images = small(name)
    plain = logits(model, images)
    sites = [site for site in gmmvit.attach(model, "gpsa") if site.reaches_output]
    assert {site.start for site in sites} == {"neutral"} and max(site.strength for site in sites) == 0
    assert (logits(model, images) - plain).abs().max() < 1e-5 * plain.std()
    for moved in (("gate",), ("gate", "coefficients")):  # an offset matters as soon as a gate is open
        model.zero_grad()
        model(images).square().mean().backward()
        for site in sites:
            for number in moved:
                parameter = getattr(site.mask, number)
                assert parameter.grad.any()
                parameter.data.sub_(0.1 * parameter.grad.sign())
    assert min(site.strength for site in sites) > 1e-3


def attention(module, x, turn=None, scores=None, probabilities=None):
    """timm's attention written out, with what is done to query and key, scores and probabilities."""
    q, k, v = module.qkv(x).unflatten(-1, (3, 3, 8)).permute(2, 0, 3, 1, 4)
    s = (q @ k.transpose(-2, -1) if turn is None else turn(q, k.transpose(-2, -1))) / 8**0.5
    p = (s if scores is None else scores(s)).softmax(-1)
    p = p if probabilities is None else probabilities(p)
    return p, module.proj((p @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("order", ["rope gmm gab gpsa", "gpsa gab gmm rope", "gmm rope gpsa gab"])
@pytest.mark.parametrize("fused", (False, True))
def test_query_and_key_come_first_then_scores_then_probabilities_each_in_the_order_of_attaching(order, fused):
    model, images = small()
    for block in model.blocks:
        block.attn.fused_attn = fused
    for mask in order.split():
        gmmvit.attach(model, mask, start="paper")
    module, x = model.blocks[0].attn, torch.randn(2, 17, 24)
    masks = module.spatial_masks

    def scores(s):
        for mask in (name for name in order.split() if name in ("gmm", "gab")):
            s = masks[mask](s)
        return s

    _, expected = attention(module, x, masks["rope"], scores, masks["gpsa"])
    near(module(x), expected)
    with gmmvit.attention_maps(model) as maps:
        model(images)
    assert maps["blocks.0.attn"].shape == (2, 3, 17, 17)
    near(maps["blocks.0.attn"].sum(-1), torch.ones(2, 3, 17))


@kinds
def test_attention_maps_are_what_the_values_are_weighed_by(kind):
    model, images = masked(kind)
    module, seen = model.blocks[1].attn, []
    handle = module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with gmmvit.attention_maps(model) as maps:
        model(images)
    handle.remove()
    mask = next(iter(module.spatial_masks.values()))
    place = {"probabilities" if kind == "gpsa" else "turn": mask}
    near(maps["blocks.1.attn"], attention(module, seen[0], **place)[0])


@pytest.mark.parametrize("kind, name", [("gpsa", "vit"), ("mixed", "swin")])
def test_the_ways_of_a_gpu_give_the_same_values_and_gradients(kind, name, device):
    model, images = masked(kind, name)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = True
    with ways.avoiding(ways.FUSED, ways.FLEX):
        expected = model(images)
        wanted = torch.autograd.grad(expected.square().sum(), list(model.parameters()), allow_unused=True)
    model = model.to(device)
    found = model(images.to(device))
    near(found.cpu(), expected, atol=1e-4)
    gradients = torch.autograd.grad(found.square().sum(), list(model.parameters()), allow_unused=True)
    for one, other in zip(gradients, wanted, strict=True):
        assert (one is None) == (other is None)
        assert one is None or (one.cpu() - other).norm() < 1e-3 * other.norm() + 1e-4


def test_beside_a_weight_a_turn_takes_the_kernel_of_the_weight(monkeypatch):
    """rope with gab: torch's fused kernel; with gmm: FlexAttention; with gpsa: the explicit product."""
    table = {"additive": [[0, ways.FUSED]], "multiplicative": [[0, ways.FLEX]]}
    for other, way in (("gab", ways.FUSED), ("gmm", ways.FLEX), ("gpsa", ways.EXPLICIT)):
        model, images = masked("mixed")
        gmmvit.attach(model, other, start="paper")
        for block in model.blocks:
            block.attn.fused_attn = True
        expected = logits(model, images)
        with monkeypatch.context() as patch:
            patch.setitem(ways.TABLE, "cpu", table)
            near(logits(model, images), expected, atol=1e-4)
            assert model.blocks[0].attn._way((images,)) == way or other == "gpsa"


@kinds
def test_kept_copied_pickled_and_frozen_with_the_same_logits(kind, tmp_path):
    model, images = masked(kind)
    expected = logits(model, images)
    gmmvit.save(model, tmp_path)
    kept = gmmvit.load(tmp_path)
    for same in (kept, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        near(logits(same, images), expected, atol=0)
    other, _ = masked(kind)
    other.load_state_dict(model.state_dict())
    near(logits(other, images), expected, atol=0)
    strength = kept.spatial_sites[0].strength
    near(logits(gmmvit.freeze(kept), images), expected)
    assert not any("spatial_masks" in name for name, _ in kept.named_parameters())
    assert kept.spatial_sites[0].strength == pytest.approx(strength) if kind == "gpsa" else strength is None
    with pytest.raises(ValueError, match="was built for 17 x 17 scores"):
        kept.blocks[0].attn(torch.randn(1, 26, 24))
    with pytest.raises(ValueError, match="expected a mask that can learn, got a frozen one"):
        gmmvit.save(kept, tmp_path)


@kinds
def test_no_position_is_folded(kind):
    model, _ = masked(kind)
    with pytest.raises(ValueError, match="cannot be folded: expected a bias"):
        gmmvit.fold(model)


@kinds
def test_another_image_size_is_another_grid_of_the_same_numbers(kind):
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", **VIT, dynamic_img_size=True).eval()
    redraw(model, torch.randn(2, 3, 32, 32))
    mask, options = KINDS[kind]
    gmmvit.attach(model, mask, start="paper", **options)
    wide = torch.randn(1, 3, 24, 48)
    other = timm.create_model("vit_tiny_patch16_224", **VIT | {"img_size": (24, 48)}).eval()
    gmmvit.attach(other, mask, start="paper", **options)
    other.load_state_dict({k: v for k, v in model.state_dict().items() if k != "pos_embed"}, strict=False)
    module, there, x = model.blocks[0].attn, other.blocks[0].attn, []
    handle = module.register_forward_hook(lambda _, args, output: x.append((args[0], output)))
    model(wide)
    handle.remove()
    near(there(x[0][0]), x[0][1])
    gmmvit.regrid(model, (24, 48))
    assert model.spatial_sites[0].grid == (3, 6)
    near(module(x[0][0]), x[0][1])


@kinds
def test_its_numbers_are_not_decayed(kind):
    model, _ = masked(kind)
    numbers = {"gpsa": {"coefficients", "gate"}, "rope": set(), "mixed": {"frequencies"}}[kind]
    mask = KINDS[kind][0]
    assert no_decay(model) == {f"blocks.{i}.attn.spatial_masks.{mask}.{each}" for i in range(2) for each in numbers}
    assert no_decay(model) <= model.no_weight_decay()


@pytest.mark.parametrize("kind", ("gpsa", "mixed"))
def test_one_graph_for_the_compiler_and_for_export(kind):
    model, images = masked(kind)
    expected = logits(model, images)
    torch._dynamo.reset()
    near(torch.compile(model, fullgraph=True, backend="eager")(images), expected)
    near(torch.export.export(model, (images,)).module()(images), expected)


class Told(gmmvit.SpatialMask):
    """Query and key as they are."""

    where = "product"

    def operands(self, query, key):
        return query, key


class Other(nn.Module):
    """timm's attention with its product in other words."""

    def __init__(self, merged):
        super().__init__()
        self.qkv, self.proj, self.merged = nn.Linear(24, 72), nn.Linear(24, 24), merged

    def forward(self, x, attn_mask=None, is_causal=False):
        q, k, v = self.qkv(x).unflatten(-1, (3, 3, 8)).permute(2, 0, 3, 1, 4)
        if self.merged:  # heads and batch in one dimension
            scores = (q.flatten(0, 1) @ k.flatten(0, 1).transpose(-2, -1)).unflatten(0, (-1, 3))
        else:
            scores = torch.einsum("bhid,bhjd->bhij", q, k)
        return self.proj(((scores * 8**-0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_heads_that_share_a_dimension_with_the_batch_are_turned_each():
    model, images = masked("mixed")
    other, _ = small()
    for block in other.blocks:
        block.attn = Other(merged=True)
    gmmvit.attach(other, "rope", mixed=True)
    for each in (model, other):
        gmmvit.attach(each, "gmm", start="paper")
    other.load_state_dict(model.state_dict())
    near(logits(other, images), logits(model, images))


def test_a_product_that_is_not_query_times_key_is_refused_and_the_model_left_as_it_was():
    model = timm.create_model("vit_tiny_patch16_224", **VIT)
    model.blocks[1].attn = Other(merged=False)
    with pytest.raises(ValueError, match="^width: expected a multiple of 4 channels a head, .*got None"):
        gmmvit.attach(model, "rope")
    with pytest.raises(ValueError, match="^Other: expected query @ key, of which a mask takes both, got einsum"):
        gmmvit.attach(model, Told)
    assert not gmmvit.masks_of(model)


def test_a_turn_has_no_weight_and_no_strength():
    model, _ = masked("rope")
    (site, *_) = model.spatial_sites
    assert site.strength is None and site.mask.weight() is None and site.mask.full_weight() is None
    assert nn.Module.extra_repr is not type(site.mask).extra_repr and "width=8" in repr(site.mask)
