"""Receptive fields against fields that are known, and the fit of a Gaussian against Gaussians."""

import numpy as np
import pytest
import timm
import torch
import torch.nn as nn
from conftest import redraw

from gmmvit.analysis.fields import AT_ONCE, VoidField, central_patch, effective_receptive_field, fit_gaussian


class Blur(nn.Module):
    """Features that are a known positive blur of the image: the field is the kernel."""

    num_features = 4

    def __init__(self, kernel):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, kernel.shape[-1], padding=kernel.shape[-1] // 2, bias=False)
        self.conv.weight.data.copy_(kernel.expand(4, 3, -1, -1))

    def forward(self, x):
        return self.forward_features(x).mean((2, 3))

    def forward_features(self, x):
        return self.conv(x)


def test_the_field_of_a_blur_is_its_kernel():
    line = torch.exp(-((torch.arange(9.0) - 4) ** 2) / (2 * 1.5**2))
    kernel = line[:, None] * line
    field = effective_receptive_field(Blur(kernel), [torch.randn(2, 3, 15, 15)] * 2)
    expected = np.zeros((15, 15))
    expected[3:12, 3:12] = (kernel / kernel.sum()).numpy()
    np.testing.assert_allclose(field, expected, atol=1e-7)
    assert field.sum() == pytest.approx(1)


def test_only_the_asked_number_of_images_counts_and_batches_do_not():
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=3).eval()
    images = torch.randn(6, 3, 64, 64)
    redraw(model, images)
    whole = effective_receptive_field(model, [images[:5]])
    assert whole.shape == (64, 64) and (whole >= 0).all()
    parts = effective_receptive_field(model, (images[i : i + 2] for i in range(0, 6, 2)), images=5)
    np.testing.assert_allclose(parts, whole, atol=1e-9)
    np.testing.assert_array_equal(parts, effective_receptive_field(model, images.split(2), images=5))


def test_the_model_is_left_as_it_was_and_large_batches_are_split():
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=3)
    model.head.requires_grad_(False)
    frozen = [parameter.requires_grad for parameter in model.parameters()]
    images = torch.randn(AT_ONCE + 3, 3, 32, 32)
    sizes = []
    model.patch_embed.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
    field = effective_receptive_field(model, [images], features="before the norm")
    assert max(sizes) == AT_ONCE and field.sum() == pytest.approx(1)
    assert [parameter.requires_grad for parameter in model.parameters()] == frozen and model.training
    assert not images.requires_grad and all(parameter.grad is None for parameter in model.parameters())


def test_each_image_is_rectified_before_the_mean():
    class Product(Blur):
        def forward_features(self, x):
            return super().forward_features(x) * x.mean((1, 2, 3), keepdim=True).sign()

    kernel = torch.ones(3, 3)
    images = torch.cat([torch.ones(1, 3, 9, 9), -torch.ones(1, 3, 9, 9)])
    field = effective_receptive_field(Product(kernel), [images])
    np.testing.assert_allclose(field[3:6, 3:6], 1 / 9, atol=1e-7)  # the second image's gradient is negative: left out


@pytest.mark.parametrize("grid, index", (((14, 14), 90), ((7, 7), 24), ((8, 8), 27), ((2, 2), 0)))
def test_the_central_patch(grid, index):
    row, column = central_patch(grid)
    assert row * grid[1] + column == index
    if grid[0] % 2 == 0:
        assert index == grid[0] ** 2 // 2 - (grid[0] // 2 + 1)  # the paper's formula


