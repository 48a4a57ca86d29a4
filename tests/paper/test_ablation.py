"""The ablations of the mask: which rows are which arm, and what stands beside them."""

import pytest

from gmmvit.paper import ablation, plots
from gmmvit.train.rows import Row


def rows_and_runs(*settings):
    """Rows of ViT with a GMM and what they have instead, each with a run of its own accuracy."""
    rows = {}
    for number, fields in enumerate(settings):
        given = {key: fields[key] for key in ("dataset", "model", "mask", "recipe", "seed") if key in fields}
        row = {"dataset": "cifar10", "model": "vit", "mask": "gmm"} | given
        others = {key: value for key, value in fields.items() if key not in given}
        rows[f"row{number}"] = Row(**row, set=others, name=f"row{number}")
    runs = [{"row": vars(row), "top1": 50.0 + number} for number, row in enumerate(rows.values())]
    return rows, runs


def arms(lines):
    return {(line["group"].split(":")[0], line["label"], line["series"]): line["values"] for line in lines}


def test_initial_values_are_arms_with_and_without_decay():
    found = arms(ablation.initialisations(*rows_and_runs(
        {},
        {"seed": 1, "sigma_init": [10, 10]},  # the default, spelt out
        {"sigma_init": [3, 3]},
        {"sigma_init": [3, 3], "decay_masks": True},
        {"alpha_init": [0.2, 0]},
        {"alpha_init": [0, 0.5], "kernels": 3},  # differs in two respects
        {"recipe": "gmm", "seed": 2},
    )))  # fmt: skip
    plain, decayed = "not decayed", "sigma and alpha decayed"
    assert found == {
        ("initial sigma", "3, 3", plain): [52.0],
        ("initial sigma", "3, 3", decayed): [53.0],
        ("initial sigma", "10, 10", plain): [50.0, 51.0],
        ("initial sigma", "10, 10", decayed): [56.0],
        ("initial alpha", "0, 2", plain): [50.0, 51.0],
        ("initial alpha", "0, 2", decayed): [56.0],
        ("initial alpha", "1/K, 0", plain): [54.0],
    }


def test_other_arms_and_their_published_numbers():
    lines = ablation.others(*rows_and_runs(
        {},
        {"mask": "none"},
        {"mask": "none", "readout": "token"},
        {"mask": "elm"},
        {"share_heads": True},
        {"where": "probabilities"},
        {"decay_masks": True},
    ))  # fmt: skip
    assert arms(lines) == {
        ("mask", "plain", ""): [51.0],
        ("mask", "ELM", ""): [53.0],
        ("mask", "GMM, shared by the heads", ""): [54.0],
        ("mask", "GMM, one for each head", ""): [50.0],
        ("place of the mask", "before the softmax", ""): [50.0],
        ("place of the mask", "after the softmax", ""): [55.0],
    }
    shown = {line[2]: line[4] for line in ablation.arms_table(lines).cells()}
    assert shown == {
        "plain": "94.17",
        "ELM": "not established",
        "GMM, shared by the heads": "94.75",
        "GMM, one for each head": "95.06",
        "before the softmax": "not established",
        "after the softmax": "not established",
    }


def test_depths_are_plain_and_masked():
    found = arms(ablation.depths(*rows_and_runs({}, {"mask": "none", "model": "vit_d15"}, {"model": "vit_d30_108"})))
    panel = "depth, width"
    assert found == {
        (panel, "9, 192", "GMM"): [50.0],
        (panel, "15, 144", "plain"): [51.0],
        (panel, "30, 108", "GMM"): [52.0],
    }


def test_the_model_without_a_mask_has_no_kernels():
    rows, runs = rows_and_runs({}, {"seed": 1}, {"mask": "none"}, {"kernels": 1}, {"kernels": 10, "dataset": "svhn"})
    lines = ablation.by_kernels(rows, runs)
    assert {(line["dataset"], line["label"]): line["published"] for line in lines} == {
        ("cifar10", 0): 94.17,
        ("cifar10", 1): None,
        ("cifar10", 5): 94.75,
        ("svhn", 10): 97.89,
    }
    assert ablation.no_curve(lines) == (
        "Not drawn, as a curve needs no mask and two numbers of kernels: on SVHN there is 10 kernels."
    )
    ((dataset, found),) = ablation.kernel_gains(lines).items()
    assert dataset == "cifar10" and {count: gain.mean for count, gain in found["ours"].items()} == {1: 1.0, 5: -2.0}
    assert {count: round(gain, 2) for count, gain in found["published"].items()} == {
        2: 0.59, 3: 0.7, 4: 0.6, 5: 0.58, 8: 0.77, 10: 0.59
    }  # fmt: skip
    (axes,) = plots.kernels({dataset: found}).axes
    grey, line = (line for line in axes.lines if len(line.get_xdata()) > 2 or line.get_marker() == "o")
    assert list(line.get_ydata()) == [1.0, -2.0] and list(grey.get_xdata()) == [2, 3, 4, 5, 8, 10]


def test_one_number_of_kernels_is_no_curve():
    """As in the profile cpu: 94 and 63 per cent on one axis were two flat lines."""
    lines = ablation.by_kernels(*rows_and_runs({}, {"mask": "none"}))
    assert ablation.kernel_gains(lines) == {}
    assert ablation.no_curve(lines).endswith("on CIFAR-10 there is no mask and 5 kernels.")


def test_arms_that_were_not_run_stay_in_the_table_and_out_of_the_figure():
    settings = {"share_heads": True}, {"where": "probabilities"}, {"dataset": "svhn"}, {"mask": "elm"}
    rows, runs = rows_and_runs({}, *settings, {"dataset": "svhn", "mask": "elm"})
    lines = ablation.others(rows, runs[:1] + runs[3:], ["row2"])
    told = {(line[0], line[2]): line[5] for line in ablation.arms_table(lines).cells()}
    assert told["CIFAR-10", "GMM, shared by the heads"] == "not run"
    assert told["CIFAR-10", "after the softmax"] == "failed"
    points = ablation.points(lines)
    assert {point["group"] for point in points} == {"CIFAR-10: mask", "SVHN: mask"}
    assert all(point["values"] for point in points)
    assert len(plots.arms(points).axes) == 2
    assert ablation.left_out(lines) == (
        "Not drawn, as one arm alone was run: CIFAR-10: place of the mask (before the softmax); "
        "SVHN: place of the mask (before the softmax)."
    )


def test_rows_that_no_arm_describes_are_left_out():
    rows, runs = rows_and_runs({"model": "swin"}, {"kernels": 7}, {"mask": "gab"}, {"sigma_init": [2, 2]})
    for panel in (ablation.initialisations, ablation.others, ablation.depths, ablation.by_kernels):
        assert panel(rows, runs) == []


@pytest.mark.parametrize("count", ablation.KERNELS)
def test_every_published_number_of_kernels_is_an_arm(count):
    (line,) = ablation.by_kernels(*rows_and_runs({"kernels": count}))
    assert line["label"] == count and (line["published"] is None) == (count == 1)
