"""Figures: what they show is what they were given, and equal figures are equal bytes."""

import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

import gmmvit
from gmmvit.analysis.masks import by_distance, fit_mixtures, mixing, regularities, relative_kernel
from gmmvit.analysis.samples import attention_heat
from gmmvit.paper import figures, mask_plots, plots
from gmmvit.paper.seeds import paired_gain
from gmmvit.train import learned


def history(scale=1.0):
    top1 = [scale * value for value in (30.0, 45.0, 52.0)]
    return {
        "epoch": [1, 2, 3],
        "lr": [1e-3] * 3,
        "train_loss": [2, 1.6, 1.4],
        "test_loss": [1.9, 1.5, 1.3],
        "top1": top1,
    }


@pytest.fixture(scope="module")
def masks(tmp_path_factory):
    """Learned masks of small ViTs by kind, as a notebook reads them."""
    folder, found = tmp_path_factory.mktemp("learned"), {}
    torch.manual_seed(0)
    for kind in ("gmm", "elm", "gab"):
        model = gmmvit.create_model("vit_d6", mask=kind)
        for mask in gmmvit.masks_of(model).values():
            if kind == "elm":
                mask.element.data.normal_()
        learned.save(model, folder)
        found[kind] = learned.read(folder)
    return found


def shown(figure):
    """The images of a figure that are not colour bars."""
    return [image for axes in figure.axes if axes.get_visible() for image in axes.images]


# ---- results --------------------------------------------------------------------------------------------------------


def test_learning_curve_of_a_run():
    loss, accuracy = plots.learning_curve(history()).axes
    assert [line.get_ydata().tolist() for line in loss.lines] == [[2, 1.6, 1.4], [1.9, 1.5, 1.3]]
    assert accuracy.lines[0].get_ydata().tolist() == [30, 45, 52] and "%" in accuracy.get_ylabel()


def test_learning_curve_of_a_detector_has_its_scores_and_no_test_loss():
    loss, score = plots.learning_curve(
        {"epoch": [1, 2], "train_loss": [2, 1], "box_AP": [3, 9], "mask_AP": [2, 8]}
    ).axes
    assert [line.get_ydata().tolist() for line in loss.lines] == [[2, 1]] and loss.get_legend() is None
    assert [line.get_ydata().tolist() for line in score.lines] == [[3, 9], [2, 8]]
    assert [each.get_text() for each in score.get_legend().get_texts()] == ["AP box", "AP mask"]


def test_learning_curves_are_a_mean_and_the_range_of_the_seeds():
    shorter = {name: column[:2] for name, column in history(1.2).items()}  # a run that is still going on
    (axes,) = plots.learning_curves({"plain": [history(0.8), shorter], "GMM": [history()]}).axes
    assert axes.lines[0].get_ydata() == pytest.approx([30.0, 45.0])
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((24.0, 54.0))
    assert [each.get_text() for each in axes.get_legend().get_texts()] == ["plain", "GMM"]


def test_gains_have_intervals_and_one_seed_has_none():
    three = paired_gain({0: 61.0, 1: 62.0, 2: 64.0}, {0: 60.0, 1: 60.0, 2: 61.0})
    points = [
        {"dataset": "cifar10", "model": "vit", "gain": three, "published": 0.58},
        {"dataset": "cifar10", "model": "pit", "gain": paired_gain({0: 61.0}, {0: 60.0})},
        {"dataset": "svhn", "model": "pit", "gain": paired_gain({}, {})},
    ]
    figure = plots.gains(points)
    (axes,) = figure.axes  # nothing is known of SVHN
    zero, interval, dot, diamond, single, *_ = axes.lines
    assert list(zero.get_xdata()) == [0, 0]
    assert list(interval.get_xdata()) == [three.low, three.high] and list(dot.get_xdata()) == [three.mean]
    assert list(diamond.get_xdata()) == [0.58]
    assert list(single.get_xdata()) == [1.0] and to_hex(single.get_markerfacecolor()) == "#ffffff"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["ViT", "PiT"]
    assert [each.get_text() for each in figure.legends[0].get_texts()][1:] == ["one seed", "published"]


