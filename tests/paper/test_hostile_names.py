"""Names in params.yaml that mean something to a shell, or lead out of the project: nothing of them is ever done."""

import os
import subprocess
import sys

import pytest
import yaml
from test_pipeline import ROOT, STAGES, copy_of_the_project, environment

from gmmvit.cli import main

PWN = "touch PWN"
ROWS = (f"a$({PWN})", f"a`{PWN}`", f"a; {PWN};", f"a' ; {PWN} ; '", f'a"; {PWN}; "', f"a\n{PWN}\n")
PROFILES = (f"p; {PWN};", f"p$({PWN})", "../../victim")
SETS = (f"cifar10-mini; {PWN};", f"$({PWN})", f"x | {PWN}")
WORST = f"a'\"`{PWN}` $({PWN}) ; {PWN} ; \n{PWN}\n"
KINDS = {"row": [*ROWS, WORST], "profile": [*PROFILES, WORST], "set": [*SETS, WORST]}
CASES = [(kind, name) for kind, names in KINDS.items() for name in names]
MAKE = ["make", f"VENV={sys.prefix}", "STAMP=stamp"]


def test_no_command_and_no_verb_holds_a_name():
    commands = [(stage.get("do") or stage)["cmd"] for stage in STAGES.values()]
    assert set(commands) == {
        "exec python pipeline/stage.py",
        "python notebooks/clean.py notebooks build/notebooks",
    }
    deps = {name: (stage.get("do") or stage)["deps"] for name, stage in STAGES.items()}
    before = {
        name: any(dep.startswith(("build/checked", "build/data/")) or "/runs" in dep for dep in deps[name])
        for name in deps
    }
    assert [name for name in before if not before[name]] == ["check", "clean"]  # the latter has no name of the file
    assert deps["check"] == ["params.yaml"] and "awk '$1" not in (ROOT / "Makefile").read_text()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    project = tmp_path_factory.mktemp("above") / "project"
    project.mkdir()
    copy_of_the_project(project)
    (project / "stamp").touch()
    for folder in ("victim/partial", "victim/runs/a"):
        (project.parent / folder).mkdir(parents=True)
    return project


def write(place, **hostile):
    """A params.yaml with names of kinds that are hostile."""
    names = {"row": "a", "profile": "p", "set": "cifar10-mini"} | hostile
    row = {"dataset": "cifar10-mini", "model": "test_vit", "set": {"epochs": 1}}
    content = {"profile": names["profile"], "datasets": [names["set"]], "rows": {names["row"]: row}}
    content |= {"dense_datasets": [], "dense_rows": {}}
    (place / "params.yaml").write_text(yaml.safe_dump(content))


def tried(place, *words):
    """What a command said, which did nothing, though all it needs is there."""
    for name in ("checked", "data/cifar10-mini.json", "notebooks/run.ipynb"):
        (place / "build" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "build" / name).write_text("{}")
    process = subprocess.run(words, cwd=place, env=environment(place), capture_output=True, text=True, timeout=600)
    said = process.stdout + process.stderr
    assert process.returncode != 0, said
    assert not list(place.parent.rglob("PWN")), said
    assert (place.parent / "victim" / "partial").is_dir() and (place.parent / "victim" / "runs" / "a").is_dir()
    assert not list(place.glob("reports/*/runs/a*/*.*"))
    return said


@pytest.mark.parametrize("kind, name", CASES)
def test_the_check_that_every_stage_comes_after_refuses_the_name(place, kind, name, monkeypatch, capsys):
    write(place, **{kind: name})
    monkeypatch.chdir(place)
    assert main(["check"]) != 0
    assert "expected letters, digits" in capsys.readouterr().err


@pytest.mark.slow
def test_the_worst_names_do_nothing_on_every_path(place):
    """All names of a file at once: that the check refuses each alone is tested above, in this process."""
    write(place, **dict.fromkeys(KINDS, WORST))
    stages = [f"run@{WORST}", f"data@{WORST}"]
    paths = [["dvc", "repro", stage] for stage in stages] + [["dvc", "repro", "-s", stage] for stage in stages]
    paths += [["dvc", "repro"], ["dvc", "repro", "--keep-going"], ["python", "pipeline/repro.py", "-s", stages[0]]]
    paths += [[*MAKE, "repro"], [*MAKE, "rows"], [*MAKE, "repro", "KEEP_GOING=1"]]
    for words in paths:
        said = tried(place, *words)
        assert "expected letters, digits" in said, words


@pytest.mark.slow
def test_a_stage_that_is_not_in_the_file_is_refused(place):
    write(place)
    env = environment(place)
    for stage in ("run@b", "data@cifar100", "notebook@other-main_results", "nosuch@other", f"run@$({PWN})"):
        words = [sys.executable, "pipeline/stage.py"]
        process = subprocess.run(words, cwd=place, env=env | {"DVC_STAGE": stage}, capture_output=True, text=True)
        assert process.returncode == 1 and "is not in params.yaml" in process.stderr, stage
    assert not os.path.exists(place / "PWN")
