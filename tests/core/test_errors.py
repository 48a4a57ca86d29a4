"""The sentence about an unknown name."""

import subprocess
import sys

import pytest

from gmmvit.cli import main
from gmmvit.core.errors import MOST, sentence, unknown


def test_the_nearest_name_comes_first_and_few_names_are_all_told():
    said = unknown("mask", "gm", ["elm", "gab", "gmm", "none"])
    assert said == "unknown mask 'gm': the nearest is 'gmm'; expected one of elm, gab, gmm, none"
    assert unknown("mask", "xyz", ["elm", "gab"]) == "unknown mask 'xyz': expected one of elm, gab"


def test_of_many_names_the_nearest_are_told():
    said = unknown("row", "row-07a", [f"row-{number:02}" for number in range(40)])
    assert said.startswith("unknown row 'row-07a': the nearest is 'row-07'; expected one of row-07, ")
    assert said.endswith(" and 28 more") and said.count("row-") == 2 + MOST


@pytest.mark.parametrize(
    "words, missing",
    [([], "--dataset and no --model"), (["--dataset=cifar10"], "--model"), (["--model=vit"], "--data")],
)
def test_a_row_that_is_not_named_wants_a_data_set_and_a_model(words, missing, capsys):
    assert main(["train", *words]) == 1
    said = capsys.readouterr().err
    assert f"by name, or --dataset and --model, got no {missing}" in said and "problems" not in said


def test_outside_a_project_the_sentence_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("gmmvit.data.places.CHECKOUT", tmp_path)  # as installed from a wheel
    monkeypatch.chdir(tmp_path)
    assert main(["report", "cpu"]) == 1
    said = capsys.readouterr().err
    assert "profiles is not there: expected the project's folder" in said and "one of" not in said.split(":")[-1][:10]


@pytest.mark.slow
def test_what_is_not_installed_is_said_with_the_extra_that_brings_it():
    said = sentence(ModuleNotFoundError("No module named 'ruamel'", name="ruamel.yaml"))
    assert said == "ruamel is not installed: expected what `pip install '.[train]'` in a clone of gmmvit brings"
    assert "pip install" not in sentence(ModuleNotFoundError("No module named 'nosuch'", name="nosuch"))
    code = "import sys; sys.modules['tqdm'] = None; from gmmvit.data import load"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    said = "MissingExtra: tqdm is not installed: expected what `pip install '.[train]'` in a clone of gmmvit brings"
    assert said in done.stderr
