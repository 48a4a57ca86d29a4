"""What a notebook shows of receptive fields and position biases, from runs and from a model that somebody names."""

from pathlib import Path

import nbformat
import numpy as np
import pytest
import timm
import torch
import torch.nn as nn

from gmmvit import attach
from gmmvit.analysis import drawn
from gmmvit.analysis.fields import fit_gaussian
from gmmvit.models import create_model
from gmmvit.paper.gab import fields_table, fit_field, fits_table, published_fits_table
from gmmvit.paper.pictures import fields, reverse_convolution, seen_by_queries, seen_by_the_centre
from gmmvit.paper.published import table
from gmmvit.paper.runs import of
from gmmvit.paper.views import LAST, LOOKED, RESET, View, summed, views, with_biases
from gmmvit.train import learned
from gmmvit.train.rows import Row

STEPS = np.arange(-7, 8)
D2 = STEPS[:, None] ** 2 + STEPS**2  # (15, 15)


def blob(side, sigma, x, y):
    rows, columns = np.indices((side, side))
    return np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / (2 * sigma**2)).astype(np.float16)


@pytest.fixture
def project(tmp_path):
    """Rows and runs: a plain model, one with GAB, an arm of an ablation, one that was not run."""
    return run(
        tmp_path,
        ("vit_relpos", "none", {}, 3.0),
        ("vit_relpos", "gab", {"share_heads": False, "epochs": 1}, 2.0),
        ("vit", "gmm", {"kernels": 3}, 2.0),
        ("vit", "none", {}, None),
    )


def run(tmp_path, *arms):
    """A frame of rows, each a model, a mask, settings and the width of what it looks at; None: it was not run."""
    rows, runs = {}, []
    for model, mask, options, field in arms:
        row = Row("cifar10-mini", model, mask, set=options)
        rows[row.name] = row
        if field:
            torch.manual_seed(0)
            made = create_model(model)
            if mask != "none":
                attach(made, mask, **row.mask_options)
            kernels = np.stack([np.exp(-D2 / (2 * s**2)) for s in np.linspace(1, 2, 9)]).astype(np.float32)
            folder = tmp_path / "runs" / row.name
            folder.mkdir(parents=True)
            arrays = {"erf": blob(32, field, 13, 14), "erf_reset": blob(32, 1.0, 13, 14)}
            arrays |= {"erf_features": np.array("last")} | ({"position_bias": kernels} if "relpos" in model else {})
            learned.save(made, folder)
            drawn.file_of(folder).parent.mkdir(exist_ok=True)
            np.savez(drawn.file_of(folder), **arrays)
            runs.append({"row": {"name": row.name}, "folder": folder})
    return of(rows, runs)


def test_the_notebook_looks_at_a_model_of_ones_own(tmp_path):
    """Its first two cells, as papermill would run them with `model` and `weights`."""
    made = timm.create_model("test_vit")
    torch.manual_seed(0)
    for parameter in made.parameters():  # untrained, it looks nowhere
        nn.init.normal_(parameter, std=0.1)
    torch.save(made.state_dict(), tmp_path / "weights.pth")
    cells = nbformat.read(Path(__file__).parents[2] / "notebooks" / "erf_rpe.ipynb", as_version=4).cells
    parameters, first = [cell.source for cell in cells if cell.cell_type == "code"][:2]
    names = {"In": []}
    exec(parameters, names)
    names |= {"profile": "smoke", "model": "test_vit", "weights": str(tmp_path / "weights.pth"), "images": 2}
    exec(first, names)
    assert [(view.model, view.dataset) for view in names["views"] if view.arm == LOOKED] == [
        ("test_vit", "cifar10-mini")
    ]


def test_a_profile_s_views_are_of_the_arms_that_were_run(project):
    found = views(project)
    assert [view.label for view in found] == ["ViT (R), plain", "ViT (R), GAB head-wise"]
    assert all(list(view.fields) == [LAST, RESET] for view in found) and with_biases(found) == found
    assert not found[0].gaussians and len(found[1].gaussians) == 9
    np.testing.assert_allclose(found[1].gaussians["layer 3"], 4 * np.exp(-D2 / 50), rtol=1e-5)  # A = 2, sigma = 5
    lines = summed(found)
    assert list(lines) == [
        "ViT (R), plain", "ViT (R), GAB head-wise, bias alone", "ViT (R), GAB head-wise, bias + Gaussian"
    ]  # fmt: skip
    both = lines["ViT (R), GAB head-wise, bias + Gaussian"]["layer 1"]
    np.testing.assert_allclose(both, np.exp(-D2 / 2) + 4 * np.exp(-D2 / 50), rtol=1e-5)


def test_a_mixture_is_looked_at_where_most_begin(tmp_path):
    local = {"sigma_init": (2, 0.5), "alpha_init": (0.2, 0)}
    published, ablation = {"sigma_init": (10, 10), "alpha_init": (0, 2)}, {**local, "kernels": 3}
    arms = [("vit", "gmm", start, 2.0) for start in (published, local, ablation)]
    assert [(view.label, view.row.set) for view in views(run(tmp_path, *arms))] == [("ViT, GMM", local)]


