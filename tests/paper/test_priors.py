"""The comparison of priors: which rows are arms, Holm's correction, tables, shares of the data, the controls."""

import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from frames import make
from scipy import stats

from gmmvit.paper import charts, controls, priors, robust, runs
from gmmvit.paper.runs import gains
from gmmvit.train.rows import Row

XS = {"model": "vit_xs"}
NAN = float("nan")


def ran(arms, **metrics):
    """The frame of arms [(rows by name, top-1 by seed)], each run with these metrics besides."""
    rows = {name: row for each, _ in arms for name, row in each.items()}
    top1 = {name: value for each, values in arms for name, value in zip(each, values, strict=True)}
    return runs.of(rows, [{"row": vars(rows[name]), "top1": value, **metrics} for name, value in top1.items()])


def arm(mask, *top1, **settings):
    return make(mask, range(len(top1)), **XS, **settings), top1


PLAIN = arm("none", 60.0, 61.0, 62.0)

# ---- arms -----------------------------------------------------------------------------------------------------------


def test_rows_are_arms_of_the_small_model_in_the_cell_that_most_rows_are_in():
    cell = {"mask_lr": 60, "epochs": 8}
    frame = ran([
        PLAIN,
        arm("gmm", 1, 2, 3, **cell),
        arm("gmm", 1, 2, 3, **cell, freeze_masks=True),
        arm("gmm", 1, **cell, sigma_init=[1, 0]),  # where sigma begins is another question
        arm("gmm", 1, **cell, kernels=3),  # so is the number of kernels
        arm("gmm", 1, 2, **cell, fraction=0.1),
        arm("temperature", 1, init=[0, 4.7], freeze_masks=True),
        arm("temperature", 1, init=[0, 0], freeze_masks=True),
        arm("temperature", 1, **cell),
        arm("none", 1, init_weights="mimetic"),
        arm("none", 1, readout="token"),
        (make("gmm", model="vit"), (1, 2, 3)),
    ])  # fmt: skip
    found = priors.arms(frame)
    assert list(zip(found.arm, found.share, strict=True)) == [
        *[("plain", 1.0)] * 3,
        *[("GMM", 1.0)] * 3,
        *[("GMM, frozen", 1.0)] * 3,
        *[("GMM", 0.1)] * 2,
        ("random gain, frozen", 1.0),
        ("uniform attention", 1.0),
        ("temperature", 1.0),
        ("mimetic weights", 1.0),
    ]
    assert set(priors.arms(frame[frame.model == "vit"]).model) == {"vit"}  # where there is no small one


def test_arms_of_another_cell_follow_it():
    local = {"sigma_init": [2, 0.5], "alpha_init": [0.2, 0]}
    said = {"sigma_init": [10, 10], "alpha_init": [0, 2]}
    frame = ran([
        PLAIN,
        arm("gmm", 1, 2, **local),
        arm("gmm", 1, **local, freeze_masks=True),
        arm("gmm", 1, mask_lr=60, **local),  # how fast masks learn is another question
        arm("gmm", 1, **local | {"alpha_init": [0, 0.5]}),
        arm("gmm", 1, **said),  # how the paper begins them is one of this comparison
        arm("gmm", 1, freeze_masks=True),
    ])  # fmt: skip
    names = ["GMM"] * 2 + ["GMM, frozen", "GMM, published start", "GMM, published start, frozen"]
    assert priors.arms(frame).arm.to_list() == ["plain"] * 3 + names


# ---- gains ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "p, corrected",
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),  # as R's p.adjust(method = "holm") has it
        ([0.5, 0.6], [1.0, 1.0]),
        ([0.001, NAN, 0.02], [0.002, NAN, 0.02]),  # what was not run is not counted
        ([], []),
    ],
)
def test_holm(p, corrected):
    assert priors.holm(p) == pytest.approx(corrected, nan_ok=True)


