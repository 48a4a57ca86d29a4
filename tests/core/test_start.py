"""How masks begin: the neutral start leaves a model as it is and learns; what was taken is said once and returned."""

import logging
from inspect import signature

import pytest
import timm
import torch
import torch.nn as nn
from conftest import redraw

import gmmvit
from gmmvit.core import together, ways
from gmmvit.core.masks import MASKS, GaussianBias, GaussianMixtureMask, options_of

PAPERS = ("gmm", "elm", "gab")  # whose starts differ in strength
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}


def small(trained=True):
    torch.manual_seed(0)
    model, images = timm.create_model("vit_tiny_patch16_224", **VIT), torch.randn(4, 3, 32, 32)
    return (redraw(model, images) if trained else model), images


def logits(model, images):
    with torch.no_grad():
        return model.eval()(images)


def test_the_default_is_neutral_on_trained_weights_and_the_papers_on_fresh_ones(caplog):
    for trained, start in ((False, "paper"), (True, "neutral")):
        for mask in PAPERS:
            caplog.clear()
            model, _ = small(trained)
            sites = gmmvit.attach(model, mask)
            (record,) = caplog.records
            strength = sum(site.strength for site in sites) / len(sites)
            assert (strength == 0) == trained and {site.start for site in sites} == {start}
            assert f"{mask} on VisionTransformer: start='{start}'" in record.getMessage()
            assert f"= {strength:.2g} over 2 attentions" in record.getMessage()


def test_who_names_the_start_or_the_strength_of_a_mask_gets_it_without_a_word(caplog):
    for options, start in (({"start": "paper"}, "paper"), ({"start": "neutral"}, "neutral")):
        assert {site.start for site in gmmvit.attach(small()[0], "gab", **options)} == {start}
        assert not caplog.records
    sites = gmmvit.attach(small()[0], "gmm", alpha_init=(0.2, 0.0), sigma_init=(1000.0, 0.0))
    assert sites[0].start == "paper" and sites[0].strength == pytest.approx(0, abs=1e-3)
    assert gmmvit.attach(small()[0], "gab", start="neutral", amplitude=0.5)[0].strength == 0
    with pytest.raises(ValueError, match="^unknown start 'nuetral': the nearest is 'neutral'"):
        gmmvit.attach(small()[0], "gmm", start="nuetral")
    with pytest.raises(ValueError, match="to have a static method `neutral"):
        gmmvit.attach(small()[0], lambda grid, heads, **place: nn.Identity(), start="neutral")
    caplog.set_level(logging.INFO, "gmmvit")
    gmmvit.attach(small()[0], "gmm", start="paper")
    assert "start='paper' (as asked for)" in caplog.text


def test_the_papers_backbones_keep_the_papers_start(caplog):
    made = {name: gmmvit.create_model("vit", mask=name) for name in PAPERS}
    assert {site.start for each in made.values() for site in each.spatial_sites} == {"paper"} and not caplog.records
    asked = gmmvit.create_model("vit", mask="gmm", start="neutral")
    assert asked.spatial_sites[0].strength == 0


@pytest.mark.parametrize("kind", (GaussianMixtureMask, GaussianBias))
def test_the_formula_of_a_neutral_start(kind, device):
    """1 + sum_k alpha_k exp(...), and (A^2 - A0^2) exp(...), with all gradients."""
    torch.manual_seed(0)
    mask, paper = kind((3, 4), 2, **kind.neutral()).to(device), kind((3, 4), 2).to(device)
    with torch.no_grad():
        for one, other in zip(mask.parameters(), paper.parameters(), strict=True):
            one.copy_(torch.rand_like(one) + 1)
            other.copy_(one)
    expected = paper.weight() + 1
    if kind is GaussianBias:
        amplitude = paper.amplitude[:, None, None]
        expected = paper.weight() * (amplitude**2 - 4) / amplitude**2
    torch.testing.assert_close(mask.weight(), expected, rtol=1e-5, atol=1e-5)
    wanted = torch.randn_like(expected)
    ours = torch.autograd.grad(mask.weight(), list(mask.parameters()), wanted)
    theirs = torch.autograd.grad(expected, list(paper.parameters()), wanted)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", (GaussianMixtureMask, GaussianBias))
def test_neutral_and_other_masks_are_computed_at_once_as_each_by_itself(kind, monkeypatch):
    torch.manual_seed(0)
    masks = [kind((3, 3), 2, base=base) for base in (0.0, 1.0, 0.0, 4.0)]
    alone = [mask.weight() for mask in masks]
    monkeypatch.setattr(together, "on_gpu", lambda tensor: True)
    with together.computed_together(masks):
        assert all(mask in together._computed for mask in masks)
        for mask, weight in zip(masks, alone, strict=True):
            torch.testing.assert_close(mask.weight(), weight)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("way", (ways.FUSED, ways.FLEX))
def test_all_ways_agree_on_a_neutral_mask_that_has_learned(mask, way, monkeypatch):
    if (way == ways.FUSED) != ways.fuses(MASKS[mask]) or MASKS[mask].where == "probabilities":
        pytest.skip("not a way of this mask")
    model, images = small()
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = True
    for site in gmmvit.attach(model, mask):
        for parameter in site.mask.parameters():
            nn.init.normal_(parameter, mean=1.0)
    explicit = logits(model, images)
    table = {"additive": [[0, ways.FUSED]], "multiplicative": [[0, ways.FLEX]]}
    monkeypatch.setitem(ways.TABLE, "cpu", table)
    torch.testing.assert_close(logits(model, images), explicit, rtol=1e-4, atol=1e-4)