def test_the_tables_hold_published_and_our_fits(project):
    found = views(project)
    ours = fits_table(found).lines
    assert len(ours) == 27
    for line, sigma in zip(ours[:9], np.linspace(1, 2, 9), strict=True):
        assert line["_sigma_x"] == pytest.approx(sigma, abs=0.05) and line["_r2"] > 0.99
    published = table("gab_erf")["rows"]
    lines = fields_table(found).lines
    ours, theirs = lines[: -len(published)], lines[-len(published) :]  # ours first: who opens the table sees them
    assert [line["model"] for line in theirs] == [row["model"] for row in published]
    assert {line["ours_r2_state"] for line in theirs} == {"not run"}
    assert [round(line["ours_sigma_x"], 2) for line in ours] == [3.0, 1.0, 2.0, 1.0]
    assert [line["model"] for line in ours[-2:]] == [found[1].label, f"{found[1].label}, positions re-initialised"]
    first = published_fits_table(found).lines[0]
    assert (first["layer"], first["vit_relpos_small_patch16_224_r2"]) == (1, 0.731)
    assert [first[key] for key in first if key.endswith("_ours_state")] == ["not run"] * 3


def test_published_widths_have_the_decimals_that_are_printed():
    rows = {row["model"]: (row["sigma_x"], row["sigma_y"]) for row in table("gab_erf")["rows"]}
    assert rows["vit_base_patch16_224"] == (159.531, 2068.001)
    assert rows["vit_large_patch16_224"] == (136.167, 2191.316)
    swin = [rows[f"swin_{size}_patch4_window7_224"] for size in ("small", "base", "large")]
    assert swin == [(97.528, 96.528), (128.219, 119.284), (102.8, 97.167)]
    assert [row["size"] for row in table("gab_erf")["rows"] if row["model"].startswith("swinv2")] == [256] * 4


def test_the_published_weights_stand_beside_the_published_fits_once_they_were_looked_at():
    name, steps = "vit_relpos_small_patch16_224", np.arange(-13, 14)
    kernel = np.exp(-(steps[:, None] ** 2 + steps**2) / (2 * 1.5**2))
    biases = {f"layer {number}": kernel for number in range(1, 13)}
    field = blob(224, 6, 103, 104)
    seen = View(name, "imagenet", "plain", Row("imagenet", name), "last", {LAST: field}, biases)
    for view in (seen, seen._replace(arm=LOOKED, row=None, dataset="pets")):
        made = published_fits_table([view])
        assert made.lines[4][f"{name}_ours_sigma_y"] == pytest.approx(1.5, abs=1e-3) and len(made.columns) == 15
    (line,) = (line for line in fields_table([seen]).lines if line["model"] == name)
    assert (line["ours_sigma_x"], line["published_sigma_x"]) == (pytest.approx(6, abs=0.01), 5.381)
    trained_elsewhere = seen._replace(dataset="pets")
    assert published_fits_table([trained_elsewhere]).lines[0][f"{name}_ours_state"] == "not run"


def test_a_field_is_fitted_as_it_is_and_its_scale_does_not_matter():
    field = blob(32, 2.5, 13, 14).astype(float) + 0.1
    assert fit_field(field).sigma_x == pytest.approx(fit_field(100 * field).sigma_x, rel=1e-4)
    assert fit_field(field).sigma_x != pytest.approx(fit_gaussian(field).sigma_x, rel=0.05)  # no minimum taken away


def test_the_figures_show_what_they_are_given():
    kernels = {f"layer {number}": np.exp(-D2 / 8) + number for number in (1, 2, 3)}
    maps = {f"model {number}": {LAST: blob(32, 3, 13, 14)} for number in range(7)}
    maps["model 0"][RESET] = blob(32, 1, 13, 14)
    *drawn, bar = [axes for axes in fields(maps).axes if axes.get_visible()]
    assert bar.get_ylabel() == "sensitivity to a pixel"
    assert len(drawn) == 14 and sum(bool(axes.images) for axes in drawn) == 8
    assert {axes.images[0].get_array().min() for axes in drawn if axes.images} == {0}
    assert {axes.images[0].get_array().max() for axes in drawn if axes.images} == {1}
    panels = [axes for axes in seen_by_queries({"a": kernels["layer 1"]}).axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == [f"n = {n}" for n in (0, 1, 2, 7, 27, 56, 63)]
    for axes, n in zip(panels, (0, 1, 2, 7, 27, 56, 63), strict=True):
        assert int(axes.images[0].get_array().argmax()) == n  # a bias that is highest at the query itself
    figure = seen_by_the_centre({"a": kernels, "b": {"layer 1": kernels["layer 2"]}})
    centres = [axes.images[0].get_array() for axes in figure.axes if axes.get_visible() and axes.images]
    assert len(centres) == 4 and all(each.argmax() == 27 and each.min() == 0 for each in centres)
    assert [axes.get_title() for axes in figure.axes[:3]] == ["layer 1", "2", "3"]
    assert reverse_convolution(kernels["layer 1"], "position bias").axes[-1].get_ylabel() == "position bias"
