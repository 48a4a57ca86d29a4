"""The Makefile, run with a pretended interpreter, whose environments hold programs that note how they were called.

Of these, what queues the rows and what checks params.yaml are real.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rows_queue

from gmmvit.train.engine import made_by
from gmmvit.train.rows import Row

ROOT = Path(__file__).parents[2]

REPRO = ["python pipeline/repro.py", "papermill called by name"]
DATA = "python pipeline/repro.py --keep-going clean data@cifar10-mini data_dense@coco-shapes"
PARAMS = """profile: {0}
datasets: [cifar10-mini]
rows:
  bad: {{dataset: cifar10-mini, model: test_vit}}
dense_datasets: [coco-shapes]
dense_rows:
  good: {{dataset: coco-shapes, model: swin_micro, recipe: coco-3x}}
"""

PRETENDED_PYTHON = f"""#!/bin/sh
case $1 in
-c) exec {sys.executable} -c "import sys; sys.version_info = tuple(map(int, '$VERSION'.split('.'))); $2" ;;
-m) mkdir -p $3/bin; for name in pip pytest python gmmvit dvc papermill; do cp "$PROGRAM" $3/bin/$name; done
  echo venv >> "$NOTES" ;;
esac
"""
PROGRAM = (
    f"""#!/bin/sh
case "${{0##*/}} $*" in
"python pipeline/repro.py --dry"*)
  shift 2
  test -z "$STALE" || test $# -gt 0 || echo "Running stage 'check':"
  for word; do case $word in *@*) echo "Running stage '$word':" ;; esac; done
  exit ;;
"python pipeline/rows_queue.py"* | "python pipeline/names.py "*) exec {sys.executable} "$@" ;;
"gmmvit check") exec {sys.executable} -c "import sys, gmmvit.cli; sys.exit(gmmvit.cli.main(['check']))" ;;
esac
"""
    + """
echo "${0##*/} $*" >> "$NOTES"
case $* in *run@* | *run_dense@*) echo "device ${CUDA_VISIBLE_DEVICES-none}" >> "$NOTES" ;; esac
case "${0##*/} $*" in
"python pipeline/repro.py") papermill called by name ;;
*run@bad) exit 255 ;;
*run@slow*)
  trap 'echo "saved ${*##*@}" >> "$NOTES"; sleep 0.5; echo ended >> "$NOTES"; exit 143' TERM
  sleep 60 > /dev/null 2>&1 & wait ;;
