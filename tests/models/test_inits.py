"""Initialisations of attention against what their papers define: products near the identity, maps that are shifts."""

import math

import pytest
import timm
import torch
import torch.nn.functional as F

import gmmvit
from gmmvit.models import create_model, initialise
from gmmvit.models.inits import shifts


def products(attention):
    """W_Q W_K^T of each head (heads, width, width), and W_V W_out, of row vectors x W."""
    width, heads = attention.qkv.in_features, attention.num_heads
    query, key, value = attention.qkv.weight.detach().double().chunk(3)
    query, key = (each.view(heads, -1, width) for each in (query, key))
    return query.transpose(-2, -1) @ key, value.T @ attention.proj.weight.detach().double().T


def uniform(width, seed):
    """Independent draws of Z, of variance 1 / width."""
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.rand(width, width, dtype=torch.float64, generator=generator) - 1) * (3 / width) ** 0.5


@pytest.fixture(scope="module")
def mimetic():
    torch.manual_seed(0)
    return initialise(create_model("vit_xs"), "mimetic")


def test_mimetic_values_are_a_noisy_negative_identity(mimetic):
    """W_V W_out + 0.4 I = 0.4 Z: mean 0, sd 0.4 / sqrt(width), flat between its bounds, also on the diagonal."""
    rest = torch.stack([products(block.attn)[1] for block in mimetic.blocks]) + 0.4 * torch.eye(96)
    sd = 0.4 / math.sqrt(96)
    assert rest.mean().abs() < 5 * sd / math.sqrt(rest.numel()) and rest.std() == pytest.approx(sd, rel=0.02)
    assert rest.diagonal(dim1=1, dim2=2).std() == pytest.approx(sd, rel=0.1)
    assert rest.abs().max() <= math.sqrt(3) * sd * (1 + 1e-5)
    assert (rest.abs() > 0.9 * math.sqrt(3) * sd).double().mean() == pytest.approx(0.1, abs=0.01)


def test_mimetic_queries_and_keys_are_the_nearest_of_their_rank_to_a_noisy_identity(mimetic):
    """Rank 16 of 96, with the 16 largest singular values of 0.7 Z + 0.7 I, and a diagonal that stands out."""
    expected = torch.stack(
        [torch.linalg.svdvals(0.7 * uniform(96, seed) + 0.7 * torch.eye(96))[:16] for seed in range(36)]
    )
    found = torch.cat([products(block.attn)[0] for block in mimetic.blocks])  # (layers * heads, width, width)
    values = torch.linalg.svdvals(found)
    assert values[:, 16:].max() < 1e-6 * values.max()
    torch.testing.assert_close(values[:, :16].mean(0), expected.mean(0), rtol=0.03, atol=0)
    other = found - torch.diag_embed(found.diagonal(dim1=1, dim2=2))
    assert found.diagonal(dim1=1, dim2=2).mean() > 3 * other.abs().mean() and abs(other.mean()) < 0.01
    query, key = mimetic.blocks[0].attn.qkv.weight.detach()[:192].view(2, 6, 16, 96)
    torch.testing.assert_close(query @ query.mT, key @ key.mT, atol=1e-5, rtol=1e-5)  # the singular values, shared out
    assert not torch.allclose(found[0], found[1], atol=1e-2)  # each head has noise of its own


def test_mimetic_attention_looks_at_itself(mimetic):
    """Patches of normalised tokens attend to themselves more than a fresh model's do, in every layer and head."""
    torch.manual_seed(1)
    images, plain = torch.randn(2, 3, 32, 32), create_model("vit_xs")
    for model, sharp in ((mimetic, True), (plain, False)):
        with torch.no_grad(), gmmvit.attention_maps(model.eval()) as maps:
            model(images)
        own = torch.stack([map.diagonal(dim1=-2, dim2=-1).mean((0, -1)) for map in maps.values()])  # (layers, heads)
        assert (own > 2 / 64).all() == sharp


SIZES = {(14, 64): 0.5, (8, 16): 0.9}  # side of the grid, channels a head: how much attention an impulse has, at least


