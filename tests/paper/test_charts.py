"""Figures of lines and bars: what they show is what they were given, and equal figures are equal bytes."""

import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from gmmvit.analysis.masks import by_distance, fit_mixtures, regularities
from gmmvit.paper import charts


def history(scale=1.0):
    top1 = [scale * value for value in (30.0, 45.0, 52.0)]
    return {
        "epoch": [1, 2, 3],
        "lr": [1e-3] * 3,
        "train_loss": [2, 1.6, 1.4],
        "test_loss": [1.9, 1.5, 1.3],
        "top1": top1,
    }


def panel(**arms):
    return {"title": "CIFAR-10", "score": "top1", "arms": arms}


THREE = {"label": "ViT", "gain": 2.0, "gain_low": 1.0, "gain_high": 3.0}
ONE = {"label": "PiT", "gain": 1.0}
NONE = {"label": "PiT", "dataset": "svhn"}


def gains(*points):
    """Gains as gmmvit.paper.runs.gains has them."""
    empty = {"dataset": "cifar10"} | dict.fromkeys(("gain", "gain_low", "gain_high"), float("nan"))
    return pd.DataFrame([empty | point for point in points])


# ---- results --------------------------------------------------------------------------------------------------------


def test_learning_curve_of_a_run():
    loss, accuracy = charts.learning_curve(history()).axes
    assert [line.get_ydata().tolist() for line in loss.lines] == [[2, 1.6, 1.4], [1.9, 1.5, 1.3]]
    assert accuracy.lines[0].get_ydata().tolist() == [30, 45, 52] and "%" in accuracy.get_ylabel()


def test_learning_curve_of_a_detector_has_its_scores_and_no_test_loss():
    loss, score = charts.learning_curve(
        {"epoch": [1, 2], "train_loss": [2, 1], "box_AP": [3, 9], "mask_AP": [2, 8]}
    ).axes
    assert [line.get_ydata().tolist() for line in loss.lines] == [[2, 1]] and loss.get_legend() is None
    assert [line.get_ydata().tolist() for line in score.lines] == [[3, 9], [2, 8]]
    assert [each.get_text() for each in score.get_legend().get_texts()] == ["AP box", "AP mask"]


def test_learning_curves_are_a_mean_and_the_range_of_the_seeds():
    shorter = {name: column[:2] for name, column in history(1.2).items()}  # a run that is still going on
    (axes,) = charts.by_epoch([panel(plain=[history(0.8), shorter], GMM=[history()])]).axes
    assert axes.lines[0].get_ydata() == pytest.approx([30.0, 45.0])
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((24.0, 54.0))
    assert [each.get_text() for each in axes.get_legend().get_texts()] == ["plain", "GMM"]


def test_gains_have_intervals_and_one_seed_has_none():
    figure = charts.gains(gains(THREE | {"published": 0.58}, ONE, NONE))
    (axes,) = figure.axes  # nothing is known of SVHN
    zero, interval, dot, diamond, single, *_ = axes.lines
    assert list(zero.get_xdata()) == [0, 0]
    assert list(interval.get_xdata()) == [1.0, 3.0] and list(dot.get_xdata()) == [2.0]
    assert list(diamond.get_xdata()) == [0.58]
    assert list(single.get_xdata()) == [1.0] and to_hex(single.get_markerfacecolor()) == "#ffffff"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["ViT", "PiT"]
    assert [each.get_text() for each in figure.legends[0].get_texts()][1:] == ["one seed", "published"]


def test_gains_by_the_number_of_kernels_stand_beside_the_published_gains():
    one = {"label": 1, "gain": -0.5}
    five = {"label": 5, "gain": 2.0, "gain_low": 1.0, "gain_high": 3.0}
    ours = gains(*({"dataset": name, **each} for name in ("cifar10", "cifar10-mini") for each in (one, five)))
    ours = ours.assign(series="GMM")
    published = pd.DataFrame({"dataset": ["cifar10"] * 2, "kernels": [2, 5], "gain": [0.59, 0.58]})
    left, right = charts.kernels(ours, published).axes
    zero, grey, line = left.lines[:3]
    assert list(zero.get_ydata()) == [0, 0] and to_hex(grey.get_color()) == charts.PUBLISHED
    assert list(grey.get_xdata()) == [2, 5] and list(grey.get_ydata()) == [0.59, 0.58]
    assert list(line.get_xdata()) == [1, 5] and list(line.get_ydata()) == pytest.approx([-0.5, 2.0])
    intervals = [path.vertices[:, 1] for path in left.collections[0].get_paths()]
    assert [list(each) for each in intervals] == [pytest.approx([-0.5] * 2), pytest.approx([1.0, 3.0])]
    assert to_hex(right.lines[1].get_color()) != charts.PUBLISHED  # nothing was published on the sample


