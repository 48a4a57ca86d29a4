"""The sentences beside our figures say what the records say: that we agree with a paper, and that we do not."""

import numpy as np
import pandas as pd
import pytest

from gmmvit.analysis.masks import Explained, Fit
from gmmvit.paper import gab, motivation, runs, tables
from gmmvit.paper.tables import span
from gmmvit.paper.views import LAST, RESET, View
from gmmvit.train.rows import Row


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
    told = motivation.regularities_found(lines, 5)
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
    told = motivation.fits_found(fits, 1)
    assert told.startswith("Ours, after 1 epoch: 5 Gaussians explain R² = ") and told.endswith(f"{words}.")
    assert span(r2, ".3f") in told and "(of pure noise: 0.008)" in told


def blob(row, column, sigma=4.0, side=32):
    y, x = np.indices((side, side))
    return np.exp(-((y - row) ** 2 + (x - column) ** 2) / (2 * sigma**2))


def view(**arrays):
    return View("vit_relpos", "cifar10", "plain", None, **arrays)


def test_receptive_fields_agree_or_not():
    noise = np.random.default_rng(0).random((32, 32))
    gone = gab.fields_found([view(fields={LAST: blob(15, 15), RESET: noise})])
    assert "1 of 1 fall off like one" in gone and gone.endswith("the fields are others, as published.")
    there = gab.fields_found([view(fields={LAST: noise, RESET: noise + 1e-3 * blob(15, 15)})])
    assert "none of 1 fall off like one" in there and there.endswith("nothing disappears, not as published.")
    assert "positions" not in gab.fields_found([view(fields={LAST: noise})])
    short, long = (
        view(fields={LAST: noise})._replace(row=Row("cifar10", "vit", set={"epochs": epochs})) for epochs in (2, 5)
    )
    assert gab.fields_found([short, long]).startswith("Ours, after 2 to 5 passes over the images: a Gaussian")
    assert gab.fields_found([view()]) == ""


def test_position_biases_agree_or_not():
    """A slope is fitted well by a wide Gaussian far away, which is no Gaussian around the query."""
    slope = np.add.outer(np.arange(15.0), np.zeros(15))
    centred = gab.biases_found([view(biases={"layer 1": blob(7, 7, 2, 15)})])
    assert "R² = 1.00 " in centred and centred.endswith("1 of 1 look like one around the query, as published.")
    slanted = gab.biases_found([view(biases={"layer 1": slope})])
    assert slanted.endswith("none of 1 look like one around the query, not as published.")
    assert gab.biases_found([]) == ""


def points(**ours):
    """Gains over an arm of 60 % on every seed, {label: (published, gains of ours)}."""
    rows = {f"base{seed}": ("none", seed, 60.0) for seed in range(3)}
    rows |= {
        f"{name}{seed}": (name, seed, 60 + gain) for name, (_, each) in ours.items() for seed, gain in enumerate(each)
    }
    frame = pd.DataFrame.from_dict(rows, "index", columns=["mask", "seed", "top1"]).assign(model="vit", state="done")
    found = runs.gains(frame, {"mask": "none"}, ["model"])
    return found.assign(label=found["mask"], published=[ours[name][0] for name in found["mask"]])


def test_gains_are_sorted_by_what_can_be_said_of_them():
    found = points(
        **{
            "ViT, GMM": (0.89, [-1.0, -1.2, -1.1]),
            "ViT, ELM": (None, [-1.0, 1.0, 0.5]),
            "ViT, GAB": (0.1, [1.0, 1.2, 1.1]),
            "Swin, GMM": (None, [2.0]),
            "PiT, GMM": (0.73, [float("nan")]),
        }
    )
    told = tables.gains_found(found, {5}, theirs=300)
    assert told.startswith(
        "Ours, after 5 passes over the images. Ahead by more than the seeds' spread: ViT, GAB +1.10 ["
    )
    assert "Behind by more than the seeds' spread: ViT, GMM −1.10 [−1.35 to −0.85] (3), published +0.89." in told
    assert "Not to be told from zero: ViT, ELM +0.17 [" in told and "Swin, GMM +2.00 (1)." in told and "PiT" not in told
    assert told.endswith("The paper makes 300, so this is no test of its claim.")
    assert "no test" not in tables.gains_found(found, {300}, theirs=300)
    assert tables.gains_found(found[-1:], set()) == ""


def test_nothing_is_said_of_what_was_not_run():
    assert tables.gains_found(points()[:0], set()) == ""