def test_gains_have_the_p_of_an_analysis_of_variance_and_a_star_where_it_survives():
    values = {"gmm": (60.1, 61.2, 61.7), "gab": (62.0, 63.01, 63.99), "elm": (61.2, 61.1, 62.7)}
    rows = priors.arms(ran([PLAIN, *(arm(mask, *top1) for mask, top1 in values.items()), arm("alibi", 70.0)]))
    found = priors.points(rows).set_index("label")
    table = np.array([PLAIN[1], *values.values()])  # arms by seeds; ALiBi's one seed tells nothing of the spread
    errors = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    error = (2 * (errors**2).sum() / 6 / 3) ** 0.5  # of a mean of three differences; 6 = (4 - 1) (3 - 1)
    for mask, label in (("gmm", "GMM"), ("gab", "GAB"), ("elm", "ELM")):
        gain = np.mean(values[mask]) - 61
        assert found.p[label] == pytest.approx(2 * stats.t.sf(gain / error, 6))
        half = stats.t.ppf(0.975, 6) * error
        assert found.gain_low[label] == pytest.approx(gain - half) and found.gain_freedom[label] == 6
    assert math.isnan(found.p["ALiBi"]) and priors.survivors(priors.points(rows)) == ["GAB"]
    labels = [tick.get_text() for tick in priors.figure(priors.points(rows)).axes[0].get_yticklabels()]
    assert labels == ["ALiBi", "GAB *", "ELM", "GMM"]
    assert priors.chance(priors.points(rows)) == (
        "Of 3 arms 0.15 would have an interval without zero by chance, if no prior did anything; 2 of ours have, and "
        "1 of these survive Holm's correction: GAB."
    )


def test_with_two_arms_it_is_the_paired_t_test():
    rows = priors.arms(ran([PLAIN, arm("gab", 62.0, 63.3, 63.9)]))
    (p,) = priors.points(rows).p
    assert p == pytest.approx(stats.ttest_rel((62.0, 63.3, 63.9), PLAIN[1]).pvalue)


def test_what_should_be_used_follows_from_the_records():
    best, near = arm("gab", 64.0, 65.1, 65.9), arm("gmb", 63.5, 65.2, 65.8)
    rows = priors.arms(ran([PLAIN, best, near, arm("gmm", 59.0, 60.0, 61.1)]))
    assert priors.answer(rows) == (
        "The highest accuracy is that of GAB, 65.00 % (plain: 61.00 %); GMB cannot be told from it."
    )
    frozen = arm("gab", 64.1, 65.0, 65.7, freeze_masks=True)
    assert priors.answer(priors.arms(ran([PLAIN, best, near, frozen]))).endswith(
        "; GMB and GAB (frozen) cannot be told from it."
    )
    clear = priors.arms(ran([PLAIN, best, arm("gmm", 59.0, 60.0, 61.1)]))
    assert priors.answer(clear).endswith("ahead of every other arm.")
    worse = priors.arms(ran([PLAIN, arm("gmm", 59.0, 60.0, 61.1)]))
    assert priors.answer(worse) == "The model without a prior has the highest accuracy, 61.00 %."
    assert priors.answer(priors.arms(runs.of(make("none", **XS), []))) == priors.told(worse[:0]) == ""


# ---- tables ---------------------------------------------------------------------------------------------------------


def test_the_table_says_what_each_arm_costs_gains_and_learned():
    still = make("gmm", model="vit_xs", mask_lr=0), (61.0, 62.0, 63.0)
    frame = ran([PLAIN, arm("alibi", 62.0, 63.0, 64.1)], entropy=3.5, distance=2.0)
    other = ran([still], entropy=3.6, distance=2.5, moved=0.004, learned=False)
    frozen = ran([arm("gab", 61.0, 62.0, 63.0, freeze_masks=True)], moved=0.0, learned=False)
    moved = ran([arm("gab", 61.0, 62.5, 63.0)], moved=0.25, learned=True)

    frame = pd.concat(
        [frame, other, frozen, moved, runs.of({"rope": Row("cifar10", "vit_xs", "rope", name="rope")}, [])]
    )
    bench, sizes = {"time": {"gmm": 0.05}}, {"gmm": (60.0, 360), "gab": (2.0, 12)}
    cells = {line[1]: line[2:] for line in priors.table(priors.arms(frame), bench, sizes).cells()}
    assert cells["GMM"][:4] == ["60", "360", "+5.0%", "62.00 ± 1.00 (3), did not learn"]
    assert cells["GMM"][8:] == ["2.50", "no: moved 0.004 of its spread"] and cells["GMM"][7] == "3.60"
    assert cells["plain"][:5] == ["0", "0", "–", "61.00 ± 1.00 (3)", "–"] and cells["plain"][-1] == "no mask"
    assert cells["ALiBi"][-1] == "nothing to learn" and cells["ALiBi"][4].startswith("+2.03 [+1.78 to +2.29] (3)")
    assert cells["GAB, frozen"][-1] == "frozen" and cells["GAB"][-1] == "yes: moved 0.250 of its spread"
    assert (
        cells["RoPE"][3] == "not run" and "1 of 6 lines was not run." in priors.table(priors.arms(frame), {}, {}).md()
    )