esac
"""
)


@pytest.fixture
def make(tmp_path):
    """A function that runs make in a copy of the project and returns (its result, the programs it called)."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "profiles").mkdir()
    for profile in "ab":
        (tmp_path / "profiles" / f"{profile}.yaml").write_text(PARAMS.format(profile))
    (tmp_path / "notebooks").mkdir()
    for notebook in ("run", "a_table", "b_table"):
        (tmp_path / "notebooks" / f"{notebook}.ipynb").touch()
    shutil.copytree(ROOT / "pipeline", tmp_path / "pipeline")
    (tmp_path / "dvc.yaml").touch()
    shutil.copy(tmp_path / "profiles" / "a.yaml", tmp_path / "params.yaml")
    for name, text in (("python", PRETENDED_PYTHON), ("program", PROGRAM)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    notes = tmp_path / "notes"

    def run(*arguments, version="3.11.7", stopped_by=0):
        outer = {name for name in os.environ if name.startswith(("MAKE", "MFLAGS", "PYTHON"))} | {"ARGS"}
        env = {name: value for name, value in os.environ.items() if name not in outer}
        env |= {"NOTES": str(notes), "PROGRAM": str(tmp_path / "program"), "VERSION": version, "PYTHONPATH": str(ROOT)}
        env["STALE"] = "some" * bool({"rows", "KEEP_GOING=1"}.intersection(arguments))
        notes.write_text("")
        command = ["make", "PYTHON=./python", *arguments]
        if stopped_by:
            return stopped(command, stopped_by, notes, cwd=tmp_path, env=env)
        result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        return result, notes.read_text().splitlines()

    return run


def stopped(command, number, notes, **options):
    """The same for a make that a terminal, or a queue, stops when two rows are under way."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, start_new_session=True, **pipes, **options)
    while notes.read_text().count("device") < 2 and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, number)
    said, _ = process.communicate(timeout=60)
    return subprocess.CompletedProcess(command, process.returncode, said), notes.read_text().splitlines()


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
        assert [call.split()[0] for call in calls] == ["pip", "pip", "python", "papermill"]
        assert make("repro")[1] == REPRO


def test_make_test_checks_the_notebooks_too_unless_told_what_to_test(make):
    make("test")
    notebooks = "pytest --nbval --nbval-current-env -n {} --dist loadfile notebooks"  # each notebook in one process
    assert make("test")[1] == ["pytest -n 2 --dist worksteal", notebooks.format(2)]
    assert make("test", "JOBS=4")[1] == ["pytest -n 4 --dist worksteal", notebooks.format(4)]
    assert make("test", "ARGS=-x")[1] == ["pytest -x"]


def test_make_puts_a_profile_in_force_and_loses_no_params_of_its_own(make, tmp_path):
    params, kept = tmp_path / "params.yaml", tmp_path / "params.yaml.old"
    result, calls = make("repro", "PROFILE=b")
    assert result.returncode == 0 and params.read_text() == PARAMS.format("b") and not kept.exists()
    old = params.stat().st_mtime_ns
    make("repro", "PROFILE=b")
    assert params.stat().st_mtime_ns == old
    mine = PARAMS.format("b") + "mine: 1\n"
    params.write_text(mine)
    make("repro")
    assert params.read_text() == mine
    result, _ = make("repro", "PROFILE=a")
    assert params.read_text() == PARAMS.format("a") and kept.read_text() == mine
    assert "kept as params.yaml.old" in result.stdout
    result, calls = make("repro", "PROFILE=c")
    assert result.returncode != 0 and calls == [] and params.read_text() == PARAMS.format("a")
    assert "unknown profile 'c'" in result.stderr and "expected one of a, b" in result.stderr


@pytest.mark.slow
def test_make_repro_passes_over_failing_rows_and_says_so(make):
    make("repro")
    result, calls = make("repro", "KEEP_GOING=1")
    rows = {f"python pipeline/repro.py -s {row}" for row in ("run@bad", "run_dense@good")}
    assert rows <= set(calls) and "python pipeline/repro.py" not in calls
    assert calls[-1] == "gmmvit report a --partial" and "run@bad failed" in result.stdout
    papermill = [call.split() for call in calls if call.startswith("papermill")]
    assert [words[1] for words in papermill] == ["notebooks/a_table.ipynb", "notebooks/b_table.ipynb"]
    assert all(words[-6:] == ["-p", "profile", "a", "-p", "out", "reports/a/partial"] for words in papermill)
    assert result.returncode != 0 and "Error 1" in result.stderr


def test_make_repro_runs_the_notebooks_side_by_side_when_all_rows_have_ended(make, tmp_path):
    make("repro")
    params = tmp_path / "params.yaml"
    params.write_text(params.read_text().replace("bad:", "fine:"))
    (tmp_path / "notebooks" / "profile.ipynb").touch()
    result, calls = make("repro", "KEEP_GOING=1", "JOBS=2")
    assert result.returncode == 0, result.stderr
    tables = [f"python pipeline/repro.py -s notebook@a-{name}" for name in ("a_table", "b_table")]
    *before, third, fourth = [call for call in calls if not call.startswith("device")][:-2]
    assert calls[-2:] == REPRO and {third, fourth} == set(tables)  # what is timed is left to the last, which runs alone
    assert before[-1] == "python pipeline/repro.py -s analyse@a" and "python pipeline/repro.py -s run@fine" in before
    assert "2 of 2 rows have ended" in result.stdout and "notebook 2 of 2: " in result.stdout


def test_make_rows_runs_them_all_though_one_fails(make):
    make("repro")
    result, calls = make("rows", "JOBS=2")
    assert DATA in calls
    assert {"python pipeline/repro.py -s run@bad", "python pipeline/repro.py -s run_dense@good"} <= set(calls)
    assert calls.index(DATA) < calls.index("python pipeline/repro.py -s run@bad")
    assert result.returncode != 0
    assert "row 1 of 2: run@bad" in result.stdout and "row 2 of 2: run_dense@good" in result.stdout
    assert "1 of 2 rows have ended; run@bad failed" in result.stdout


@pytest.mark.slow
def test_make_rows_new_leaves_rows_that_this_engine_has_trained(make, tmp_path):
    make("repro")
    record = tmp_path / "reports" / "a" / "runs" / "bad" / "metrics.json"
    record.parent.mkdir(parents=True)
    plain = json.loads(json.dumps(vars(Row("cifar10-mini", "test_vit", name="bad"))))
    for engine, trained in ((made_by("classification"), False), ({"modules": "another", "commit": None}, True)):
        record.write_text(json.dumps({"row": plain, "top1": 50.0, "engine": engine}))
        calls = make("rows", "JOBS=2", "NEW=1")[1]
        assert "python pipeline/repro.py -s run_dense@good" in calls
        assert ("python pipeline/repro.py -s run@bad" in calls) == trained
    assert "python pipeline/repro.py -s run@bad" in make("rows", "JOBS=2")[1]


@pytest.mark.slow
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


LISTED = """GPU 0: NVIDIA A100 (UUID: GPU-5c89852c)
  MIG 3g.20gb     Device  0: (UUID: MIG-1)
  MIG 3g.20gb     Device  1: (UUID: MIG-2)
GPU 1: NVIDIA A100 (UUID: GPU-774ad2b3)
"""


@pytest.mark.slow
def test_rows_take_their_devices_from_the_users_own_choice(make, monkeypatch):
    make("repro")
    for chosen, devices in (("3,5", {"3", "5"}), ("MIG-a,MIG-b", {"MIG-a", "MIG-b"}), ("2", {"2"}), ("", {""})):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        calls = make("rows", "JOBS=2")[1]
        assert {call.removeprefix("device").strip() for call in calls if call.startswith("device")} == devices
    assert rows_queue.devices({}, LISTED) == ["MIG-1", "MIG-2", "1"]  # a divided GPU has no number of its own
    assert rows_queue.devices({}, "") == []


def test_rows_share_the_cores_and_know_how_many_they_are(monkeypatch):
    monkeypatch.setattr(rows_queue, "cores", lambda: 8)
    monkeypatch.setattr(rows_queue, "gpus", lambda: "")
    started = []
    monkeypatch.setattr(rows_queue.subprocess, "Popen", lambda words, env, **_: started.append(env))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    rows_queue.Queue("row", ["run@a"], 3, None).start("run@a", 0)
    assert (started[0]["OMP_NUM_THREADS"], started[0]["GMMVIT_JOBS"]) == ("2", "3")


@pytest.mark.slow
@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM))
def test_make_rows_stopped_stops_its_rows_waits_for_them_and_says_one_sentence(make, tmp_path, number):
    make("repro")
    rows = "".join(f"  slow{i}: {{dataset: cifar10-mini, model: test_vit}}\n" for i in range(4))
    (tmp_path / "params.yaml").write_text(f"profile: a\ndatasets: [cifar10-mini]\nrows:\n{rows}")
    result, calls = make("rows", "JOBS=2", stopped_by=number)
    assert result.returncode != 0
    assert sorted(call for call in calls if call.startswith("saved")) == ["saved slow0", "saved slow1"]
    assert calls[-2:] == ["ended", "ended"] and not any("slow2" in call for call in calls)
    said = [line for line in result.stdout.splitlines() if not line.startswith(("row ", "make"))]
    assert said == ["stopping: the rows under way save their state, and the same command goes on from there"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ("../../victim", "x; touch PWN", "$(touch PWN)", "`touch PWN`", '"a"; touch PWN #'))
def test_no_profile_runs_a_command_or_leads_out_of_the_project(make, tmp_path, name):
    victim = tmp_path.parent / "victim" / "partial"  # what reports/../../victim/partial is
    victim.mkdir(parents=True, exist_ok=True)
    make("repro")
    params = PARAMS.format(json.dumps(name))
    (tmp_path / "params.yaml").write_text(params)
    for verb in (["rows"], ["repro", "KEEP_GOING=1"]):
        result, calls = make(*verb)
        assert result.returncode != 0 and "profile: expected letters" in result.stdout + result.stderr
        assert victim.is_dir() and not list(tmp_path.rglob("PWN"))
        assert calls == []


def test_a_dry_run_of_make_runs_nothing(make):
    make("repro")
    for words in (["repro", "KEEP_GOING=1"], ["rows"], ["test"]):
        assert make("-n", *words)[1] == []


def test_make_says_which_python_it_needs(make):
    result, calls = make("test", version="3.9.18")
    assert result.returncode != 0 and calls == []
    assert "needs Python 3.11 or newer, but ./python is 3.9" in result.stderr
