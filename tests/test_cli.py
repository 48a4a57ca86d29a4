"""The command: what it loads, what it answers and what it leaves alone."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gmmvit import create_model
from gmmvit.bench import verbs as benches
from gmmvit.cli import main
from gmmvit.data import places
from gmmvit.fetch import NotObtained, obtain

ROOT = Path(__file__).parents[1]
PAPER = ROOT / "profiles" / "paper.yaml"
WORDS = """
import sys, gmmvit_command
sys.argv = ["gmmvit", *sys.argv[1:]]
try:
    gmmvit_command.main()
except SystemExit as left:
    print("left with", left.code, "torch" in sys.modules, "gmmvit" in sys.modules)
"""


@pytest.mark.parametrize("words, code", [(["--help"], 0), (["train", "--help"], 0), (["trian"], 2), (["bench"], 2)])
def test_help_and_wrong_words_are_answered_without_torch(words, code):
    done = subprocess.run([sys.executable, "-c", WORDS, *words], cwd=ROOT, capture_output=True, text=True)
    assert f"left with {code} False False" in done.stdout, done.stderr
    assert "usage: gmmvit" in done.stdout + done.stderr


def test_verbs_that_only_read_load_no_torch(in_force):
    """Reading and planning the 605 rows of `paper` takes no model; a second of waiting would be torch."""
    lines = ["import sys", "from gmmvit_command import rooms", "rooms()", "from gmmvit.cli import main"]
    for words in (["check"], ["models"], ["rows", str(PAPER)], ["plan", str(PAPER)], ["results", "a"]):
        lines.append(f"print(*{words}, main({words}), 'torch' in sys.modules, file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=in_force, capture_output=True, text=True)
    said = [line.split()[-2:] for line in done.stderr.splitlines()]
    assert said == [["0", "False"]] * 5, done.stderr
    assert "vit_xs + gmm" in done.stdout and "a-row: " not in done.stdout and "605" in done.stdout


def test_the_front_door_opens_for_the_first_who_asks_for_a_name_of_it(tmp_path):
    (tmp_path / "gmmvit" / "room").mkdir(parents=True)
    (tmp_path / "gmmvit" / "__init__.py").write_text("print('opened')\nfrom .room import inner\nname = inner + 1\n")
    (tmp_path / "gmmvit" / "room" / "__init__.py").write_text("inner = 1\n")
    (tmp_path / "gmmvit" / "room" / "b.py").write_text("from .. import room\n")
    lines = ["from gmmvit_command import rooms", "package = rooms()", "import gmmvit.room.b", "print('shut')"]
    lines += ["from gmmvit import name", "import gmmvit", "print(name, gmmvit.name, gmmvit is package is rooms())"]
    shutil.copy(ROOT / "gmmvit_command.py", tmp_path)
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["shut", "opened", "2 2 True"], done.stderr


@pytest.mark.slow
def test_the_program_is_installed_under_its_name():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"gmmvit": "gmmvit_command:main"}
    assert project["tool"]["setuptools"]["py-modules"] == ["gmmvit_command"]
    done = subprocess.run([sys.executable, "gmmvit_command.py", "train"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "gmmvit train: expected a row" in done.stderr  # the verb runs in the package


# ---- data -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_force(tmp_path, monkeypatch):
    """A project whose profile needs the small sample, with room for data of its own."""
    (tmp_path / "dvc.yaml").touch()
    (tmp_path / "params.yaml").write_text("profile: a\nrows:\n  a-row: {dataset: cifar10-mini, model: vit}\n")
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GMMVIT_DATA", raising=False)
    return tmp_path


def test_check_fails_only_where_the_profile_in_force_misses_something(in_force, capsys):
    assert main(["data", "--check"]) == 0
    said = capsys.readouterr().out
    assert said.count("`gmmvit data") == 1 and "not there: cifar10, cifar100, svhn" in said
    assert main(["data", "--check", "cifar100"]) == 1  # asked for by name

    params = in_force / "params.yaml"
    params.write_text(params.read_text().replace("cifar10-mini", "svhn"))
    assert main(["data", "--check"]) == 1
    assert main(["data"]) == 0  # a list is no check


def test_check_fails_where_a_set_of_the_profile_is_damaged(in_force, capsys):
    sample = in_force / "data" / "cifar10-mini"
    shutil.copytree(ROOT / "data" / "cifar10-mini", sample)
    assert main(["data", "--check"]) == 0
    images = sample / "train.webp"
    images.write_bytes(images.read_bytes()[:-9])
    capsys.readouterr()
    assert main(["data", "--check"]) == 1 and "cifar10-mini: " in capsys.readouterr().out


def test_without_a_project_nothing_is_in_force(tmp_path, monkeypatch):
    monkeypatch.setattr("gmmvit.data.places.CHECKOUT", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["data", "--check"]) == 0


def test_the_sample_is_looked_for_where_data_belong_once_the_package_is_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "CHECKOUT", tmp_path / "site-packages")
    monkeypatch.delenv("GMMVIT_DATA", raising=False)
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    with pytest.raises(NotObtained, match="comes with the repository"):
        obtain("cifar10-mini")
    assert list(tmp_path.rglob("*")) == [tmp_path / "home"]  # no lock, no folder


# ---- bench ----------------------------------------------------------------------------------------------------------


def test_a_benchmark_keeps_its_figures_only_when_asked(in_force, monkeypatch, capsys):
    monkeypatch.setattr(benches, "mix", lambda arguments, device: ({"models": {}}, "a table"))
    record = in_force / "reports" / "bench" / "mix.json"
    record.parent.mkdir(parents=True)
    record.write_text("the committed one")
    assert main(["bench", "mix"]) == 0
    assert record.read_text() == "the committed one" and "not saved: --record" in capsys.readouterr().out
    assert main(["bench", "mix", f"--out={in_force / 'mine.json'}"]) == 0 and (in_force / "mine.json").exists()
    assert record.read_text() == "the committed one"
    assert main(["bench", "mix", "--record"]) == 0 and json.loads(record.read_text())["models"] == {}
    assert main(["bench", "mix", "--record", "--model=vit"]) == 0  # another model has a record of its own
    assert record.with_name("mix-vit.json").exists()


def test_none_is_a_mask_for_create_model_as_it_is_for_rows():
    named, plain = create_model("vit", mask="none"), create_model("vit")
    assert named.state_dict().keys() == plain.state_dict().keys()


# ---- train ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "notebooks", "reports/a"])
def test_a_row_is_found_and_its_results_lie_below_the_project_wherever_it_is_started(in_force, monkeypatch, below):
    trained = []
    monkeypatch.setattr("gmmvit.train.train", lambda row, out, **options: trained.append((row["name"], out)))
    (in_force / below).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(in_force / below)
    assert main(["train", "a-row"]) == main(["train", "--dataset=svhn", "--model=vit"]) == 0
    assert main(["train", "a-row", "--out=here"]) == main(["plan"]) == main(["check"]) == 0
    named, described = in_force / "reports" / "a" / "runs" / "a-row", in_force / "runs" / "svhn-vit-none-s0"
    assert trained == [("a-row", named), ("svhn-vit-none-s0", described), ("a-row", Path("here"))]