def test_gains_by_the_number_of_kernels_stand_beside_the_published_gains():
    five = paired_gain({0: 61.0, 1: 62.0, 2: 64.0}, {0: 60.0, 1: 60.0, 2: 61.0})
    ours = {1: paired_gain({0: 59.5}, {0: 60.0}), 5: five}
    drawn = {
        "cifar10": {"ours": ours, "published": {2: 0.59, 5: 0.58}},
        "cifar10-mini": {"ours": ours, "published": {}},
    }
    left, right = plots.kernels(drawn).axes
    zero, grey, line = left.lines[:3]
    assert list(zero.get_ydata()) == [0, 0] and to_hex(grey.get_color()) == plots.PUBLISHED
    assert list(grey.get_xdata()) == [2, 5] and list(grey.get_ydata()) == [0.59, 0.58]
    assert list(line.get_xdata()) == [1, 5] and list(line.get_ydata()) == pytest.approx([-0.5, 2.0])
    intervals = [path.vertices[:, 1] for path in left.collections[0].get_paths()]
    assert [list(each) for each in intervals] == [pytest.approx([-0.5] * 2), pytest.approx([five.low, five.high])]
    assert to_hex(right.lines[1].get_color()) != plots.PUBLISHED  # nothing was published on the sample


def test_one_gain_and_one_epoch_are_no_figure():
    point = {"dataset": "cifar10", "model": "vit", "gain": paired_gain({0: 61.0}, {0: 60.0})}
    unknown = point | {"model": "pit", "gain": paired_gain({}, {})}
    assert plots.gains([]) is None and plots.gains([point, unknown]) is None
    assert plots.learning_curves({"plain": [{name: column[:1] for name, column in history().items()}]}) is None


def test_arms_show_every_seed():
    points = [
        {"group": "sigma", "label": "(1, 1)", "series": "decayed", "values": [60.0, 61.0]},
        {"group": "sigma", "label": "(1, 1)", "series": "not decayed", "values": [62.0]},
        {"group": "alpha", "label": "(0, 2)", "series": "decayed", "values": [63.0, 65.0]},
    ]
    figure = plots.arms(points)
    sigma, alpha = figure.axes
    dots = [line for line in sigma.lines if line.get_linestyle() == "None" and len(line.get_xdata())]
    assert [list(line.get_xdata()) for line in dots] == [[60.0, 61.0], [62.0]]
    assert dots[0].get_ydata()[0] != dots[1].get_ydata()[0]
    assert alpha.lines[1].get_xdata()[0] == 64.0
    assert [each.get_text() for each in figure.legends[0].get_texts()] == ["decayed", "not decayed"]


def test_throughput():
    (axes,) = plots.throughput({"none": 400.0, "gmm": 380.0, "elm": 410.0}, "none").axes
    assert [bar.get_width() for bar in axes.patches] == [400, 380, 410]
    assert [each.get_text() for each in axes.texts] == ["400", "380 (+5.3% time)", "410 (−2.4% time)"]


# ---- masks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gmm", "elm", "gab"])
def test_masks_are_shown_on_a_map_centred_on_zero(masks, kind):
    weights = {mask.name: mask.weight() for mask in masks[kind]}
    images = shown(mask_plots.mask_grid(weights))
    flat = [head for weight in weights.values() for head in weight]
    for image, head in zip(images, flat, strict=True):
        np.testing.assert_array_equal(image.get_array(), head)
        low, high = image.get_clim()
        assert -low == high == np.abs(flat).max()
        assert min(image.cmap(0.5)[:3]) > 0.9, "zero is white"
    figure = mask_plots.mask_grid(weights)
    assert [axes.get_ylabel() for axes in figure.axes if axes.get_label() == "<colorbar>"] == ["mask weight"]  # of all
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("key patch", "query patch")
    heads = [axes.get_title() for axes in figure.axes if axes.get_title().startswith("head")]
    assert heads[:2] in ([], ["head 1", "head 2"])  # as layers are counted


def test_the_row_of_one_query_lies_on_its_grid(masks):
    weight = masks["gmm"][2].weight()
    figure = mask_plots.mask_grid({"layer": weight}, (8, 8), (2, 5))
    for image, head in zip(shown(figure), weight, strict=True):
        np.testing.assert_array_equal(image.get_array(), head[2 * 8 + 5].reshape(8, 8))
        (frame,) = image.axes.patches
        assert frame.get_xy() == (4.5, 1.5)


def test_reverse_convolution_slides_the_kernel_to_the_rows_of_the_mask(masks):
    """What three queries see of the relative kernel of a GMM are their own rows of the N x N mask."""
    weight = masks["gmm"][0].weight()[0]
    whole, *parts = shown(mask_plots.reverse_convolution(relative_kernel(weight, (8, 8))))
    assert whole.get_array().shape == (15, 15)
    for image, token in zip(parts, (0, 4 * 8 + 4, 63), strict=True):
        np.testing.assert_allclose(image.get_array(), weight[token].reshape(8, 8), rtol=1e-5, atol=1e-6)
    frames = [patch for patch in whole.axes.patches if isinstance(patch, Rectangle)]
    assert [frame.get_xy() for frame in frames] == [(-0.5, -0.5), (-4.5, -4.5), (-7.5, -7.5)]