@pytest.mark.parametrize("side, channels", SIZES)
def test_impulse_attention_of_the_positions_is_a_shift_for_each_head(side, channels):
    torch.manual_seed(0)
    size = {"img_size": side * 4, "patch_size": 4, "depth": 1}
    model = timm.create_model("vit_tiny_patch16_224", **size) if channels == 64 else create_model("vit_xs")
    initialise(model, "impulse")
    positions = model.pos_embed.detach()[0, -side * side :]
    tokens, (product, values) = F.layer_norm(positions, positions.shape[-1:]).double(), products(model.blocks[0].attn)
    attention = (tokens @ product @ tokens.T / math.sqrt(channels)).softmax(-1)  # (heads, N, N)
    steps = []
    for each in attention:
        seen = [(int(j) // side - i // side, int(j) % side - i % side) for i, j in enumerate(each.argmax(-1))]
        dy, dx = max(set(seen), key=seen.count)
        there = [i for i in range(side**2) if 0 <= i // side + dy < side and 0 <= i % side + dx < side]
        assert sum(seen[i] == (dy, dx) for i in there) / len(there) > 0.9
        assert each[there, [i + dy * side + dx for i in there]].mean() > SIZES[side, channels]
        steps.append((dy, dx))
    assert len(set(steps)) == len(steps) and all(-1 <= step <= 1 for pair in steps for step in pair)
    assert values.diagonal().mean() == pytest.approx(-0.4, abs=0.05)


def test_shifts_are_permutations_with_an_edge():
    torch.manual_seed(0)
    found = shifts((3, 4), 9)
    assert sorted(found.sum((1, 2)).tolist()) == [
        6,
        6,
        6,
        6,
        8,
        8,
        9,
        9,
        12,
    ]
    assert found.sum(-1).max() == 1 and found.sum(-2).max() == 1 and shifts((3, 4), 12).shape == (12, 12, 12)


def test_positions_become_no_quieter_than_the_papers_and_those_of_the_class_token_stay_in_proportion():
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=1, num_heads=3)
    before = model.pos_embed.detach().clone()
    initialise(model, "impulse")
    assert model.pos_embed.square().mean().sqrt().item() == pytest.approx(0.36, rel=1e-4)
    torch.testing.assert_close(
        model.pos_embed / model.pos_embed[0, 0, 0], before / before[0, 0, 0], rtol=1e-4, atol=1e-4
    )
    loud = create_model("vit_xs", readout="token")
    before = loud.pos_embed.detach().clone()
    assert torch.equal(initialise(loud, "impulse").pos_embed, before)


@pytest.mark.parametrize("name", ["mimetic", "impulse"])
def test_a_model_goes_forward_and_backward_also_with_a_mask_and_nothing_else_changes(name):
    torch.manual_seed(0)
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 5}
    model = timm.create_model("deit_tiny_distilled_patch16_224", **options)
    gmmvit.attach(model, "gab", start="paper")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert initialise(model, name) is model
    changed = {
        key.rpartition(".")[0] for key, value in model.state_dict().items() if not torch.equal(value, before[key])
    }
    attentions = {f"blocks.{i}.attn.{layer}" for i in range(2) for layer in ("qkv", "proj")}
    assert changed - {""} == attentions  # "": pos_embed
    torch.stack([each.square().mean() for each in model(torch.randn(2, 3, 32, 32))]).sum().backward()
    assert all(block.attn.qkv.weight.grad.isfinite().all() for block in model.blocks)


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "vit_relpos_small_patch16_224"])
def test_models_without_a_position_embedding_have_no_impulses(name):
    small = (
        {"embed_dim": 24, "depths": (1, 1), "num_heads": (2, 4)} if "swin" in name else {"depth": 1, "embed_dim": 48}
    )
    model = timm.create_model(name, img_size=56 if "swin" in name else 64, num_classes=5, **small)
    initialise(model, "mimetic")
    with torch.no_grad():
        assert model.eval()(torch.randn(1, 3, *model.patch_embed.img_size)).isfinite().all()
    with pytest.raises(ValueError, match="has no position embedding of one grid of patches"):
        initialise(model, "impulse")


SAID = {  # model, initialisation
    ("vit_xs", "mimetik"): "^unknown initialisation 'mimetik': the nearest is 'mimetic'",
    (
        "cait",
        "mimetic",
    ): "^blocks.0.attn: expected one linear layer qkv, query first, and one proj, got another T",
    ("t2t", "mimetic"): "expected queries, keys and values of the width of the tokens, got 27 to 192 and 64 to 64",
    ("resnet10t", "mimetic"): "^ResNet has no attention to initialise: expected layers with qkv and proj",
}


@pytest.mark.parametrize("name, init", SAID)
def test_sentences(name, init):
    model = timm.create_model(name) if name.startswith("resnet") else create_model(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=SAID[name, init]):
        initialise(model, init)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
