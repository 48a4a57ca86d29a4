"""What figures show of images is made of weights that are there, and kept where they are not."""

import json
from argparse import Namespace

import numpy as np
import pytest
import torch

from gmmvit import cli
from gmmvit.analysis import drawn
from gmmvit.analysis.samples import samples
from gmmvit.train.classify import Classification
from gmmvit.train.processes import World
from gmmvit.train.rows import Row


@pytest.fixture(autouse=True)
def few_images(monkeypatch):
    monkeypatch.setattr("gmmvit.analysis.samples.FIELD_IMAGES", 4)


def run_of(row, reports, shift=0.0):
    """The folder of a run that has left its weights, drawn from a seed, and the task and model it had."""
    task = Classification(row, World(), 0)
    model = task.model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(shift)
    run = reports / "runs" / row.name
    run.mkdir(parents=True)
    torch.save({"row": json.dumps(vars(row)), "model": model.state_dict()}, run / "weights.pt")
    return run, task, model


@pytest.mark.parametrize("model, mask", [("vit", "gmm"), ("vit_relpos", "gab"), ("vit_heat", "elm")])
def test_arrays_are_those_of_the_model_that_was_trained(model, mask, tmp_path):
    run, *trained = run_of(Row("cifar10-mini", model, mask, seed=3), tmp_path, shift=0.01)
    found, expected = drawn.analyse(run), samples(*trained)
    assert drawn.file_of(run) == tmp_path / "analysis" / f"{run.name}.npz"
    assert found.keys() == expected.keys() == drawn.arrays(run).keys()
    for name, array in drawn.arrays(run).items():
        assert array.dtype == expected[name].dtype and array.tobytes() == expected[name].tobytes(), name
    content = drawn.file_of(run).read_bytes()
    drawn.analyse(run)
    assert drawn.file_of(run).read_bytes() == content


def test_a_row_that_no_figure_shows_has_no_file(tmp_path):
    run, *_ = run_of(Row("cifar10-mini", "cait"), tmp_path)
    drawn.file_of(run).parent.mkdir()
    drawn.file_of(run).write_bytes(b"of an older figure")
    assert drawn.analyse(run) == drawn.arrays(run) == {} and not drawn.file_of(run).exists()


def test_what_is_broken_off_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    def full(file, **arrays):
        file.write(b"half")
        raise OSError("no space left")

    run, *_ = run_of(Row("cifar10-mini", "vit"), tmp_path)
    drawn.analyse(run)
    before = drawn.file_of(run).read_bytes()
    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="no space"):
        drawn.analyse(run)
    assert [file.read_bytes() for file in drawn.file_of(run).parent.iterdir()] == [before]


def test_pretrained_weights_are_not_needed_again(tmp_path):
    row = Row("cifar10-mini", "vit_relpos", set={"pretrained_file": "gone.pt", "reset_positions": True})
    run, *_ = run_of(Row(row.dataset, row.model, name=row.name), tmp_path)
    content = torch.load(run / "weights.pt", weights_only=True)
    torch.save(content | {"row": json.dumps(vars(row))}, run / "weights.pt")
    assert "position_bias" in drawn.analyse(run)


def test_a_gpu_finds_what_the_cpu_finds(gpu, tmp_path):
    run, *_ = run_of(Row("cifar10-mini", "vit_relpos", "gab"), tmp_path)
    expected = drawn.analyse(run, "cpu")
    with gpu():
        found = drawn.analyse(run, "cuda")
    for name in ("erf", "erf_reset", "position_bias"):
        np.testing.assert_allclose(found[name], expected[name], atol=2e-3)


# ---- the verb --------------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of two rows: one with its weights, one of which only the drawn arrays are here."""
    rows = {name: {"dataset": "cifar10-mini", "model": "vit", "mask": name} for name in ("none", "gab")}
    content = {"profile": "tiny", "datasets": ["cifar10-mini"], "rows": rows}
    (tmp_path / "params.yaml").write_text(json.dumps(content))
    (tmp_path / "dvc.yaml").touch()
    monkeypatch.chdir(tmp_path)
    reports = tmp_path / "reports" / "tiny"
    run_of(Row("cifar10-mini", "vit", name="none"), reports)
    (reports / "analysis").mkdir()
    np.savez(reports / "analysis" / "gab.npz", erf=np.eye(3))
    return reports


@pytest.mark.parametrize("names", [[], ["tiny"], ["none"]])
def test_rows_without_weights_keep_what_they_have(names, project, capsys):
    kept = (project / "analysis" / "gab.npz").read_bytes()
    cli.analyse(Namespace(names=names))
    assert capsys.readouterr().out == "none: erf, erf_features, erf_reset\n"
    assert drawn.arrays(project / "runs" / "none")["erf"].shape == (32, 32)
    assert (project / "analysis" / "gab.npz").read_bytes() == kept
    assert drawn.arrays(project / "runs" / "gab")["erf"].shape == (3, 3)


@pytest.mark.parametrize(
    "name, said", [("gab", r"gab: expected weights.pt in .*runs.gab"), ("nome", "nearest is 'none'")]
)
def test_a_row_that_cannot_be_drawn_is_a_sentence(name, said, project):
    with pytest.raises((FileNotFoundError, ValueError), match=said):
        cli.analyse(Namespace(names=[name]))