def test_parameters_are_counted_on_the_model():
    assert priors.sizes("vit_xs", ["none", "gmm", "elm", "gab"]) == {
        "gmm": (2 * 5 * 6, 6 * 60),
        "elm": (64**2, 6 * 64**2),
        "gab": (2, 12),
    }


def test_gains_by_the_share_of_the_data_are_over_the_plain_model_on_the_same_share():
    tenth = arm("none", 40.0, 41.0, fraction=0.1), arm("gab", 44.0, 45.2, fraction=0.1)
    rows = priors.arms(ran([PLAIN, arm("gab", 61.0, 62.1, 63.0), *tenth, arm("elm", 1.0, 2.0)]))
    found = priors.by_share(rows)
    assert list(zip(found.arm, found.share, found.gain.round(2), strict=True)) == [
        ("GAB", 0.1, 4.1),
        ("GAB", 1.0, 1.03),
    ]
    tenth, all_images = np.array([4.0, 4.2]), np.array([1.0, 1.1, 1.0])  # differences at each seed
    error = (sum(((each - each.mean()) ** 2).sum() for each in (tenth, all_images)) / 3) ** 0.5
    half = stats.t.ppf(0.975, 3) * error / np.sqrt([2, 3])
    assert found.gain_high.to_list() == pytest.approx([tenth.mean() + half[0], all_images.mean() + half[1]])
    assert [line[:2] for line in priors.shares_table(rows).cells()] == [
        ["10", "plain"], ["10", "GAB"], ["100", "plain"], ["100", "GAB"],
    ]  # fmt: skip
    (axes,) = charts.by_share(found).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["10", "100"]
    assert charts.by_share(priors.by_share(rows[rows.share == 1])) is None


# ---- controls -------------------------------------------------------------------------------------------------------

CONTROL = next(each for each in controls.ALL if (each.arm, each.base) == ("GMM", "temperature"))


@pytest.mark.parametrize(
    "gmm, decides",
    [
        ((63.0, 64.1, 65.0), CONTROL.better),
        ((61.0, 60.5, 62.4), CONTROL.level),
        ((57.0, 58.1, 59.0), CONTROL.worse),
        ((63.0,), "one seed decides nothing"),
    ],
)
def test_what_a_control_decides_follows_from_its_interval(gmm, decides):
    rows = priors.arms(ran([arm("gmm", *gmm), arm("temperature", 60.0, 61.0, 62.0)]))
    (line,) = controls.lines(rows, (CONTROL,))
    assert line["decides"] == decides
    (cells,) = controls.table([line]).cells()
    assert cells[:2] == ["GMM", "temperature"] and cells[-1] == decides


def test_controls_that_were_not_run_say_so_and_those_whose_masks_stood_still_decide_nothing():
    empty = controls.lines(priors.arms(runs.of(make("gmm", **XS), [])), controls.ALL)
    assert len(empty) == len(controls.ALL) and not any(line["decides"] for line in empty)
    assert "12 of 12 lines were not run" in controls.table(empty).md()
    pair = [arm("gmm", 63.0, 64.1, 65.0), arm("gmm", 60.0, 61.0, 62.0, freeze_masks=True)]
    (control,) = (each for each in controls.ALL if (each.arm, each.base) == ("GMM", "GMM, frozen"))
    for learned, decides in ((True, control.better), (False, "nothing: the masks did not learn")):
        (line,) = controls.lines(priors.arms(ran(pair, moved=0.5, learned=learned)), (control,))
        assert line["decides"] == decides