MODELS = ("vit_relpos_small_patch16_224", "deit_tiny_patch16_224", "cait_xxs24_224", "swin_tiny_patch4_window7_224",
          "xcit_nano_12_p16_224", "resnet18", "gmmvit_pit", "beit_base_patch16_224")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_field_looks_at_the_middle_of_any_model(name):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=3).eval()
    size = model.pretrained_cfg["input_size"][-1]
    images = torch.randn(1, 3, size, size)
    redraw(model, images)
    field = effective_receptive_field(model, [images])
    assert field.shape == (size, size) and field.sum() == pytest.approx(1)
    if name not in ("resnet18", "swin_tiny_patch4_window7_224", "xcit_nano_12_p16_224"):  # which see farther
        rows, columns = np.indices(field.shape)
        near = (abs(rows - size / 2) < size / 8 + 8) & (abs(columns - size / 2) < size / 8 + 8)
        assert field[near].mean() > field[~near].mean()


@pytest.mark.parametrize("name", ("xcit_nano_12_p16_224", "resnet18", "gmmvit_vit"))
def test_an_image_alone_has_the_field_it_has_beside_itself(name):
    """torch's BatchNorm has a wrong gradient for one image on a CPU, where tokens come before channels (XCiT)."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=3).eval()
    size = model.pretrained_cfg["input_size"][-1]
    image = torch.randn(1, 3, size, size)
    redraw(model, image)
    alone, twice = (effective_receptive_field(model, [images]) for images in (image, image.repeat(2, 1, 1, 1)))
    np.testing.assert_allclose(alone, twice, atol=1e-5 * twice.max())


def test_the_void_case_is_said_and_has_an_alternative():
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=3)
    images = torch.randn(2, 3, 64, 64)
    with pytest.raises(VoidField, match="constant .its norm has gain 1.*expected features='before the norm'"):
        effective_receptive_field(model, [images])
    field = effective_receptive_field(model, [images], features="before the norm")
    assert field.sum() == pytest.approx(1) and field.max() > 10 * field.mean()
    relative = timm.create_model("vit_relpos_small_patch16_224", img_size=64)
    assert effective_receptive_field(relative, [images]).sum() == pytest.approx(1)  # its norm comes after the mean
    with pytest.raises(ValueError, match="has no norm after its last layer"):
        effective_receptive_field(relative, [images], features="before the norm")


# ---- fits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side, sigma_x, sigma_y", ((14, 1.5, 2.5), (14, 3.0, 3.0), (8, 1.2, 0.9), (40, 6.0, 4.0)))
def test_a_gaussian_is_recovered(side, sigma_x, sigma_y):
    rows, columns = np.indices((side, side))
    x, y = 0.45 * side, 0.5 * side
    data = 0.7 * np.exp(-((columns - x) ** 2) / (2 * sigma_x**2) - (rows - y) ** 2 / (2 * sigma_y**2))
    fit = fit_gaussian(data, subtract_minimum=False)
    assert (fit.sigma_x, fit.sigma_y) == (pytest.approx(sigma_x, abs=1e-3), pytest.approx(sigma_y, abs=1e-3))
    assert (fit.x, fit.y) == (pytest.approx(x, abs=1e-3), pytest.approx(y, abs=1e-3)) and fit.r2 > 0.9999
    assert fit.amplitude == pytest.approx(0.7 * 2 * np.pi * sigma_x * sigma_y, rel=1e-3)


def test_the_minimum_is_taken_away_and_an_offset_costs_no_r2():
    rows, columns = np.indices((14, 14))
    data = np.exp(-((columns - 6) ** 2 + (rows - 6) ** 2) / (2 * 1.2**2)) - 5
    fit = fit_gaussian(data)
    assert fit.sigma_x == pytest.approx(1.2, abs=1e-3) and fit.r2 > 0.9999


def test_noise_is_not_a_gaussian():
    r2 = [fit_gaussian(np.random.default_rng(seed).normal(size=(14, 14))).r2 for seed in range(5)]
    assert max(r2) < 0.1


def test_a_map_that_cannot_be_fitted_is_refused():
    for values in (np.zeros(9), np.full((4, 4), np.nan)):
        with pytest.raises(ValueError, match="expected a finite map"):
            fit_gaussian(values)
