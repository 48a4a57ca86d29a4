"""Gaussians of many layers computed at once, and their gradient without atomics, as a GPU takes them."""

import copy

import pytest
import timm
import torch
from timm.utils import ModelEmaV3

import gmmvit
from gmmvit.core import together
from gmmvit.core.gaussians import _Mixture
from gmmvit.core.grids import by_offset, squared_distances
from gmmvit.core.masks import GaussianBias, GaussianMixtureMask


@pytest.mark.parametrize("grid", ((1, 1), (3, 5), (8, 8), (7, 2)))
def test_sums_by_offset(grid):
    torch.manual_seed(0)
    rows, columns = grid
    pairs = torch.randn(3, (rows * columns) ** 2, dtype=torch.float64)
    expected = torch.zeros(3, rows, columns, dtype=torch.float64)
    four = pairs.view(3, rows, columns, rows, columns)
    for y in range(rows):
        for x in range(columns):
            for to_y in range(rows):
                for to_x in range(columns):
                    expected[:, abs(y - to_y), abs(x - to_x)] += four[:, y, x, to_y, to_x]
    torch.testing.assert_close(by_offset(pairs, grid), expected.flatten(1))


@pytest.fixture
def gpu(monkeypatch):
    """What is done for a GPU, done for tensors of the CPU."""
    monkeypatch.setattr(together, "on_gpu", lambda tensor: True)


@pytest.mark.parametrize("kind", (GaussianMixtureMask, GaussianBias))
@pytest.mark.parametrize("grid, key_grid", (((8, 8), None), ((3, 5), None), ((14, 14), None), ((6, 6), (3, 3))))
def test_the_gradient_without_atomics_is_that_of_the_formula(gpu, kind, grid, key_grid):
    torch.manual_seed(0)
    mask = kind(grid, 3, key_grid=key_grid, share_heads=False)
    distances = squared_distances(grid, key_grid)
    d2 = distances.values[distances.index]
    sigma, values = ((each + 1).detach().double().requires_grad_() for each in mask.numbers())
    with torch.no_grad():
        for parameter in mask.parameters():
            parameter.add_(1)
    wanted = torch.randn(3, len(d2))
    height = values.square() if isinstance(mask, GaussianBias) else values
    literal = (height[..., None] * torch.exp(-d2 / (2 * (sigma**2 + mask.eps)[..., None]))).sum(0)
    theirs = torch.autograd.grad(literal, (sigma, values), wanted.double())
    learned = [mask.sigma, mask.alpha if kind is GaussianMixtureMask else mask.amplitude]
    ours = torch.autograd.grad(mask.weight().flatten(1), learned, wanted)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other.view_as(one), rtol=1e-4, atol=1e-4)


def small(name="vit_tiny_patch16_224", **options):
    torch.manual_seed(0)
    options = {"img_size": 64, "depth": 3, "embed_dim": 48, "num_heads": 3} | options
    return timm.create_model(name, num_classes=10, **options), torch.randn(2, 3, *2 * [options["img_size"]])


SWIN = {"img_size": 56, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4), "depth": None, "drop_path_rate": 0.0}


def trained(model, image, steps=2):
    """Losses and parameters of some steps of SGD."""
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.05), []
    for _ in range(steps):
        loss = model.train()(image).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("mask", ("gmm", "gab"))
