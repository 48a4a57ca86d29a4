"""Accuracy on images unlike those of the training: figures and a table of what was measured, arm by arm."""

import numpy as np
import pandas as pd
import pytest

from gmmvit.analysis import drawn
from gmmvit.paper import axes

ALONG = {"occlusion": [0, 0.1, 0.25, 0.5, 0.75], "shuffle": [1, 2, 4, 8], "resolution": [24, 32, 40, 48, 64]}


@pytest.fixture
def rows(tmp_path):
    """Two seeds of three arms, one of which cannot take another size, and one that was not measured."""
    lines = []
    for arm, top1 in (("plain", 60.0), ("GMM", 50.0), ("RoPE", 70.0), ("old", 40.0)):
        for seed in (0, 1):
            run = tmp_path / "runs" / f"{arm}-{seed}"
            arrays = {"corruption": top1 + seed - np.arange(75.0).reshape(15, 5), "axes_images": np.array(500)}
            for name, at in ALONG.items():
                arrays |= {name: top1 + seed - np.arange(float(len(at))), f"{name}_axis": np.array(at)}
            if arm == "RoPE":
                arrays["resolution"][[0, 2, 3, 4]] = np.nan
            drawn.file_of(run).parent.mkdir(exist_ok=True)
            np.savez(
                drawn.file_of(run), **({"erf": np.eye(2)} if arm == "old" else arrays | {"corruption_axis": ["a"]})
            )
            lines.append({"arm": arm, "seed": seed, "folder": run, "state": "done", "row": None})
    lines.append({"arm": "GAB", "seed": 0, "folder": None, "state": "not run", "row": None})
    return pd.DataFrame(lines)


def test_curves_are_what_was_measured(rows):
    found = axes.curves(rows, "corruption")
    of_one = found[(found.arm == "GMM") & (found.seed == 1)]
    assert of_one["at"].tolist() == [0, 1, 2, 3, 4, 5]
    assert of_one.top1.tolist() == [51.0, *(51 - 35.0 - np.arange(5))]  # the mean of 0, 5, ..., 70 is 35
    hidden = axes.curves(rows, "occlusion")
    assert hidden["at"].unique().tolist() == [0, 10, 25, 50, 75] and set(hidden.arm) == {"plain", "GMM", "RoPE"}
    assert axes.images(rows) == 500


def test_a_panel_for_each_prior_shows_it_over_the_plain_model_and_the_others(rows):
    figure = axes.figure(rows, "resolution")
    gmm, rope = figure.axes
    assert [each.get_title() for each in (gmm, rope)] == ["GMM", "RoPE"]
    *others, plain, line = gmm.lines
    assert len(others) == 3 and plain.get_linestyle() == "--" and plain.get_ydata()[0] == 60.5
    assert line.get_xdata().tolist() == ALONG["resolution"] and line.get_ydata().tolist() == [
        50.5,
        49.5,
        48.5,
        47.5,
        46.5,
    ]
    band = gmm.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (46, 51)
    assert np.isnan(rope.lines[4].get_ydata()).tolist() == [True, False, True, True, True]
    assert [each.get_text() for each in gmm.get_xticklabels()] == ["24", "32", "40", "48", "64"]


@pytest.mark.parametrize("axis", axes.AXES)
def test_nothing_measured_is_no_figure_and_an_empty_table(rows, axis):
    assert axes.figure(rows, axis) is not None
    for none in (rows[rows.arm.isin(["old", "GAB"])], rows[rows.arm == "GAB"].drop(columns="folder")):
        assert axes.figure(none, axis) is None and not axes.table(none) and axes.images(none) == 0


def test_the_table_has_a_mean_and_a_spread_of_each(rows):
    plain, gmm, rope = axes.table(rows).cells()
    assert plain == [
        "plain",
        "60.50 ± 0.71 (2)",
        "23.50 ± 0.71 (2)",
        "57.50 ± 0.71 (2)",
        "58.50 ± 0.71 (2)",
        "56.50 ± 0.71 (2)",
    ]
    assert rope[0] == "RoPE" and rope[-1] in ("–", "not run") and gmm[1].startswith("50.50")
