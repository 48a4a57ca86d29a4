"""What the rows of a profile came to: as `gmmvit results` prints it, and as DVC shows it."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import fmean, stdev

import pytest
import yaml

from gmmvit.cli import main
from gmmvit.paper.profiles import Params
from gmmvit.paper.project import params_of
from gmmvit.paper.runs import of, runs
from gmmvit.paper.scores import scores_table, write_curves
from gmmvit.train.record import write_scores
from gmmvit.train.rows import Row

ROOT = Path(__file__).parents[2]
TOP1 = {"none": (60.0, 61.0, 65.0), "gmm": (62.0, 62.0, 68.0)}


def profile(*rows):
    return Params("cpu", {row.name: row for row in rows}, {})


def ran(folder, row, value, score="top1"):
    """Leaves the record of a row that was run."""
    run = folder / "runs" / row.name
    run.mkdir(parents=True, exist_ok=True)
    cost = {"epochs": 2, "parameters": 2_692_042, "macs": 184_616_832, "images": 249_600}
    metrics = {"row": vars(row), "epoch": 2, score: value, f"best_{score}": value, "best_epoch": 2, **cost}
    (run / "metrics.json").write_text(json.dumps(metrics))
    (run / "history.csv").write_text(f"epoch,lr,{score}\n1,0.1,{value - 5}\n2,0.1,{value}\n")
    write_scores(run, metrics)


@pytest.fixture
def three_seeds(tmp_path):
    rows = [Row("cifar10", "vit", mask, seed=seed, set={"epochs": 1}) for mask in TOP1 for seed in range(3)]
    lone = Row("cifar10", "vit", "gmm", set={"epochs": 1, "kernels": 3})
    for row in rows:
        ran(tmp_path, row, TOP1[row.mask][row.seed])
    return profile(*rows, lone, Row("cifar10", "vit", "gmm", seed=1, set={"epochs": 1, "kernels": 3})), tmp_path, lone


def test_an_arm_has_its_mean_spread_and_paired_gain(three_seeds):
    params, folder, lone = three_seeds
    ran(folder, lone, 60.5)
    plain, masked, fewer = scores_table(of(params.rows, runs(folder)))
    means = {mask: f"{fmean(values):.2f} ± {stdev(values):.2f}" for mask, values in TOP1.items()}
    assert plain == ("cifar10", "vit", "none", "3", "top-1", means["none"], "")
    # gains 2, 1, 3: mean 2, sd 1, t(0.975, 2) = 4.3027
    half = 4.302653 / 3**0.5
    assert masked == ("cifar10", "vit", "gmm", "3", "top-1", means["gmm"], f"+2.00 [{2 - half:+.2f}, {2 + half:+.2f}]")
    assert fewer == (
        "cifar10",
        "vit",
        "gmm (kernels3)",
        "1 of 2",
        "top-1",
        "60.50",
        "+0.50",
    )  # what all share is left out


def test_an_arm_whose_masks_did_not_learn_says_so(three_seeds):
    params, folder, _ = three_seeds
    found = of(params.rows, [run | {"learned": False} for run in runs(folder) if run["row"]["mask"] == "gmm"])
    assert [line[5].partition(", ")[2] for line in scores_table(found)] == ["did not learn"]


def test_transmix_is_set_against_the_same_without_it_and_other_settings_are_not(tmp_path):
    mixing = {"readout": "token", "cutmix": 1.0}
    token, mixed = Row("cifar10", "vit", set=mixing), Row("cifar10", "vit", set=mixing | {"transmix": True})
    other = Row("cifar10", "vit", "gmm", "gmm")  # another recipe: no plain row beside it
    for row, value in ((token, 50.0), (mixed, 51.5), (other, 90.0)):
        ran(tmp_path, row, value)
    rows = profile(Row("cifar10", "vit"), token, mixed, other).rows
    assert [line[-1] for line in scores_table(of(rows, runs(tmp_path)))] == ["", "+1.50", ""]


def test_the_verb_prints_them_and_says_how_many_rows_were_run(three_seeds, monkeypatch, capsys):
    params, folder, _ = three_seeds
    place = folder / "project"
    (place / "reports").mkdir(parents=True)
    (place / "dvc.yaml").touch()
    content = {"profile": "cpu", "rows": {name: {**vars(row)} for name, row in params.rows.items()}}
    for row in content["rows"].values():
        del row["name"]
    (place / "params.yaml").write_text(yaml.safe_dump(content))
    shutil.move(folder / "runs", place / "reports" / "cpu" / "runs")
    monkeypatch.chdir(place)
    for words in (["results"], ["results", "cpu"]):
        assert main(words) == 0
        said = capsys.readouterr().out
        assert (
            "cifar10" in said and "62.00 ± 2.65" in said and "64.00 ± 3.46" in said and "+2.00 [-0.48, +4.48]" in said
        )
        assert "profile cpu: 6 of 8 rows were run" in said


def test_every_rows_curve_is_in_one_file(three_seeds):
    params, folder, _ = three_seeds
    box = Row("coco-shapes", "swin_micro", recipe="coco-3x")
    ran(folder, box, 40.0, "box_AP")
    ran(folder, Row("svhn", "vit"), 40.0)  # of an earlier params.yaml
    params.rows[box.name] = box
    with open(write_curves(params, folder), newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 2 * 7 and {line["row"] for line in lines} == {*list(params.rows)[:6], box.name}
    assert [line["score"] for line in lines if line["row"] == box.name] == ["35.0", "40.0"]
    assert [line["epoch"] for line in lines][:2] == ["1", "2"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A DVC project with the longest names of the profile paper, and a chart's data."""
    place = tmp_path_factory.mktemp("project")
    for name in ("dvc.yaml", ".dvc/plots/rows.json", ".dvc/config", ".dvcignore"):
        (place / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(ROOT / name, place / name)
    content = yaml.safe_load(params_of(ROOT / "profiles" / "paper.yaml"))
    kept = {"rows": sorted(content["rows"], key=len)[-12:], "dense_rows": list(content["dense_rows"])}
    for key, names in kept.items():
        content[key] = {name: content[key][name] for name in names}
    (place / "params.yaml").write_text(yaml.safe_dump(content))
    rows = {name: Row(**row, name=name) for key in kept for name, row in content[key].items()}
    for number, row in enumerate(rows.values()):
        ran(place / "reports" / "paper", row, 76.123 + number, row.recipe_settings.score)
    write_curves(Params("paper", rows, {}), place / "reports" / "paper")
    subprocess.run(["git", "init", "-q"], cwd=place, check=True)
    return place, rows


def dvc(place, *words):
    dvc = Path(sys.executable).with_name("dvc")
    done = subprocess.run([dvc, *words], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_dvc_metrics_fit_a_terminal(shown):
    place, rows = shown
    head, *lines = dvc(place, "metrics", "show").splitlines()
    assert head.split() == ["Path", "box_AP", "mIoU", "top1"] and len(lines) == len(rows)
    assert max(map(len, lines)) <= 160


@pytest.mark.slow
def test_dvc_plots_are_one_chart_of_all_rows(shown):
    place, rows = shown
    dvc(place, "plots", "show")
    page = (place / "dvc_plots" / "index.html").read_text()
    assert page.count("vegaEmbed(") == 1 and all(f'"row": "{name}"' in page for name in rows)
    assert '"field": "row", "type": "nominal"' in page and "DVC_METRIC" not in page
