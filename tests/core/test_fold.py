"""Folding a trained Gaussian bias into the position bias: the same logits, no parameters of its own, the plain path."""

import copy
import pickle

import pytest
import timm
import torch
from conftest import redraw

import gmmvit

FOLDABLE = {
    "vit_relpos_small_patch16_224": {"img_size": 64},  # RelPosMlp
    "vit_relpos_base_patch32_plus_rpn_256": {"img_size": 64},  # RelPosMlp of Swin-v2's kind, with its gain
    "vit_srelpos_small_patch16_224": None,  # one bias for all layers: nothing of a layer's own to fold into
    "swin_tiny_patch4_window7_224": {},
    "beit_base_patch16_224": None,
}


def with_bias(name, share_heads=True, **options):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=7, **options)
    image = torch.randn(2, 3, *model.pretrained_cfg["input_size"][1:]) if not options else torch.randn(2, 3, 64, 64)
    redraw(model, image)
    gmmvit.attach(model, "gab", start="paper", img_size=image.shape[-1], share_heads=share_heads)
    for i, mask in enumerate(gmmvit.masks_of(model).values()):  # every layer and head has learned something else
        mask.amplitude.data += 0.3 * torch.randn_like(mask.amplitude) + 0.1 * i
        mask.sigma.data -= torch.rand_like(mask.sigma) * 3
    return model.eval(), image


@pytest.mark.parametrize("share_heads", (True, False))
@pytest.mark.parametrize("name", [name for name, options in FOLDABLE.items() if options is not None])
def test_folding_keeps_the_logits_and_leaves_no_parameter(name, share_heads):
    model, image = with_bias(name, share_heads, **FOLDABLE[name])
    plain = sum(p.numel() for p in timm.create_model(name, num_classes=7, **FOLDABLE[name]).parameters())
    without = copy.deepcopy(model)
    gmmvit.detach(without)
    with torch.no_grad():
        expected = model(image)
        folded = gmmvit.fold(model)
        assert folded is model
        torch.testing.assert_close(model(image), expected, atol=1e-5, rtol=1e-5)
        assert (without(image) - expected).abs().max() > 1e-3  # the bias matters
    assert not gmmvit.masks_of(model) and not [n for n, _ in model.named_parameters() if "gab" in n]
    assert sum(p.numel() for p in model.parameters()) <= plain
    again = pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        torch.testing.assert_close(again(image), expected, atol=1e-5, rtol=1e-5)


def test_a_rel_pos_bias_table_takes_the_bias_up():
    from timm.models.vision_transformer_relpos import VisionTransformerRelPos

    torch.manual_seed(0)
    options = dict(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=5, rel_pos_type="bias")
    for prefix in (False, True):
        pool = {"class_token": True, "global_pool": "token"} if prefix else {}
        model = VisionTransformerRelPos(**options, **pool).eval()
        image = torch.randn(2, 3, 32, 32)
        redraw(model, image)
        gmmvit.attach(model, "gab", start="paper", img_size=32)
        with torch.no_grad():
            expected = model(image)
            table = model.blocks[0].attn.rel_pos.relative_position_bias_table.clone()
            gmmvit.fold(model)
            torch.testing.assert_close(model(image), expected, atol=1e-5, rtol=1e-5)
        grown = model.blocks[0].attn.rel_pos.relative_position_bias_table - table
        assert grown.max().item() == pytest.approx(4.0, abs=1e-5)  # A^2 on the diagonal: A = 2
        if prefix:
            assert torch.equal(grown[-3:], torch.zeros(3, 3))  # the class token's entries stay


@pytest.mark.parametrize("name", ("vit_tiny_patch16_224", "vit_srelpos_small_patch16_224"))
def test_a_model_without_a_position_bias_in_its_layers_says_so_and_stays_as_it_is(name):
    model = timm.create_model(name, num_classes=7, img_size=64).eval()
    image = torch.randn(1, 3, 64, 64)
    redraw(model, image)
    gmmvit.attach(model, "gab", start="paper", img_size=64)
    with torch.no_grad():
        before = model(image)
        with pytest.raises(ValueError, match="blocks.0.attn .* has no relative position bias of its own to fold into"):
            gmmvit.fold(model)
        assert torch.equal(model(image), before) and gmmvit.masks_of(model)


def test_masks_that_multiply_and_models_without_masks_cannot_be_folded():
    model = timm.create_model("vit_relpos_small_patch16_224", img_size=64)
    with pytest.raises(ValueError, match="has no mask to fold"):
        gmmvit.fold(model)
    gmmvit.attach(model, "gmm", start="paper", img_size=64)
    with pytest.raises(ValueError, match="GaussianMixtureMask cannot be folded"):
        gmmvit.fold(model)
