"""An additive mask beside a position bias of the layer itself: the same scores and gradients, without the batch."""

import pytest
import timm
import torch
from conftest import redraw

import gmmvit
from gmmvit.core.maps import attention_maps

MODELS = {  # where the bias comes from
    "vit_relpos": "called with the scores",
    "swin": "a table, added",
    "vit": "",
}


def built(name, *masks, **options):
    model = timm.create_model(f"gmmvit_{name}")
    for mask in masks:
        gmmvit.attach(model, mask, start="paper", **(options if mask == "gab" else {}))
    return redraw(model, torch.zeros(1, 3, 32, 32)).eval()


def met(model, images):
    """The shapes that the first layer's Gaussian was called with."""
    shapes = []
    mask = next(module for name, module in model.named_modules() if name.endswith("spatial_masks.gab"))
    hook = mask.register_forward_pre_hook(lambda module, args: shapes.append(tuple(args[0].shape)))
    model(images)
    hook.remove()
    return shapes


@pytest.mark.parametrize("name", MODELS)
def test_the_gaussian_meets_the_bias_and_not_the_batch(name):
    (shape,) = set(met(built(name, "gab", share_heads=False), torch.randn(5, 3, 32, 32)))
    assert (shape[0] == 1) == bool(MODELS[name])


def scores_by_hand(attention, x):
    """softmax((Q K^T / sqrt(d)) * M + B_rel + B) of timm's RelPosAttention, dense; M is 1 without a mixture."""
    masks = attention.spatial_masks
    queries, keys, _ = attention.qkv(x).unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
    scores = queries @ keys.transpose(-2, -1) * attention.scale
    own = attention.rel_pos.get_bias()
    if "gmm" not in masks:
        return (scores + own + masks["gab"].weight()).softmax(-1)
    first = list(masks)[0]
    if first == "gmm":
        return (scores * masks["gmm"].weight() + masks["gab"].weight() + own).softmax(-1)
    return ((scores + masks["gab"].weight()) * masks["gmm"].weight() + own).softmax(-1)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("masks", [("gab",), ("gmm", "gab"), ("gab", "gmm")])
def test_probabilities_and_gradients_are_those_of_the_formula(masks, share):
    model = built("vit_relpos", *masks, share_heads=share)
    attention = model.blocks[0].attn
    x, weights = torch.randn(2, 64, 192), torch.randn(2, 12, 64, 64)
    parameters = {name: p for name, p in attention.named_parameters() if "rel_pos" in name or "masks" in name}

    got, seen = [], []
    hook = attention.attn_drop.register_forward_hook(lambda module, args, out: seen.append(out))
    attention(x)
    hook.remove()
    for probabilities in (seen[0], scores_by_hand(attention, x)):
        loss = (probabilities * weights).sum()
        got.append((probabilities.detach(), torch.autograd.grad(loss, list(parameters.values()))))
    torch.testing.assert_close(got[0][0], got[1][0], atol=1e-6, rtol=1e-4)
    for name, ours, theirs in zip(parameters, got[0][1], got[1][1], strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-3, msg=name)
        assert theirs.abs().max() > 0, name


def test_a_model_in_bfloat16_keeps_its_scores_there():
    model = built("swin", "gab").bfloat16()
    with attention_maps(model, layers=0) as maps:
        model(torch.randn(2, 3, 32, 32).bfloat16())
    (map_,) = maps.values()
    assert map_.dtype == torch.bfloat16