@pytest.mark.parametrize("name, options", (("vit_tiny_patch16_224", {}), ("swin_tiny_patch4_window7_224", SWIN)))
@pytest.mark.parametrize("checkpointing", (False, True))
def test_layers_learn_together_what_they_learn_alone(monkeypatch, name, options, mask, checkpointing):
    model, image = small(name, **options)
    gmmvit.attach(model, mask)
    model.set_grad_checkpointing(checkpointing)
    twin = copy.deepcopy(model)
    losses, parameters = trained(twin, image)
    monkeypatch.setattr(together, "on_gpu", lambda tensor: True)
    same_losses, same_parameters = trained(model, image)
    assert same_losses == pytest.approx(losses, rel=1e-5)
    for one, other in zip(same_parameters, parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_the_mixtures_of_all_layers_are_one_computation(gpu, monkeypatch):
    model, image = small()
    gmmvit.attach(model, "gmm")
    calls = []
    apply = _Mixture.apply
    monkeypatch.setattr(_Mixture, "apply", lambda *arguments: calls.append(len(arguments)) or apply(*arguments))
    model.train()(image).sum().backward()
    assert len(calls) == 1
    model.blocks[0].attn(torch.randn(2, 17, 48))  # a layer by itself
    assert len(calls) == 2


def test_masks_that_underflow_are_computed_apart_from_those_that_do_not(gpu):
    masks = [GaussianMixtureMask((16, 16), 2, underflow=flag) for flag in (False, True, False, True)]
    alone = [mask.weight() for mask in masks]
    with together.computed_together(masks):
        for mask, weight in zip(masks, alone, strict=True):
            torch.testing.assert_close(mask.weight(), weight)
            assert bool((mask.weight() == 0).any()) == mask.underflow


def test_the_underflow_has_the_gradient_of_a_gpu_too(gpu):
    mask = GaussianMixtureMask((16, 16), 2, underflow=True)
    wanted = torch.rand(2, 256, 256)
    ours = torch.autograd.grad(mask.weight(), (mask.sigma, mask.alpha), wanted)
    squared = squared_distances((16, 16))
    base = (torch.exp(-squared.values.float()) ** 0.5)[squared.index].view(256, 256)
    literal = (mask.alpha[..., None, None] * base ** (1 / (mask.sigma[..., None, None] ** 2 + 1e-5))).sum(0)
    for one, other in zip(ours, torch.autograd.grad(literal, (mask.sigma, mask.alpha), wanted), strict=True):
        assert (one - other).abs().max() <= 1e-6 * other.abs().max()


def test_a_weight_is_never_older_than_its_parameters(gpu):
    model, image = small()
    gmmvit.attach(model, "gmm")
    model.eval()
    x = torch.randn(2, 17, 48)
    with torch.no_grad():
        model(image)
        before = model.blocks[1].attn(x)
        for mask in gmmvit.masks_of(model).values():
            mask.alpha.add_(1.0)
        assert not torch.allclose(model.blocks[1].attn(x), before)
        first = model(image)
        assert torch.equal(model(image), first)
        average = ModelEmaV3(model, decay=0.5).module  # a deep copy after a forward pass
        assert torch.equal(average.eval()(image), first)


def test_reentrant_checkpointing_has_the_same_gradients(gpu):
    from torch.utils.checkpoint import checkpoint

    model, image = small()
    gmmvit.attach(model, "gmm")
    model.train()(image).square().sum().backward()
    expected = [mask.alpha.grad.clone() for mask in gmmvit.masks_of(model).values()]
    model.zero_grad()
    for block in model.blocks:
        block.forward = (lambda forward: lambda x: checkpoint(forward, x, use_reentrant=True))(block.forward)
    model(image.requires_grad_()).square().sum().backward()
    for mask, gradient in zip(gmmvit.masks_of(model).values(), expected, strict=True):
        torch.testing.assert_close(mask.alpha.grad, gradient, rtol=1e-4, atol=1e-6)


def test_a_layer_of_another_model_computes_its_own_inside_a_forward_pass(gpu):
    model, image = small()
    other, _ = small()
    gmmvit.attach(model, "gmm")
    gmmvit.attach(other, "gmm")
    x = torch.randn(2, 17, 48)
    with torch.no_grad():
        other.eval()(image)  # whose weights were computed together, and are old from here on
        for mask in gmmvit.masks_of(other).values():
            mask.alpha.add_(1.0)
        expected, seen = other.blocks[1].attn(x), []
        model.blocks[0].register_forward_hook(lambda *_: seen.append(other.blocks[1].attn(x)))
        model.eval()(image)
    assert torch.equal(seen[0], expected)
