"""Figures of masks, maps and images: what they show is what they were given."""

import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle

import gmmvit
from gmmvit.analysis.masks import mixing, relative_kernel
from gmmvit.analysis.samples import attention_heat
from gmmvit.paper import pictures


def shown(figure):
    """The images of a figure that are not colour bars."""
    return [image for axes in figure.axes if axes.get_visible() for image in axes.images]


@pytest.mark.parametrize("kind", ["gmm", "elm", "gab"])
def test_masks_are_shown_on_a_map_centred_on_zero(masks, kind):
    weights = {mask.name: mask.weight() for mask in masks[kind]}
    images = shown(pictures.mask_grid(weights))
    flat = [head for weight in weights.values() for head in weight]
    for image, head in zip(images, flat, strict=True):
        np.testing.assert_array_equal(image.get_array(), head)
        low, high = image.get_clim()
        assert -low == high == np.abs(flat).max()
        assert min(image.cmap(0.5)[:3]) > 0.9, "zero is white"
    figure = pictures.mask_grid(weights)
    assert [axes.get_ylabel() for axes in figure.axes if axes.get_label() == "<colorbar>"] == ["mask weight"]  # of all
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("key patch", "query patch")
    heads = [words.get_text() for words in figure.axes[0].texts if words.get_text().startswith("head")]
    assert heads[:2] in ([], ["head 1", "head 2"])  # as layers are counted
    places = [image.get_extent() for image in images]
    for left, right, bottom, top in places:  # no panel lies on another
        assert not any(a < right and left < b and top < c and d < bottom for a, b, c, d in places if a != left)


def test_the_row_of_one_query_lies_on_its_grid(masks):
    weight = masks["gmm"][2].weight()
    figure = pictures.mask_grid({"layer": weight}, (8, 8), (2, 5))
    frames = [patch for patch in figure.axes[0].patches if patch.get_width() < 1]
    for image, frame, head in zip(shown(figure), frames, weight, strict=True):
        np.testing.assert_array_equal(image.get_array(), head[2 * 8 + 5].reshape(8, 8))
        left, _, _, top = image.get_extent()
        assert frame.get_xy() == pytest.approx((left + 5 / 8, top + 2 / 8)) and frame.get_width() == 1 / 8


def test_reverse_convolution_slides_the_kernel_to_the_rows_of_the_mask(masks):
    """What three queries see of the relative kernel of a GMM are their own rows of the N x N mask."""
    weight = masks["gmm"][0].weight()[0]
    whole, *parts = shown(pictures.reverse_convolution(relative_kernel(weight, (8, 8))))
    assert whole.get_array().shape == (15, 15)
    for image, token in zip(parts, (0, 4 * 8 + 4, 63), strict=True):
        np.testing.assert_allclose(image.get_array(), weight[token].reshape(8, 8), rtol=1e-5, atol=1e-6)
    frames = [patch for patch in whole.axes.patches if isinstance(patch, Rectangle)]
    assert [frame.get_xy() for frame in frames] == [(-0.5, -0.5), (-4.5, -4.5), (-7.5, -7.5)]


def test_heat_maps_lie_over_their_images():
    images = torch.rand(2, 3, 32, 32)
    heat = attention_heat(gmmvit.create_model("vit"), images)
    figure = pictures.heat_maps(images.permute(0, 2, 3, 1).numpy(), {"plain": heat, "GMM": heat})
    laid = [axes.images[-1] for axes in figure.axes if axes.images]
    assert len(laid) == 6
    np.testing.assert_allclose(laid[2].get_array(), (heat[0] - heat[0].min()) / np.ptp(heat[0]))


def test_steps_use_the_diverging_map_for_signed_matrices_alone():
    """A mask from −5.7 to −5.3 on a map centred on zero was one dark blue."""
    matrices = {"scores": np.array([[-1.0, 3.0]]), "mask": np.array([[-5.7, -5.3]]), "softmax": np.array([[0.2, 0.8]])}
    figure = pictures.steps(matrices, {name: f"{name} in words" for name in matrices})
    images = [axes.images[0] for axes in figure.axes[:3]]
    assert [image.get_clim() for image in images] == [(-3.0, 3.0), (-5.7, -5.3), (0.2, 0.8)]
    assert [axes.get_xlabel() for axes in figure.axes[3:]] == [f"{name} in words" for name in matrices]


def test_a_mixture_is_drawn_by_distance_with_its_sum(masks):
    parts = mixing(masks["gmm"][2])
    lines, image = pictures.mixture(parts).axes[:2]
    drawn = {line.get_label(): line for line in lines.lines if line.get_label() in parts}
    assert list(drawn) == list(parts) and list(parts)[-1] == "their sum M"
    for name, kernel in parts.items():
        assert drawn[name].get_ydata()[0] == pytest.approx(kernel[7, 7]) and drawn[name].get_xdata()[0] == 0
        assert drawn[name].get_xdata()[-1] == pytest.approx(7 * 2**0.5)
    np.testing.assert_array_equal(image.images[0].get_array(), parts["their sum M"])
