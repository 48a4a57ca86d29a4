"""The engine's LayerNorm on a CPU against torch's in float64: values, gradients, what it leaves to torch."""

import pytest
import torch
import torch.nn as nn

from gmmvit.core import native
from gmmvit.train import norms

pytestmark = pytest.mark.skipif(native.library() is None, reason="there is no C compiler here")


@pytest.mark.parametrize("dtype, bound", ((torch.float32, 2e-6), (torch.bfloat16, 6e-3)), ids=str)
@pytest.mark.parametrize("shape", ((2, 5, 96), (3, 108), (7, 1, 17), (1, 8), (40, 192)), ids=str)
def test_values_and_gradients_are_those_of_the_formula(shape, dtype, bound):
    torch.manual_seed(0)
    norm = nn.LayerNorm(shape[-1], eps=1e-3)
    nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    x, gradient = (3 * torch.randn(shape) + 1).to(dtype).requires_grad_(), torch.randn(shape).to(dtype)
    exact = x.detach().double().requires_grad_()
    parts = exact - exact.mean(-1, keepdim=True)
    weight, bias = (each.detach().double().requires_grad_() for each in (norm.weight, norm.bias))
    wanted = parts / (parts.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight + bias
    theirs = torch.autograd.grad(wanted, (exact, weight, bias), gradient.double())
    norms.quicken(norm)
    found = norm(x)
    mine = torch.autograd.grad(found, (x, norm.weight, norm.bias), gradient)
    assert found.dtype == mine[0].dtype == dtype and mine[1].dtype == torch.float32
    for each, expected in zip((found, *mine), (wanted, *theirs), strict=True):
        assert (each.double() - expected).abs().max() < bound * expected.abs().max()


def test_sums_have_the_same_bits_on_any_number_of_threads_and_in_any_memory():
    torch.manual_seed(0)
    norm, x = nn.LayerNorm(24), torch.randn(9, 24, 30).transpose(1, 2).requires_grad_()
    norms.quicken(norm)
    before, bits = torch.get_num_threads(), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        bits.append(torch.autograd.grad(norm(x).square().sum(), (x, norm.weight, norm.bias)))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*bits, strict=True))
    assert torch.allclose(norm(x), nn.functional.layer_norm(x, (24,)), atol=1e-5)


def test_what_it_cannot_do_is_torchs():
    for norm, x in (
        (nn.LayerNorm(8, elementwise_affine=False), torch.randn(2, 8)),
        (nn.LayerNorm(8, bias=False), torch.randn(2, 8)),
        (nn.LayerNorm((4, 8)), torch.randn(2, 4, 8)),
        (nn.LayerNorm(8).double(), torch.randn(2, 8).double()),
        (nn.LayerNorm(8), torch.randn(0, 8)),
    ):
        wanted = norm(x)
        norms.quicken(norm)
        assert torch.equal(norm(x), wanted)


def test_a_number_that_is_none_stays_in_its_row():
    norm, x = nn.LayerNorm(8), torch.randn(3, 8)
    norms.quicken(norm)
    x[1, 2] = float("nan")
    assert norm(x).isnan().all(-1).tolist() == [False, True, False]