def test_a_neutral_mask_is_not_loaded_as_one_of_the_paper():
    for mask in ("gmm", "gab"):
        learned, other = small()[0], small()[0]
        gmmvit.attach(learned, mask, start="neutral")
        gmmvit.attach(other, mask, start="paper")
        with pytest.raises(RuntimeError, match=r"Unexpected key\(s\).*\.base"):
            other.load_state_dict(learned.state_dict())


def test_a_neutral_bias_folds():
    torch.manual_seed(0)
    model, images = timm.create_model("test_vit_relpos", img_size=64).eval(), torch.randn(2, 3, 64, 64)
    redraw(model, images)
    for site in gmmvit.attach(model, "gab"):
        nn.init.constant_(site.mask.amplitude, 1.0)
    expected = logits(model, images)
    torch.testing.assert_close(logits(gmmvit.fold(model), images), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mask", MASKS)
def test_a_mask_that_has_learned_is_kept_frozen_and_exported(mask, tmp_path, caplog):
    model, images = timm.create_model("vit_tiny_patch16_224", **VIT).eval(), torch.randn(4, 3, 32, 32)
    redraw(model, images)
    start = "neutral" if MASKS[mask].neutral else "own"
    per_head = {"share_heads": False} if "share_heads" in options_of(mask) else {}
    for site in gmmvit.attach(model, mask, start=start if MASKS[mask].neutral else None, **per_head):
        for parameter in site.mask.parameters():
            nn.init.normal_(parameter, mean=1.0)
    expected = logits(model, images)
    caplog.clear()
    gmmvit.save(model, tmp_path)
    kept = gmmvit.load(tmp_path)
    assert torch.equal(logits(kept, images), expected) and (start == "own" or not caplog.records)
    assert {site.start for site in kept.spatial_sites} == {start}
    exported = torch.export.export(kept, (images,)).module()
    torch.testing.assert_close(exported(images), expected, rtol=1e-4, atol=1e-4)
    strength = kept.spatial_sites[0].strength
    torch.testing.assert_close(logits(gmmvit.freeze(kept), images), expected, rtol=1e-4, atol=1e-4)
    assert kept.spatial_sites[0].strength == (strength if strength is None else pytest.approx(strength, rel=1e-4))


def test_help_lists_the_options_of_each_mask_with_what_they_do():
    for name, kind in MASKS.items():
        for option, (default, words) in options_of(name).items():
            assert words and f"- `{option}` ({default!r}): {words}" in gmmvit.attach.__doc__
        told = {"grid", "heads", "prefix", "key_grid"} | ({"width"} if kind.needs_width else set())
        assert set(options_of(name)) | told == set(signature(kind).parameters)


def test_decay_does_not_draw_a_neutral_mask_away():
    model, _ = small()
    gmmvit.attach(model, "elm")
    assert "blocks.0.attn.spatial_masks.elm.element" in model.no_weight_decay()
    gmmvit.attach(paper := small()[0], "elm", start="paper")
    assert not any("elm" in name for name in paper.no_weight_decay())


# ---- what is not attached to -----------------------------------------------------------------------------------------


def test_none_is_no_mask():
    model, images = small()
    plain = logits(model, images)
    assert gmmvit.attach(model, "none") == [] and not gmmvit.masks_of(model)
    assert torch.equal(logits(model, images), plain)
    for none in (gmmvit.create_model("vit", mask="none"), timm.create_model("gmmvit_vit", mask="none")):
        assert not gmmvit.masks_of(none)


@pytest.mark.parametrize("inside", (False, True))
@pytest.mark.parametrize("wrapper", ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDP2"))
def test_a_wrapped_model_is_refused_by_name(wrapper, inside, tmp_path):
    from torch.distributed import destroy_process_group, init_process_group
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    model, _ = small()
    init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        wrapped = {
            "DataParallel": nn.DataParallel,
            "DistributedDataParallel": nn.parallel.DistributedDataParallel,
            "FullyShardedDataParallel": lambda each: FullyShardedDataParallel(each, device_id=torch.device("cpu")),
            "FSDP2": lambda each: fully_shard(each, mesh=mesh),
        }[wrapper](model)
        outer = nn.Sequential(wrapped) if inside else wrapped
        kind = "FSDPModule" if wrapper == "FSDP2" else wrapper
        with pytest.raises(ValueError, match=f"is wrapped in {kind}, .*: attach before wrapping$"):
            gmmvit.attach(outer, "gmm", img_size=32)
        assert not gmmvit.masks_of(model)
    finally:
        destroy_process_group()


def test_a_compiled_model_is_unwrapped():
    model, images = small()
    compiled = torch.compile(model, backend="eager")
    plain = logits(compiled, images)
    sites = gmmvit.attach(compiled, "gmm", start="paper")
    assert len(sites) == len(gmmvit.masks_of(compiled)) == 2 and model.spatial_sites == sites
    assert list(gmmvit.masks_of(compiled)) == list(gmmvit.masks_of(model))
    assert not torch.allclose(logits(compiled, images), plain)
    assert gmmvit.detach(compiled) is compiled and type(model) is timm.models.VisionTransformer
    torch.testing.assert_close(logits(compiled, images), plain)
