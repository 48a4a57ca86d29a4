"""The Makefile, run with a pretended interpreter, whose environments hold programs that note how they were called."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

REPRO = ["dvc repro", "papermill called by name"]

PRETENDED_PYTHON = f"""#!/bin/sh
case $1 in
-c) exec {sys.executable} -c "import sys; sys.version_info = tuple(map(int, '$VERSION'.split('.'))); $2" ;;
-m) mkdir -p $3/bin; for name in pip pytest gmmvit dvc papermill; do cp "$PROGRAM" $3/bin/$name; done
  echo venv >> "$NOTES" ;;
esac
"""
PROGRAM = """#!/bin/sh
echo "${0##*/} $*" >> "$NOTES"
case $* in *run@* | *run_dense@*) echo "device ${CUDA_VISIBLE_DEVICES-none}" >> "$NOTES" ;; esac
case "${0##*/} $*" in
"dvc repro") papermill called by name ;;
"dvc stage list"*) printf '%s\\n' clean data@a data_dense@b run@bad run_dense@good report@a ;;
"dvc repro --keep-going" | *run@bad) exit 255 ;;
esac
"""


@pytest.fixture
def make(tmp_path):
    """A function that runs make in a copy of the project and returns (its result, the programs it called)."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "profiles").mkdir()
    for profile in "ab":
        (tmp_path / "profiles" / f"{profile}.yaml").write_text(f"profile: {profile}\n")
    shutil.copy(tmp_path / "profiles" / "a.yaml", tmp_path / "params.yaml")
    for name, text in (("python", PRETENDED_PYTHON), ("program", PROGRAM)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    notes = tmp_path / "notes"

    def run(*arguments, version="3.11.7"):
        outer = {name for name in os.environ if name.startswith(("MAKE", "MFLAGS", "PYTHON"))} | {"ARGS"}
        env = {name: value for name, value in os.environ.items() if name not in outer}
        env |= {"NOTES": str(notes), "PROGRAM": str(tmp_path / "program"), "VERSION": version}
        notes.write_text("")
        command = ["make", "PYTHON=./python", *arguments]
        result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        return result, notes.read_text().splitlines()

    return run


def test_make_installs_once_and_again_after_the_requirements_changed(make, tmp_path):
    result, calls = make("test", "ARGS=-k masks")
    assert result.returncode == 0, result.stderr
    assert calls[0] == "venv" and calls[-1] == "pytest -k masks"
    assert [call for call in calls if "-r requirements.lock" in call] == [calls[1]]
    assert make("repro")[1] == REPRO
    for name in ("requirements.lock", "pyproject.toml"):
        for stamp in (p for p in tmp_path.glob(".*/.*") if p.is_file()):
            os.utime(stamp, (0, 0))
        os.utime(tmp_path / name)
        calls = make("repro")[1]
        assert [call.split()[0] for call in calls] == ["pip", "pip", "dvc", "papermill"]
        assert make("repro")[1] == REPRO


def test_make_test_checks_the_notebooks_too_unless_told_what_to_test(make):
    make("test")
    assert make("test")[1] == ["pytest ", "pytest --nbval --nbval-current-env notebooks"]
    assert make("test", "ARGS=-x")[1] == ["pytest -x"]


def test_make_puts_a_profile_in_force_and_loses_no_params_of_its_own(make, tmp_path):
    params, kept = tmp_path / "params.yaml", tmp_path / "params.yaml.old"
    result, calls = make("repro", "PROFILE=b")
    assert result.returncode == 0 and params.read_text() == "profile: b\n" and not kept.exists()
    old = params.stat().st_mtime_ns
    make("repro", "PROFILE=b")
    assert params.stat().st_mtime_ns == old
    params.write_text("profile: b\nmine: 1\n")
    make("repro")
    assert params.read_text() == "profile: b\nmine: 1\n"
    result, _ = make("repro", "PROFILE=a")
    assert params.read_text() == "profile: a\n" and kept.read_text() == "profile: b\nmine: 1\n"
    assert "kept as params.yaml.old" in result.stdout
    result, calls = make("repro", "PROFILE=c")
    assert result.returncode != 0 and calls == [] and params.read_text() == "profile: a\n"
    assert "unknown profile 'c': expected one of a b" in result.stderr


def test_make_repro_passes_over_failing_rows_and_says_so(make):
    make("repro")
    result, calls = make("repro", "KEEP_GOING=1")
    assert calls[0] == "dvc repro --keep-going" and calls[-1] == "gmmvit report a --partial"
    papermill = [call.split() for call in calls[1:-1]]
    tables = "main_results motivation gmm_ablation gab_heads gab_transfer erf_rpe transmix dense profile".split()
    assert [words[1] for words in papermill] == [f"notebooks/{name}.ipynb" for name in tables]
    assert all(words[-6:] == ["-p", "profile", "a", "-p", "out", "reports/a/partial"] for words in papermill)
    assert result.returncode != 0 and "Error 255" in result.stderr  # dvc's own


def test_make_rows_runs_them_all_though_one_fails(make):
    make("repro")
    result, calls = make("rows", "JOBS=2")
    assert "dvc repro clean data@a data_dense@b" in calls
    assert {"dvc --wait-for-lock repro -s run@bad", "dvc --wait-for-lock repro -s run_dense@good"} <= set(calls)
    assert calls.index("dvc repro clean data@a data_dense@b") < calls.index("dvc --wait-for-lock repro -s run@bad")
    assert result.returncode != 0


def test_make_rows_gives_each_row_a_gpu_in_turn_where_there_are_several(make, tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    lister = tmp_path / "nvidia-smi"
    for gpus, devices in ((0, {"none"}), (1, {"none"}), (2, {"0", "1"})):
        lister.write_text(f'#!/bin/sh\nfor gpu in $(seq {gpus}); do echo "GPU $gpu: a GPU"; done\n')
        lister.chmod(0o755)
        make("repro")
        calls = make("rows", "JOBS=2")[1]
        assert {call.split()[1] for call in calls if call.startswith("device")} == devices


def test_a_dry_run_of_make_runs_nothing(make):
    make("repro")
    for words in (["repro", "KEEP_GOING=1"], ["rows"], ["test"]):
        assert make("-n", *words)[1] == []


def test_make_says_which_python_it_needs(make):
    result, calls = make("test", version="3.9.18")
    assert result.returncode != 0 and calls == []
    assert "needs Python 3.11 or newer, but ./python is 3.9" in result.stderr
