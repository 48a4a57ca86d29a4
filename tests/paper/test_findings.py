"""The sentences beside our figures say what the records say: that we agree with a paper, and that we do not."""

import numpy as np
import pytest

from gmmvit.analysis.masks import Explained, Fit
from gmmvit.paper import ablation, erf_tables, main_table, method
from gmmvit.paper.seeds import paired_gain
from gmmvit.paper.tables import span
from gmmvit.paper.views import LAST, RESET, View


def line(z, falls, r2=0.5):
    return {"self_z": z, "decay_weight": falls, "r2": r2, "noise": 0.008}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([line(-0.47, -0.17, 0.008), line(0.17, 0.19, 0.062)], "seen together in no layer: not as published"),
        ([line(-3.1, -0.8), line(-2.5, -0.6)], "Both regularities are seen in every layer, as published"),
        ([line(-3.1, -0.8), line(-2.5, 0.1)], "seen together in 1 of 2 layers: in part as published"),
        ([line(float("nan"), float("nan"))], "in no layer: not as published"),  # a mask that is constant
    ],
)
def test_regularities_are_found_or_not(lines, words):
    told = method.regularities_found(lines, 5)
    assert told.startswith("Ours, after 5 epochs: ") and told.endswith(f"{words}.")
    if lines[0]["self_z"] == -0.47:
        assert "lies −0.47 to 0.17 sd" in told and "R² = 0.008 to 0.062 (of pure noise: 0.008)" in told


@pytest.mark.parametrize(
    ("r2", "words"),
    [
        ((0.002, 0.05), "little of it in any layer, not as published"),
        ((0.8, 0.9), "most of it in every layer, as published"),
        ((0.1, 0.9), "most of it in 1 of 2 layers, in part as published"),
    ],
)
def test_mixtures_explain_a_mask_or_not(r2, words):
    fits = {
        f"layer {n}": ([Fit(np.ones(k), np.ones(k), each * k / 5) for k in range(1, 6)], Explained(each + 0.01, 0.008))
        for n, each in enumerate(r2)
    }
    told = method.fits_found(fits, 1)
    assert told.startswith("Ours, after 1 epoch: 5 Gaussians explain R² = ") and told.endswith(f"{words}.")
    assert span(r2, ".3f") in told and "(of pure noise: 0.008)" in told


def blob(row, column, sigma=4.0, side=32):
    y, x = np.indices((side, side))
    return np.exp(-((y - row) ** 2 + (x - column) ** 2) / (2 * sigma**2))


def view(**arrays):
    return View("vit_relpos", "cifar10", "plain", None, **arrays)


def test_receptive_fields_agree_or_not():
    noise = np.random.default_rng(0).random((32, 32))
    gone = erf_tables.fields_found([view(fields={LAST: blob(15, 15), RESET: noise})])
    assert "1 of 1 fall off like one" in gone and gone.endswith("the fields are others, as published.")
    there = erf_tables.fields_found([view(fields={LAST: noise, RESET: noise + 1e-3 * blob(15, 15)})])
    assert "none of 1 fall off like one" in there and there.endswith("nothing disappears, not as published.")
    assert "positions" not in erf_tables.fields_found([view(fields={LAST: noise})])
    assert erf_tables.fields_found([view()]) == ""


def test_position_biases_agree_or_not():
    """A slope is fitted well by a wide Gaussian far away, which is no Gaussian around the query."""
    slope = np.add.outer(np.arange(15.0), np.zeros(15))
    centred = erf_tables.biases_found([view(biases={"layer 1": blob(7, 7, 2, 15)})])
    assert "R² = 1.00 " in centred and centred.endswith("1 of 1 look like one around the query, as published.")
    slanted = erf_tables.biases_found([view(biases={"layer 1": slope})])
    assert slanted.endswith("none of 1 look like one around the query, not as published.")
    assert erf_tables.biases_found([]) == ""


def point(label, ours, **published):
    base = dict.fromkeys(range(len(ours)), 60.0)
    return {"label": label, "gain": paired_gain({seed: 60 + gain for seed, gain in enumerate(ours)}, base)} | published


def test_gains_are_sorted_by_what_can_be_said_of_them():
    points = [
        point("ViT, GMM", [-1.0, -1.2, -1.1], published=0.89),
        point("ViT, ELM", [-1.0, 1.0, 0.5], published=None),
        point("ViT, GAB", [1.0, 1.2, 1.1], published=0.1),
        point("Swin, GMM", [2.0]),
        point("PiT, GMM", []),
    ]
    told = main_table.gains_found(points, {5}, theirs=300)
    assert told.startswith(
        "Ours, after 5 passes over the images. Ahead by more than the seeds' spread: ViT, GAB +1.10 ["
    )
    assert "Behind by more than the seeds' spread: ViT, GMM −1.10 [−1.35 to −0.85] (3), published +0.89." in told
    assert "Not to be told from zero: ViT, ELM +0.17 [" in told and "Swin, GMM +2.00 (1)." in told and "PiT" not in told
    assert told.endswith("The paper makes 300, so this is no test of its claim.")
    assert "no test" not in main_table.gains_found(points, {300}, theirs=300)
    assert main_table.gains_found(points[-1:], set()) == ""


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
    base = dict.fromkeys(range(len(more)), 60.0)
    ours = {seed: 60.0 + gain for seed, gain in enumerate(more)}
    arms = {"GMM, one for each head": ours, "ELM": base, "before the softmax": base, "after the softmax": ours}
    told = ablation.others_found([{"dataset": "cifar10", "label": label, "seeds": s} for label, s in arms.items()])
    assert told.startswith("Ours: GMM, one for each head against ELM on CIFAR-10 ")
    elm, place = told.removesuffix(".").split("; ")
    assert elm.endswith(first) and place.endswith(second)


def test_nothing_is_said_of_what_was_not_run():
    assert ablation.others_found([{"dataset": "cifar10", "label": "ELM", "seeds": {0: 60.0}}]) == ""
    assert main_table.gains_found([], set()) == ""
