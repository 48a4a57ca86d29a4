"""The GMM paper's tables: which rows are which arm of the main table and the ablations, and what stands beside them."""

import math

import numpy as np
import pytest
from frames import frame, make
from scipy import stats

from gmmvit.paper import charts, gmm
from gmmvit.paper.tables import gains_table
from gmmvit.train.rows import Row

# ---- the main table -------------------------------------------------------------------------------------------------


def test_the_main_table():
    rows = (
        make()
        | make(readout="token")
        | make("gmm")
        | make("gmm", share_heads=True)
        | make("gmm", kernels=3)
        | make("elm")
        | make("gmm", model="pit", dataset="tiny-imagenet")
        | make("gmm", model="vit_heat")
    )
    top1 = {"cifar10-vit-none-s0": 93.17, "cifar10-vit-none-s1": 95.17, "cifar10-vit-gmm-s0": 95.56}
    failed = ["cifar10-vit-none-s2", *make("gmm", share_heads=True)]
    table = gmm.main_table(frame(rows, top1, failed))
    cells = {(row[0], row[1], row[2]): row[3:6] for row in table.cells()}
    assert cells == {
        ("CIFAR-10", "ViT", "plain"): ["94.17", "94.17 ± 1.41 (2 of 3, 1 failed)", "+0.00"],
        ("CIFAR-10", "ViT", "plain, class token"): ["93.65", "not run", "–"],
        ("CIFAR-10", "ViT", "GMM"): ["95.06", "95.56 (1 of 3)", "+0.50"],
        ("CIFAR-10", "ViT", "GMM, shared by the heads"): ["94.75", "failed", "–"],
        ("CIFAR-10", "ViT", "ELM"): ["–", "not run", "–"],
        ("Tiny-ImageNet", "PiT", "GMM"): ["58.37", "not run", "–"],
    }
    assert table.cells()[0][6:] == ["2,693,122", "170.9", "184.6", "9"]


def test_published_rows_stand_beside_the_arm_they_come_from():
    """Errata G1 to G3: the mean read-out and the shared mask are the first table's."""
    keys = ["dataset", "mask", "readout", "share_heads", "model"]
    numbers = gmm.published_main().set_index(keys).published.to_dict()

    def number(dataset, mask, readout="mean", share_heads=False, model="vit"):
        return numbers.get((dataset, mask, readout, share_heads, model))

    assert [number(d, "none") for d in ("cifar10", "cifar100", "svhn", "tiny-imagenet")] == [94.17, 75.36, 97.93, 59.89]
    assert [number(d, "none", "token") for d in ("cifar10", "cifar100")] == [93.65, None]
    assert [number("tiny-imagenet", "gmm", share_heads=shared) for shared in (False, True)] == [62.27, 61.86]
    assert number("cifar10", "none", model="cait") == 94.79
    assert number("cifar10", "gmm", model="cait", share_heads=True) is None


def test_a_table_of_other_masks():
    rows = make() | make("elm") | make("gab")
    table = gmm.main_table(frame(rows, {f"cifar10-vit-gab-s{seed}": 60.0 + seed for seed in range(3)}))
    assert [row[2:6] for row in table.cells()] == [
        ["plain", "94.17", "not run", "–"],
        ["ELM", "–", "not run", "–"],
        ["GAB", "–", "61.00 ± 1.00 (3)", "–"],
    ]


def test_the_gains_of_the_main_table():
    rows = make() | make("gmm") | make(readout="token") | make(model="pit") | make("gmm", model="pit")
    top1 = {"none": (60.0, 61.5, 63.0), "gmm": (61.0, 62.6, 64.2)}
    ours = {f"cifar10-vit-{mask}-s{seed}": values[seed] for mask, values in top1.items() for seed in range(3)}
    points = gmm.main_gains(frame(rows, ours | {"cifar10-pit-none-s0": 60.0, "cifar10-pit-gmm-s0": 59.0}))
    told = [(p.model, p.label, round(p.published, 2)) for p in points[points["mask"] == "gmm"].itertuples()]
    assert told == [("vit", "ViT, GMM", 0.89), ("pit", "PiT, GMM", 0.73)]
    assert [row[4:] for row in gains_table(points).cells()] == [
        ["+1.10 [+0.85 to +1.35] (3)", "larger than the seeds' spread"],
        ["−1.00 (1)", "–"],
    ]