def test_every_control_is_of_arms_that_there_are():
    names = {
        "plain",
        "GMM",
        "GMB",
        "GAB",
        "ELM",
        "temperature",
        "GMM, frozen",
        "GMM, published start",
        "GMM, published start, frozen",
        "GAB, frozen",
        priors.RANDOM,
        priors.UNIFORM,
    }
    assert {name for each in controls.ALL for name in (each.arm, each.base)} <= names
    sentences = [text for each in controls.ALL for text in each[2:]]
    assert len(set(sentences)) == len(sentences) == 3 * len(controls.ALL)


# ---- other images ---------------------------------------------------------------------------------------------------


def test_other_images_are_a_table_and_a_figure_of_the_runs_that_were_looked_at(tmp_path, monkeypatch):
    along = {"occlusion": (0.0, 0.5), "shuffle": (1, 4), "resolution": (24, 32)}
    rows = priors.arms(ran([PLAIN, arm("gab", 61.0, 62.0, 63.0), arm("rope", 70.0)]))
    rows = rows.assign(folder=list(rows.index))

    def arrays(run):
        top1 = rows.top1[run]
        found = {name: np.array([top1, top1 - 10]) for name in along} | {"axes_images": np.array(500)}
        if "rope" in run:
            found["resolution"][0] = np.nan  # it cannot take that size
        found |= {f"{name}_axis": np.array(places) for name, places in along.items()}
        return found | {"corruption": np.full((15, 5), top1) - np.arange(5), "corruption_axis": np.array(["fog"] * 15)}

    monkeypatch.setattr(robust.drawn, "arrays", arrays)
    seen = robust.measured(rows)
    table = robust.table(seen)
    titles = [column.title for column in table.columns]
    assert titles == ["prior", "as they are", "corrupted, mean of all", "half hidden", "16 tiles shuffled", "24 px"]
    assert table.cells() == [
        ["plain", "61.0 ± 1.0 (3)", "59.0 ± 1.0 (3)", "51.0 ± 1.0 (3)", "51.0 ± 1.0 (3)", "61.0 ± 1.0 (3)"],
        ["GAB", "62.0 ± 1.0 (3)", "60.0 ± 1.0 (3)", "52.0 ± 1.0 (3)", "52.0 ± 1.0 (3)", "62.0 ± 1.0 (3)"],
        ["RoPE", "70.0 (1)", "68.0 (1)", "60.0 (1)", "60.0 (1)", "–"],
    ]
    assert "On 500 test images an accuracy of 60 % has a standard error of 2.2 points" in robust.told(seen)
    gab, rope = robust.figure(seen, "corruption").axes
    assert [each.get_title() for each in (gab, rope)] == ["GAB", "RoPE"]
    *others, plain, line = gab.lines
    assert len(others) == 3 and plain.get_linestyle() == "--" and plain.get_ydata().tolist() == [61, 61, 60, 59, 58, 57]
    assert line.get_xdata().tolist() == [0, 1, 2, 3, 4, 5] and line.get_ydata().tolist() == [62, 62, 61, 60, 59, 58]
    band = gab.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (57, 63)
    *_, of_rope = robust.figure(seen, "resolution").axes[1].lines[:5]
    assert np.isnan(of_rope.get_ydata()).tolist() == [True, False]
    monkeypatch.setattr(robust.drawn, "arrays", lambda run: {})
    none = robust.measured(rows)
    assert (
        not any(robust.figure(none, axis) for axis in robust.AXES) and not robust.table(none) and not robust.told(none)
    )


def test_gains_of_arms_are_over_the_plain_model_of_their_own_length():
    rows = priors.arms(ran([PLAIN, arm("none", 50.0, 51.0, epochs=8), arm("gab", 53.0, 54.0, epochs=8)]))
    found = gains(rows, {"arm": "plain"}, priors.SAME)
    assert found.gain.to_list() == [3.0]


def test_titles_of_neighbours_keep_apart():
    arms = [priors.PLAIN, "GMM", "GAB, frozen", "GMM, published start, frozen", "GMM, published start", priors.RANDOM]
    points = [{"arm": arm, "axis": "shuffle", "place": place, "top1": 60.0} for arm in arms for place in (1, 2)]
    drawn = robust.figure(pd.DataFrame(points), "shuffle")
    drawn.draw_without_rendering()
    titles = sorted((axes.title.get_window_extent() for axes in drawn.axes), key=lambda box: box.x0)
    assert len(titles) == 5 and all(left.x1 < right.x0 for left, right in pairwise(titles))
