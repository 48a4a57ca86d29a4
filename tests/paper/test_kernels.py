"""The number of kernels, of a factor and of a bias: its arms, gains, curve and sentence."""

import math

import numpy as np
import pytest
from frames import frame, make, ran
from scipy import stats

from gmmvit.paper import ablation, charts, kernels


def test_the_model_without_a_mask_has_no_kernels():
    rows = kernels.arms(
        ran({}, {"seed": 1}, {"mask": "none"}, {"kernels": 1}, {"kernels": 10, "dataset": "svhn"}, {"dataset": "svhn"})
    )
    published = {(row.dataset, row.label): row.published for row in rows.itertuples()}
    assert math.isnan(published.pop(("cifar10", 1)))
    assert published == {("cifar10", 0): 94.17, ("cifar10", 5): 94.75, ("svhn", 10): 97.89, ("svhn", 5): 98.01}
    assert kernels.no_curve(rows) == (
        "Not drawn, as a curve needs no mask and two numbers of kernels: on SVHN there is 5 kernels and 10 kernels."
    )
    ours, theirs = kernels.gains_of(rows), kernels.published_gains()
    assert set(ours.dataset) == {"cifar10"} and dict(zip(ours.label, ours.gain, strict=True)) == {1: 1.0, 5: -2.0}
    theirs = theirs[theirs.dataset == "cifar10"]
    assert dict(zip(theirs.kernels, theirs.gain.round(2), strict=True)) == {
        2: 0.59, 3: 0.7, 4: 0.6, 5: 0.58, 8: 0.77, 10: 0.59
    }  # fmt: skip
    (axes,) = charts.kernels(ours, kernels.published_gains()).axes
    grey, line = (line for line in axes.lines if len(line.get_xdata()) > 2 or line.get_marker() == "o")
    assert list(line.get_ydata()) == [1.0, -2.0] and list(grey.get_xdata()) == [2, 3, 4, 5, 8, 10]


def test_kernels_of_a_factor_and_of_a_bias_are_series_over_the_same_plain_model():
    """As in the profile cpu: on the small model, and five kernels on the paper's ViT besides."""
    xs = {"model": "vit_xs", "epochs": 8, "mask_lr": 60}
    settings = [{"mask": "none", "model": "vit_xs", "epochs": 8}, xs, xs | {"kernels": 1}]
    settings += [xs | {"mask": "gmb"}, xs | {"mask": "gmb", "kernels": 1}, {"mask": "none"}, {"mask_lr": 60}]
    rows = kernels.arms(ran(*settings))
    found = kernels.gains_of(rows)
    assert list(zip(found.series, found.label, found.gain, strict=True)) == [
        ("GMM", 1, 2.0), ("GMM", 5, 1.0), ("GMB", 1, 4.0), ("GMB", 5, 3.0),
    ]  # fmt: skip
    assert kernels.no_curve(rows).endswith("on CIFAR-10, ViT there is no mask and 5 kernels.")
    published = {(row.model, row.label, row.series): row.published for row in rows.itertuples()}
    assert published["vit", 5, ""] == 94.75  # the numbers of another model are not ours to compare
    assert all(math.isnan(number) for (model, *_), number in published.items() if model == "vit_xs")
    told = {(line[1], line[3]): line[5] for line in ablation.arms_table(rows).cells()}
    assert told["ViT-XS", "5"] == "–" and told["ViT", "5"] == "94.75"
    (axes,) = charts.kernels(found, kernels.published_gains()).axes
    names = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert names == ["published", "GMM (one seed)", "GMB (one seed)"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2", "3", "4", "5", "8", "10"]


def test_kernels_whose_heights_begin_at_one_kth_are_arms_where_those_of_five_do():
    """As in the profile cpu: a mask of any number begins with a gain of 1."""
    usual = {"model": "vit_xs", "sigma_init": [2, 0.5], "alpha_init": [0.2, 0]}
    settings = [{"model": "vit_xs", "mask": "none"}, usual, usual | {"kernels": 1, "alpha_init": [1, 0]}]
    settings += [usual | {"kernels": 3, "alpha_init": [0.333, 0]}, usual | {"kernels": 10}]  # the last: a gain of 2
    rows = kernels.arms(ran(*settings))
    assert dict(zip(rows.label, rows.top1, strict=True)) == {0: 50.0, 1: 52.0, 3: 53.0, 5: 51.0}
    assert kernels.found(rows) == (
        "Ours: GMM on CIFAR-10 gains most with 3 kernels: +3.00 (1), and least with 5 kernels: +1.00 (1)."
    )


def test_the_spread_of_a_gain_is_what_all_numbers_of_kernels_tell():
    top1 = {0: (60.0, 61.2), 1: (61.0, 62.9), 5: (62.0, 62.6)}
    rows = make() | make("gmm", kernels=1) | make("gmm", kernels=5)
    names = {0: "cifar10-vit-none", 1: "cifar10-vit-gmm-kernels1", 5: "cifar10-vit-gmm-kernels5"}
    found = kernels.gains_of(
        kernels.arms(frame(rows, {f"{names[k]}-s{s}": v for k, values in top1.items() for s, v in enumerate(values)}))
    )
    table = np.array(list(top1.values()))
    errors = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    half = stats.t.ppf(0.975, 2) * (2 * (errors**2).sum() / 2 / 2) ** 0.5  # 2 = (3 - 1) (2 - 1) degrees of freedom
    assert found.gain.to_list() == pytest.approx([1.35, 1.7])
    assert found.gain_high.to_list() == pytest.approx([1.35 + half, 1.7 + half])


def test_one_number_of_kernels_is_no_curve():
    """As in the profile cpu: 94 and 63 per cent on one axis were two flat lines."""
    rows = kernels.arms(ran({}, {"mask": "none"}))
    assert kernels.gains_of(rows).empty and charts.kernels(kernels.gains_of(rows), kernels.published_gains()) is None
    assert kernels.no_curve(rows).endswith("on CIFAR-10 there is no mask and 5 kernels.")


@pytest.mark.parametrize("count", kernels.KERNELS)
def test_every_published_number_of_kernels_is_an_arm(count):
    (row,) = kernels.arms(ran({"kernels": count})).itertuples()
    assert row.label == count and math.isnan(row.published) == (count == 1)