def test_one_gain_and_one_epoch_are_no_figure():
    assert charts.gains(gains(ONE)[:0]) is None and charts.gains(gains(ONE, NONE)) is None
    assert charts.by_epoch([panel(plain=[{name: column[:1] for name, column in history().items()}])]) is None


def test_arms_show_every_seed():
    rows = [("sigma", "(1, 1)", "decayed", 60.0), ("sigma", "(1, 1)", "decayed", 61.0)]
    rows += [("sigma", "(1, 1)", "not decayed", 62.0), ("alpha", "(0, 2)", "decayed", 63.0)]
    rows += [("alpha", "(0, 2)", "decayed", 65.0)]
    figure = charts.arms(pd.DataFrame(rows, columns=["group", "label", "series", "top1"]))
    sigma, alpha = figure.axes
    dots = [line for line in sigma.lines if line.get_linestyle() == "None" and len(line.get_xdata())]
    assert [list(line.get_xdata()) for line in dots] == [[60.0, 61.0], [62.0]]
    assert dots[0].get_ydata()[0] != dots[1].get_ydata()[0]
    assert alpha.lines[1].get_xdata()[0] == 64.0
    assert [each.get_text() for each in figure.legends[0].get_texts()] == ["decayed", "not decayed"]


def test_throughput():
    (axes,) = charts.throughput({"none": 400.0, "gmm": 380.0, "elm": 410.0}, "none").axes
    assert [bar.get_width() for bar in axes.patches] == [400, 380, 410]
    assert [each.get_text() for each in axes.texts] == ["400", "380 (+5.3% time)", "410 (−2.4% time)"]


def test_decay_and_fits(masks):
    weight = masks["gmm"][0].weight()[0]
    fits, bound = fit_mixtures(weight, (8, 8), most=3), by_distance(weight, (8, 8))
    regular = regularities(weight[None], (8, 8))
    (axes,) = charts.decay(regular, fits[:2]).axes
    drawn = {line.get_label(): line for line in axes.lines}
    line = drawn[f"2 kernels, R² = {fits[1].r2:.3f}"]
    np.testing.assert_allclose(line.get_ydata()[0], fits[1].alpha.sum())
    assert f"1 kernel, R² = {fits[0].r2:.3f}" in drawn

    (axes,) = charts.r2_by_kernels({"layer 0": (fits, bound)}).axes
    assert list(axes.lines[0].get_ydata()) == [fit.r2 for fit in fits]
    assert list(axes.lines[1].get_ydata()) == [bound.r2, bound.r2]


# ---- figures --------------------------------------------------------------------------------------------------------


def test_equal_figures_are_equal_bytes_whatever_the_readers_settings(tmp_path, monkeypatch):
    charts.save(charts.learning_curve(history()), tmp_path / "one", "curve")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    with mpl.rc_context(
        {"font.size": 30, "axes.labelpad": 30, "savefig.dpi": 20, "axes.facecolor": "red", "lines.linewidth": 9}
    ):
        charts.save(charts.learning_curve(history()), tmp_path / "two", "curve")
    for kind, begins in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        one, two = ((tmp_path / folder / f"curve.{kind}").read_bytes() for folder in ("one", "two"))
        assert one == two and one.startswith(begins)
        assert b"matplotlib" not in one.lower().replace(b"matplotlib font", b""), "a version in the metadata"


def test_jupyter_shows_a_figure_on_white():
    picture = charts.learning_curve(history())._repr_png_()
    assert picture.startswith(b"\x89PNG")
    assert to_hex(charts.learning_curve(history()).get_facecolor()) == "#ffffff"


@pytest.mark.slow
def test_plots_leave_pyplot_and_its_state_alone():
    code = (
        "import sys, gmmvit; assert 'matplotlib' not in sys.modules; import gmmvit.paper.charts, gmmvit.paper.pictures"
    )
    subprocess.run([sys.executable, "-c", f"{code}; assert 'matplotlib.pyplot' not in sys.modules"], check=True)
    before = dict(mpl.rcParams)
    charts.learning_curve(history())
    assert dict(mpl.rcParams) == before