# ---- the ablations --------------------------------------------------------------------------------------------------


def ran(*settings, only=None, failed=()):
    """Rows of ViT with a GMM and what they have instead, each (or these alone) run with an accuracy of its own."""
    rows = {}
    for number, fields in enumerate(settings):
        given = {key: fields[key] for key in ("dataset", "model", "mask", "recipe", "seed") if key in fields}
        row = {"dataset": "cifar10", "model": "vit", "mask": "gmm"} | given
        others = {key: value for key, value in fields.items() if key not in given}
        rows[f"row{number}"] = Row(**row, set=others, name=f"row{number}")
    top1 = {name: 50.0 + number for number, name in enumerate(rows) if only is None or number in only}
    return frame(rows, top1, failed)


def arms(rows):
    found = rows.assign(panel=rows.group.str.split(":").str[0]).groupby(["panel", "label", "series"])
    return {keys: alike.top1.to_list() for keys, alike in found}


def test_initial_values_are_arms_with_and_without_decay():
    found = arms(gmm.initialisations(ran(
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
    lines = gmm.others(ran(
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
    shown = {line[3]: line[5] for line in gmm.arms_table(lines).cells()}
    assert shown == {
        "plain": "94.17",
        "ELM": "not established",
        "GMM, shared by the heads": "94.75",
        "GMM, one for each head": "95.06",
        "before the softmax": "not established",
        "after the softmax": "not established",
    }


def test_depths_are_plain_and_masked():
    found = arms(gmm.depths(ran({}, {"mask": "none", "model": "vit_d15"}, {"model": "vit_d30_108"})))
    panel = "depth, width"
    assert found == {
        (panel, "9, 192", "GMM"): [50.0],
        (panel, "15, 144", "plain"): [51.0],
        (panel, "30, 108", "GMM"): [52.0],
    }


def test_the_model_without_a_mask_has_no_kernels():
    rows = gmm.by_kernels(
        ran({}, {"seed": 1}, {"mask": "none"}, {"kernels": 1}, {"kernels": 10, "dataset": "svhn"}, {"dataset": "svhn"})
    )
    published = {(row.dataset, row.label): row.published for row in rows.itertuples()}
    assert math.isnan(published.pop(("cifar10", 1)))
    assert published == {("cifar10", 0): 94.17, ("cifar10", 5): 94.75, ("svhn", 10): 97.89, ("svhn", 5): 98.01}
    assert gmm.no_curve(rows) == (
        "Not drawn, as a curve needs no mask and two numbers of kernels: on SVHN there is 5 kernels and 10 kernels."
    )
    ours, theirs = gmm.kernel_gains(rows), gmm.published_kernel_gains()
    assert set(ours.dataset) == {"cifar10"} and dict(zip(ours.label, ours.gain, strict=True)) == {1: 1.0, 5: -2.0}
    theirs = theirs[theirs.dataset == "cifar10"]
    assert dict(zip(theirs.kernels, theirs.gain.round(2), strict=True)) == {
        2: 0.59, 3: 0.7, 4: 0.6, 5: 0.58, 8: 0.77, 10: 0.59
    }  # fmt: skip
    (axes,) = charts.kernels(ours, gmm.published_kernel_gains()).axes
    grey, line = (line for line in axes.lines if len(line.get_xdata()) > 2 or line.get_marker() == "o")
    assert list(line.get_ydata()) == [1.0, -2.0] and list(grey.get_xdata()) == [2, 3, 4, 5, 8, 10]


def test_kernels_of_a_factor_and_of_a_bias_are_series_over_the_same_plain_model():
    """As in the profile cpu: on the small model, and five kernels on the paper's ViT besides."""
    xs = {"model": "vit_xs", "epochs": 8, "mask_lr": 60}
    settings = [{"mask": "none", "model": "vit_xs", "epochs": 8}, xs, xs | {"kernels": 1}]
    settings += [xs | {"mask": "gmb"}, xs | {"mask": "gmb", "kernels": 1}, {"mask": "none"}, {"mask_lr": 60}]
    rows = gmm.by_kernels(ran(*settings))
    found = gmm.kernel_gains(rows)
    assert list(zip(found.series, found.label, found.gain, strict=True)) == [
        ("GMM", 1, 2.0), ("GMM", 5, 1.0), ("GMB", 1, 4.0), ("GMB", 5, 3.0),
    ]  # fmt: skip
    assert gmm.no_curve(rows).endswith("on CIFAR-10, ViT there is no mask and 5 kernels.")
    published = {(row.model, row.label, row.series): row.published for row in rows.itertuples()}
    assert published["vit", 5, ""] == 94.75  # the numbers of another model are not ours to compare
    assert all(math.isnan(number) for (model, *_), number in published.items() if model == "vit_xs")
    told = {(line[1], line[3]): line[5] for line in gmm.arms_table(rows).cells()}
    assert told["ViT-XS", "5"] == "–" and told["ViT", "5"] == "94.75"
    (axes,) = charts.kernels(found, gmm.published_kernel_gains()).axes
    names = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert names == ["published", "GMM (one seed)", "GMB (one seed)"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2", "3", "4", "5", "8", "10"]


def test_the_ablation_is_told_apart_by_model():
    rows = make("elm", model="vit_xs") | make("gmm", model="vit_xs") | make("elm") | make("gmm")
    top1 = {name: 60.0 + row.seed + (row.mask == "gmm") * (1 + 0.1 * row.seed) for name, row in rows.items()}
    found = gmm.others(frame(rows, top1))
    told = gmm.others_found(found)
    assert "on CIFAR-10, ViT-XS +1.10" in told and "on CIFAR-10, ViT +1.10" in told
    compared, _ = gmm.compared(found)
    assert set(compared.group) == {"CIFAR-10, ViT: mask", "CIFAR-10, ViT-XS: mask"}
    assert gmm.depths(frame(rows, top1)).model.unique().tolist() == ["vit"]  # the small one is no depth of the paper's


def test_frozen_masks_and_shares_of_the_data_are_no_arms_of_the_main_table():
    others = {"freeze_masks": True}, {"fraction": 0.1}, {"init_weights": "mimetic"}, {"mask_lr": 60}
    rows = ran({}, {"seed": 1}, *others)
    assert gmm.main_arms(rows).top1.to_list() == [50.0, 51.0]


def test_kernels_whose_heights_begin_at_one_kth_are_arms_where_those_of_five_do():
    """As in the profile cpu: a mask of any number begins with a gain of 1."""
    usual = {"model": "vit_xs", "sigma_init": [2, 0.5], "alpha_init": [0.2, 0]}
    settings = [{"model": "vit_xs", "mask": "none"}, usual, usual | {"kernels": 1, "alpha_init": [1, 0]}]
    settings += [usual | {"kernels": 3, "alpha_init": [0.333, 0]}, usual | {"kernels": 10}]  # the last: a gain of 2
    rows = gmm.by_kernels(ran(*settings))
    assert dict(zip(rows.label, rows.top1, strict=True)) == {0: 50.0, 1: 52.0, 3: 53.0, 5: 51.0}
    assert gmm.kernels_found(rows) == (
        "Ours: GMM on CIFAR-10 gains most with 3 kernels: +3.00 (1), and least with 5 kernels: +1.00 (1)."
    )


def test_the_spread_of_a_gain_is_what_all_numbers_of_kernels_tell():
    top1 = {0: (60.0, 61.2), 1: (61.0, 62.9), 5: (62.0, 62.6)}
    rows = make() | make("gmm", kernels=1) | make("gmm", kernels=5)
    names = {0: "cifar10-vit-none", 1: "cifar10-vit-gmm-kernels1", 5: "cifar10-vit-gmm-kernels5"}
    found = gmm.kernel_gains(
        gmm.by_kernels(frame(rows, {f"{names[k]}-s{s}": v for k, values in top1.items() for s, v in enumerate(values)}))
    )
    table = np.array(list(top1.values()))
    errors = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    half = stats.t.ppf(0.975, 2) * (2 * (errors**2).sum() / 2 / 2) ** 0.5  # 2 = (3 - 1) (2 - 1) degrees of freedom
    assert found.gain.to_list() == pytest.approx([1.35, 1.7])
    assert found.gain_high.to_list() == pytest.approx([1.35 + half, 1.7 + half])


def test_one_number_of_kernels_is_no_curve():
    """As in the profile cpu: 94 and 63 per cent on one axis were two flat lines."""
    rows = gmm.by_kernels(ran({}, {"mask": "none"}))
    assert gmm.kernel_gains(rows).empty and charts.kernels(gmm.kernel_gains(rows), gmm.published_kernel_gains()) is None
    assert gmm.no_curve(rows).endswith("on CIFAR-10 there is no mask and 5 kernels.")


def test_arms_that_were_not_run_stay_in_the_table_and_out_of_the_figure():
    settings = {"share_heads": True}, {"where": "probabilities"}, {"dataset": "svhn"}, {"mask": "elm"}
    rows = gmm.others(ran({}, *settings, {"dataset": "svhn", "mask": "elm"}, only=(0, 3, 4, 5), failed=["row2"]))
    told = {(line[0], line[3]): line[6] for line in gmm.arms_table(rows).cells()}
    assert told["CIFAR-10", "GMM, shared by the heads"] == "not run"
    assert told["CIFAR-10", "after the softmax"] == "failed"
    compared, alone = gmm.compared(rows)
    assert set(compared.group) == {"CIFAR-10: mask", "SVHN: mask"} and compared.top1.notna().all()
    assert len(charts.arms(compared).axes) == 2
    assert alone == (
        "Not drawn, as one arm alone was run: CIFAR-10: place of the mask (before the softmax); "
        "SVHN: place of the mask (before the softmax)."
    )


def test_rows_that_no_arm_describes_are_left_out():
    rows = ran({"model": "swin"}, {"kernels": 7}, {"mask": "gab"}, {"sigma_init": [2, 2]})
    for panel in (gmm.initialisations, gmm.others, gmm.depths, gmm.by_kernels):
        assert panel(rows).empty and gmm.arms_table(panel(rows)).lines == []


@pytest.mark.parametrize("count", gmm.KERNELS)
def test_every_published_number_of_kernels_is_an_arm(count):
    (row,) = gmm.by_kernels(ran({"kernels": count})).itertuples()
    assert row.label == count and math.isnan(row.published) == (count == 1)


@pytest.mark.parametrize(
    ("more", "first", "second"),
    [
        ((1.9, 2.0, 2.2), ", as published", ", not as published"),
        ((-1.9, -2.0, -2.2), ", not as published", ", not as published"),
        (
            (-1.0, 1.0, 0.2),
            ", which cannot be told from zero",
            ", as published no difference to be told from the seeds'",
        ),
        ((2.0,), ", of one seed", ", of one seed"),
    ],
)
def test_what_the_paper_says_in_words_agrees_or_not(more, first, second):
    """One mask for each head gains `more` over ELM; behind the softmax it is as much better than before it."""
    seeds, behind = range(len(more)), {"where": "probabilities"}
    rows = make("elm", seeds) | make("gmm", seeds) | make("gmm", seeds, **behind)
    top1 = {f"cifar10-vit-elm-s{seed}": 60.0 for seed in seeds}
    top1 |= {f"cifar10-vit-gmm-s{seed}": 60.0 + more[seed] for seed in seeds}
    top1 |= {f"cifar10-vit-gmm-whereprobabilities-s{seed}": 60.0 + 2 * more[seed] for seed in seeds}
    told = gmm.others_found(gmm.others(frame(rows, top1)))
    assert told.startswith("Ours: GMM, one for each head against ELM on CIFAR-10 ")
    elm, place = told.removesuffix(".").split("; ")
    assert elm.endswith(first) and place.endswith(second)
    assert gmm.others_found(gmm.others(frame(make("elm"), {"cifar10-vit-elm-s0": 60.0}))) == ""