def test_decay_and_fits(masks):
    weight = masks["gmm"][0].weight()[0]
    fits, bound = fit_mixtures(weight, (8, 8), most=3), by_distance(weight, (8, 8))
    regular = regularities(weight[None], (8, 8))
    (axes,) = mask_plots.decay(regular, fits[:2]).axes
    drawn = {line.get_label(): line for line in axes.lines}
    line = drawn[f"2 kernels, R² = {fits[1].r2:.3f}"]
    np.testing.assert_allclose(line.get_ydata()[0], fits[1].alpha.sum())
    assert f"1 kernel, R² = {fits[0].r2:.3f}" in drawn

    (axes,) = mask_plots.r2_by_kernels({"layer 0": (fits, bound)}).axes
    assert list(axes.lines[0].get_ydata()) == [fit.r2 for fit in fits]
    assert list(axes.lines[1].get_ydata()) == [bound.r2, bound.r2]


def test_heat_maps_lie_over_their_images():
    images = torch.rand(2, 3, 32, 32)
    heat = attention_heat(gmmvit.create_model("vit"), images)
    figure = mask_plots.heat_maps(images.permute(0, 2, 3, 1).numpy(), {"plain": heat, "GMM": heat})
    laid = [axes.images[-1] for axes in figure.axes if axes.images]
    assert len(laid) == 6
    np.testing.assert_allclose(laid[2].get_array(), (heat[0] - heat[0].min()) / np.ptp(heat[0]))


def test_steps_use_the_diverging_map_for_signed_matrices_alone():
    """A mask from −5.7 to −5.3 on a map centred on zero was one dark blue."""
    matrices = {"scores": np.array([[-1.0, 3.0]]), "mask": np.array([[-5.7, -5.3]]), "softmax": np.array([[0.2, 0.8]])}
    figure = mask_plots.steps(matrices, {name: f"{name} in words" for name in matrices})
    images = [axes.images[0] for axes in figure.axes[:3]]
    assert [image.get_clim() for image in images] == [(-3.0, 3.0), (-5.7, -5.3), (0.2, 0.8)]
    assert [axes.get_xlabel() for axes in figure.axes[3:]] == [f"{name} in words" for name in matrices]


def test_a_mixture_is_drawn_by_distance_with_its_sum(masks):
    parts = mixing(masks["gmm"][2])
    lines, image = mask_plots.mixture(parts).axes[:2]
    drawn = {line.get_label(): line for line in lines.lines if line.get_label() in parts}
    assert list(drawn) == list(parts) and list(parts)[-1] == "their sum M"
    for name, kernel in parts.items():
        assert drawn[name].get_ydata()[0] == pytest.approx(kernel[7, 7]) and drawn[name].get_xdata()[0] == 0
        assert drawn[name].get_xdata()[-1] == pytest.approx(7 * 2**0.5)
    np.testing.assert_array_equal(image.images[0].get_array(), parts["their sum M"])


# ---- figures --------------------------------------------------------------------------------------------------------


def test_equal_figures_are_equal_bytes_whatever_the_readers_settings(tmp_path, monkeypatch):
    figures.save(plots.learning_curve(history()), tmp_path / "one", "curve")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    with mpl.rc_context(
        {"font.size": 30, "axes.labelpad": 30, "savefig.dpi": 20, "axes.facecolor": "red", "lines.linewidth": 9}
    ):
        figures.save(plots.learning_curve(history()), tmp_path / "two", "curve")
    for kind, begins in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        one, two = ((tmp_path / folder / f"curve.{kind}").read_bytes() for folder in ("one", "two"))
        assert one == two and one.startswith(begins)
        assert b"matplotlib" not in one.lower().replace(b"matplotlib font", b""), "a version in the metadata"


def test_jupyter_shows_a_figure_on_white():
    picture = plots.learning_curve(history())._repr_png_()
    assert picture.startswith(b"\x89PNG")
    assert to_hex(plots.learning_curve(history()).get_facecolor()) == "#ffffff"


def test_plots_leave_pyplot_and_its_state_alone():
    code = (
        "import sys, gmmvit; assert 'matplotlib' not in sys.modules; import gmmvit.paper.plots, gmmvit.paper.mask_plots"
    )
    subprocess.run([sys.executable, "-c", f"{code}; assert 'matplotlib.pyplot' not in sys.modules"], check=True)
    before = dict(mpl.rcParams)
    plots.learning_curve(history())
    assert dict(mpl.rcParams) == before
