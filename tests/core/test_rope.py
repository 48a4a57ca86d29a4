"""Rotary positions against complex numbers, and what they promise: a score knows the offset of its patches alone."""

import pytest
import timm
import torch
from timm.layers.pos_embed_sincos import RotaryEmbeddingMixed, apply_rot_embed_cat

import gmmvit
from gmmvit.core.masks import RotaryPositions

PLACES = [((4, 4), None, (0, 0)), ((3, 5), None, (0, 0)), ((3, 5), None, (2, 2)), ((4, 6), (2, 3), (1, 0))]


def literal(query, key, u, v, grid, key_grid, prefix):
    """Re(sum_t q_t conj(k_t)) of complex channels, those of a patch times exp(i (u x + v y)), in float64."""
    turned = []
    for tokens, its, before in ((query, grid, prefix[0]), (key, key_grid or grid, prefix[1])):
        coarse = grid[0] / its[0], grid[1] / its[1]
        places = [
            ((i + 0.5) * coarse[0] - 0.5, (j + 0.5) * coarse[1] - 0.5) for i in range(its[0]) for j in range(its[1])
        ]
        y, x = torch.tensor(places, dtype=torch.float64).unbind(1)
        angle = u[:, None] * x[:, None] + v[:, None] * y[:, None]  # (heads or 1, N, d / 2)
        turn = torch.cat([torch.ones(len(u), before, u.shape[1]).to(torch.complex128), torch.exp(1j * angle)], 1)
        turned.append(torch.complex(tokens[..., 0::2], tokens[..., 1::2]) * turn)
    return (turned[0] @ turned[1].conj().transpose(-2, -1)).real


@pytest.mark.parametrize("mixed", (False, True))
@pytest.mark.parametrize("grid, key_grid, prefix", PLACES)
def test_values_and_gradients_follow_the_formula(grid, key_grid, prefix, mixed):
    torch.manual_seed(0)
    mask = RotaryPositions(grid, 3, key_grid=key_grid, prefix=prefix, width=8, mixed=mixed)
    queries, keys = mask.counts
    query, key = torch.randn(2, 3, queries, 8, requires_grad=True), torch.randn(2, 3, keys, 8, requires_grad=True)
    leaves = [query, key, *mask.parameters()]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    if mixed:
        u, v = exact[2]
    else:  # 100^(-t / (d / 4)) for t = 0, 1: first along x, then along y
        u = torch.tensor([[1.0, 0.1, 0.0, 0.0]], dtype=torch.float64)
        v = u.roll(2, 1)
    found, expected = mask(query, key.transpose(-2, -1)), literal(*exact[:2], u, v, grid, key_grid, prefix)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    wanted = torch.randn_like(expected)
    ours = torch.autograd.grad(found, leaves, wanted.float())
    for one, other in zip(ours, torch.autograd.grad(expected, exact, wanted), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mixed", (False, True))
def test_a_score_depends_on_the_offset_alone(mixed):
    """One query and one key at every patch: all pairs of one offset have one score, and other offsets another."""
    torch.manual_seed(0)
    mask = RotaryPositions((4, 5), 2, width=8, mixed=mixed)
    query, key = (torch.randn(2, 1, 8).expand(2, 20, 8) for _ in range(2))
    scores = mask(query, key.transpose(-2, -1)).detach()
    by_offset = {}
    for i in range(20):
        for j in range(20):
            by_offset.setdefault((j // 5 - i // 5, j % 5 - i % 5), []).append(scores[:, i, j])
    assert all((torch.stack(each).std(0, correction=0) < 1e-5).all() for each in by_offset.values())
    means = torch.stack([each[0] for each in by_offset.values()])
    assert len(by_offset) == 7 * 9 and (torch.pdist(means) > 1e-3).float().mean() > 0.95


def test_without_a_turn_at_the_first_patch_and_for_prefix_tokens():
    mask = RotaryPositions((3, 3), 2, prefix=1, width=8)
    query, key = torch.randn(1, 2, 10, 8), torch.randn(1, 2, 10, 8)
    turned, plain = mask(query, key.transpose(-2, -1)), query @ key.transpose(-2, -1)
    torch.testing.assert_close(turned[..., :2, :2], plain[..., :2, :2])
    assert not torch.allclose(turned[..., 2:, 2:], plain[..., 2:, 2:], atol=0.1)


@pytest.mark.parametrize("mixed", (False, True))
def test_tokens_in_another_order_are_the_same_patches(mixed):
    order = torch.tensor([4, 1, 5, 0, 3, 2])
    mask, other = (RotaryPositions((2, 3), 2, width=8, mixed=mixed) for _ in range(2))
    other.load_state_dict(mask.state_dict())
    other.arrange(order, order)
    query, key = torch.randn(2, 1, 2, 6, 8)
    expected = mask(query, key.transpose(-2, -1))[..., order, :][..., order]
    torch.testing.assert_close(other(query[:, :, order], key[:, :, order].transpose(-2, -1)), expected)


def test_mixed_frequencies_are_those_of_timm():
    """timm's own module, with the same frequencies, turns a query as the mask does."""
    torch.manual_seed(0)
    theirs = RotaryEmbeddingMixed(dim=24, depth=1, num_heads=3)  # (2, depth, heads, width / 2)
    mask = RotaryPositions((4, 6), 3, width=8, mixed=True)
    assert mask.frequencies.shape == theirs.freqs[:, 0].shape
    norms = mask.frequencies.square().sum(0).sqrt()  # of (u, v): 10^(-t / (d / 4)), in two directions at right angles
    torch.testing.assert_close(norms, torch.tensor([1.0, 10**-0.5, 1.0, 10**-0.5]).expand(3, 4))
    mask.frequencies.data.copy_(theirs.freqs[:, 0])
    query, key = torch.randn(1, 3, 24, 8), torch.randn(1, 3, 24, 8)
    expected = apply_rot_embed_cat(query, theirs.get_embed([4, 6])[0])
    torch.testing.assert_close(mask.operands(query, key)[0], expected)


def test_the_base_of_the_frequencies_is_the_papers_or_what_is_said():
    def slowest(**options):
        turn = RotaryPositions((1, 2), 1, width=8, **options).turns()[0]
        return turn[0, 1, :8].asin()[2].item()  # of the second pair, at x = 1

    assert slowest() == pytest.approx(100**-0.5) and slowest(theta=16.0) == pytest.approx(0.25)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"width": 6}, "^width: expected a multiple of 4 channels a head"),
        ({"width": None}, "^width: expected a multiple of 4"),
        ({"theta": 0}, "^theta: expected a base of frequencies above 0, got 0"),
        ({"mixed": "yes"}, "^mixed: expected True or False, got 'yes'"),
    ],
)
def test_bad_options_get_a_sentence(options, said):
    with pytest.raises(ValueError, match=said):
        RotaryPositions((3, 3), 2, **{"width": 8} | options)


def test_a_model_whose_heads_have_no_multiple_of_four_channels_is_refused_and_left_as_it_was():
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=18, depth=1, num_heads=3)
    before = list(model.state_dict())
    with pytest.raises(ValueError, match="^width: expected a multiple of 4 channels a head, .*got 6"):
        gmmvit.attach(model, "rope")
    assert list(model.state_dict()) == before and not gmmvit.masks_of(model)
