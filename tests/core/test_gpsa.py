"""Gated positional self-attention against its formula written out, and what its start, gate and prefix promise."""

import pytest
import torch

import gmmvit
from gmmvit.core.masks import GatedPositions

PLACES = [  # grid, key grid, prefix of queries and keys, heads
    ((4, 4), None, (0, 0), 4),
    ((3, 5), None, (0, 0), 3),
    ((3, 5), None, (2, 2), 5),
    ((4, 6), (2, 3), (1, 0), 2),
]


def literal(probabilities, coefficients, gate, grid, key_grid, prefix):
    """(1 - s(g)) P + s(g) softmax(a d^2 + b dx + c dy) of patches, pair by pair, in float64."""
    (rows, columns), (key_rows, key_columns), (before, key_before) = grid, key_grid or grid, prefix
    down, right = rows / key_rows, columns / key_columns  # steps of a query's grid in one of the key's, at least 1
    score = torch.zeros(len(gate), rows * columns, key_rows * key_columns, dtype=torch.float64)
    for i in range(rows * columns):
        for j in range(key_rows * key_columns):
            dy = (j // key_columns + 0.5) * down - (i // columns + 0.5)
            dx = (j % key_columns + 0.5) * right - (i % columns + 0.5)
            a, b, c = coefficients.unbind(1)
            score[:, i, j] = a * (dx**2 + dy**2) + b * dx + c * dy
    share = (1 / (1 + (-gate).exp()))[:, None, None]
    patches = probabilities[..., before:, key_before:]
    there = patches.sum(-1, keepdim=True) if key_before else 1  # what a row has on patches
    mixed = (1 - share) * patches + share * score.softmax(-1) * there
    columns = torch.cat([probabilities[..., before:, :key_before], mixed], -1)
    return torch.cat([probabilities[..., :before, :], columns], -2)


@pytest.mark.parametrize("grid, key_grid, prefix, heads", PLACES)
def test_values_and_gradients_follow_the_formula(grid, key_grid, prefix, heads):
    torch.manual_seed(0)
    mask = GatedPositions(grid, heads, key_grid=key_grid, prefix=prefix)
    for parameter in mask.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    probabilities = torch.randn(2, heads, *mask.counts).softmax(-1).requires_grad_()
    leaves = [probabilities, mask.coefficients, mask.gate]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    found, expected = mask(probabilities), literal(*exact, grid, key_grid, prefix)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    wanted = torch.randn_like(expected)
    ours = torch.autograd.grad(found, leaves, wanted.float())
    for one, other in zip(ours, torch.autograd.grad(expected, exact, wanted), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.sum(-1), torch.ones_like(found.sum(-1)))
    before, key_before = prefix
    assert torch.equal(found[..., :before, :], probabilities[..., :before, :])  # a class token's row, and its column
    assert torch.equal(found[..., :key_before], probabilities[..., :key_before])


def test_the_papers_start_looks_at_a_square_of_offsets():
    """Nine heads: each patch in the middle looks at another of the 3 x 3 around it, the sharper the higher locality."""
    weight = GatedPositions((5, 5), 9).weight()[:, 12].view(9, 5, 5)
    seen = {divmod(int(each.argmax()), 5) for each in weight}
    assert seen == {(y, x) for y in (1, 2, 3) for x in (1, 2, 3)}
    sharp = GatedPositions((5, 5), 9, locality=4.0).weight()[:, 12].view(9, 5, 5)
    assert (sharp.flatten(1).amax(1) > weight.flatten(1).amax(1)).all() and sharp.flatten(1).amax(1).min() > 0.9
    third = weight[3] / weight[3].max()  # head 3 of 9: -|d - o|^2, o = (dy, dx) = (-1, 0)
    y, x = torch.meshgrid(torch.arange(5.0), torch.arange(5.0), indexing="ij")
    torch.testing.assert_close(third, torch.exp(-((y - 1) ** 2) - (x - 2) ** 2))
    assert GatedPositions((5, 5), 9).gate.tolist() == [1.0] * 9


def test_it_learns_four_numbers_a_head():
    mask = GatedPositions((4, 4), 6)
    assert sum(parameter.numel() for parameter in mask.parameters()) == 4 * 6
    assert torch.isfinite(mask.weight()).all() and (mask.weight() > 0).all()  # two heads are beyond the 2 x 2 square


def test_tokens_in_another_order_are_the_same_patches():
    order = torch.tensor([4, 1, 5, 0, 3, 2])
    mask, other = GatedPositions((2, 3), 2), GatedPositions((2, 3), 2)
    other.load_state_dict(mask.state_dict())
    other.arrange(order, order)
    probabilities = torch.randn(1, 2, 6, 6).softmax(-1)
    expected = mask(probabilities)[..., order, :][..., order]
    torch.testing.assert_close(other(probabilities[..., order, :][..., order]), expected)


def test_it_keeps_the_type_of_half_precision():
    mask = GatedPositions((3, 3), 2, prefix=1)
    probabilities = torch.randn(1, 2, 10, 10).softmax(-1)
    low = mask(probabilities.bfloat16())
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), mask(probabilities), rtol=0.03, atol=0.01)


def test_bad_options_get_a_sentence():
    for options, said in (({"locality": "near"}, "^locality: expected a finite number"), ({"gate": True}, "^gate: ")):
        with pytest.raises(ValueError, match=said):
            GatedPositions((3, 3), 2, **options)
    assert gmmvit.MASKS["gpsa"] is GatedPositions
