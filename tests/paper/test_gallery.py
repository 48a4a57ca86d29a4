"""The gallery of priors: a block for each, of what was found and nothing else."""

import numpy as np
import pandas as pd
import pytest

import gmmvit
from gmmvit.paper import gallery, motivation
from gmmvit.train import learned
from gmmvit.train.rows import Row


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """An arm that was run, one that was not, and one without a mask."""
    folder, lines = tmp_path_factory.mktemp("run"), []
    model = gmmvit.create_model("vit_xs", mask="slope")
    for mask in gmmvit.masks_of(model).values():
        mask.slope.data += 1
    learned.save(model, folder)
    for arm, mask, seed, state in (
        ("slope", "slope", 0, "not run"), ("slope", "slope", 1, "done"),
        ("ALiBi", "alibi", 0, "not run"), ("plain", "none", 0, "done"),
    ):  # fmt: skip
        row = Row("cifar10-mini", "vit_xs", mask, seed=seed)
        lines.append({"arm": arm, "mask": mask, "seed": seed, "row": row, "state": state, "folder": folder})
    return pd.DataFrame(lines)


def test_a_prior_is_shown_at_the_start_and_where_it_was_run_learned(rows):
    found = gallery.shapes(rows)
    assert list(found) == ["slope", "ALiBi"] and found["ALiBi"][1] is None
    began, ended = found["slope"]
    np.testing.assert_allclose(began.weight, found["ALiBi"][0].weight, atol=1e-5)
    assert (ended.weight[1:] < began.weight[1:]).all()
    figure = gallery.figure(found)
    slope, learned_slope, by_distance, alibi, hidden, of_alibi = figure.axes
    np.testing.assert_array_equal(slope.images[0].get_array(), began.centre)
    np.testing.assert_array_equal(learned_slope.images[0].get_array(), ended.centre)
    limit = np.abs(ended.centre).max()
    assert all(axes.images[0].get_clim() == (-limit, limit) for axes in (slope, learned_slope))
    assert [line.get_ydata().tolist() for line in by_distance.lines] == [began.weight.tolist(), ended.weight.tolist()]
    assert slope.get_title(loc="left") == "slope" and by_distance.get_title(loc="right") == "added to the score"
    assert alibi.images and not hidden.get_visible() and len(of_alibi.lines) == 1
    assert [each.get_text() for each in figure.legends[0].get_texts()] == ["start", "learned"]


def test_an_arm_is_shown_by_its_first_seed_wherever_its_rows_stand():
    lines = [{"arm": "GMM", "mask": "gmm", "state": "not run", "folder": None, "seed": seed} for seed in (2, 0, 1)]
    lines = [line | {"row": Row("cifar10-mini", "vit_xs", "gmm", seed=line["seed"])} for line in lines]
    shown, first = (gallery.shapes(pd.DataFrame(each))["GMM"][0].weight for each in (lines, lines[1:2]))
    np.testing.assert_array_equal(shown, first)


def test_no_priors_are_no_figure(rows):
    assert gallery.shapes(rows[rows["mask"] == "none"]) == {} and gallery.figure({}) is None


def test_mixtures_are_fitted_to_masks_whose_weights_differ(tmp_path):
    found = {}
    for mask in ("alibi", "temperature", "rope"):
        learned.save(gmmvit.create_model("vit_xs", mask=mask), tmp_path)
        found[mask] = learned.read(tmp_path)[0]
    fits = motivation.fitted(found, most=2)
    assert list(fits) == ["alibi"]
    (one, two), bound = fits["alibi"]
    assert one.r2 < 0.1 < 0.9 < two.r2 <= bound.r2 == pytest.approx(1)  # a cone: a wide Gaussian less a narrower one
