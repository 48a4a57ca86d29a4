"""dvc.yaml: what its stages depend on; and on a copy of the project, what runs again after a change and what not."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
import torch
import yaml

ROOT = Path(__file__).parents[2]
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
ENGINE = ["gmmvit/core", "gmmvit/data", "gmmvit/models", "gmmvit/train"]


def rooms_of(stage):
    return [dep for dep in stage["deps"] if dep.startswith("gmmvit")]


def test_runs_depend_on_the_rooms_of_the_engine_and_on_nothing_else():
    stage = STAGES["run"]["do"]
    assert rooms_of(stage) == ENGINE and stage["params"] == ["rows.${key}"]
    assert stage["deps"][:2] == ["build/data/${item.dataset}.json", "build/notebooks/run.ipynb"]
    dense = STAGES["run_dense"]["do"]
    assert rooms_of(dense) == sorted([*ENGINE, "gmmvit/dense"]) and dense["params"] == ["dense_rows.${key}"]
    assert dense["cmd"] == stage["cmd"] and dense["outs"] == stage["outs"]


def test_figures_of_images_are_made_of_what_training_left_and_come_before_the_notebooks():
    stage = STAGES["analyse"]
    assert rooms_of(stage) == sorted([*ENGINE, "gmmvit/analysis", "gmmvit/dense"])
    assert "reports/${item.profile}/runs" in stage["deps"]
    (made,) = (out for each in stage["outs"] for out in each)
    assert made == "reports/${item.profile}/analysis" and made in STAGES["notebook"]["deps"]


def test_the_pipeline_knows_every_notebook():
    known = {*STAGES["notebook"]["matrix"]["name"], "run"}
    assert known == {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}


# ---- on a copy -------------------------------------------------------------------------------------------------------

ROWS = {  # the second lasts long enough to be killed in its middle
    "tiny-a": {"mask": "none", "set": {"epochs": 1, "batch": 100}},
    "tiny-b": {"mask": "gmm", "set": {"epochs": 6, "batch": 100}},
    "tiny-c": {"mask": "elm", "set": {"epochs": 1, "batch": 100}},
}
RUNS = [f"run@{name}" for name in ROWS]
RECORDS = ("metrics.json", "history.csv", "layers.csv", "masks.npz")
GIT = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org"]


def write_params(place, profile="tiny", rows=ROWS):
    full = {name: {"dataset": "cifar10-mini", "model": "test_vit", "seed": 0, **row} for name, row in rows.items()}
    content = {"profile": profile, "datasets": ["cifar10-mini"], "rows": full, "dense_datasets": [], "dense_rows": {}}
    (place / "params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def copy_of_the_project(place):
    """The working tree's files in a git repository of their own, with three tiny rows and nothing run yet."""
    files = subprocess.run([*GIT, "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if files.returncode:
        pytest.skip("the project is not in a git repository")
    for name in filter(lambda name: (ROOT / name).is_file(), files.stdout.splitlines()):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place / name)
    (place / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    write_params(place)
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "copy"]):
        subprocess.run([*GIT, *words], cwd=place, check=True)
    return place


def environment(place):
    outer = {name for name in os.environ if name.startswith(("MAKE", "MFLAGS", "GMMVIT", "DVC"))}
    env = {name: value for name, value in os.environ.items() if name not in outer}
    path = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    return env | {"PATH": path, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}


def start(place, *words):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(words, cwd=place, env=environment(place), start_new_session=True, **pipes)


def repro(place, *words):
    """The stages that `dvc repro` ran."""
    process = start(place, "dvc", "repro", *words)
    said, _ = process.communicate(timeout=900)
    assert process.returncode == 0, said
    return ran(said)


def ran(said):
    return {line.split("'")[1] for line in said.splitlines() if line.startswith("Running stage ")}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A copy in which all was done that comes before the rows."""
    place = copy_of_the_project(tmp_path_factory.mktemp("prepared"))
    assert repro(place, "clean", "data@cifar10-mini") == {"check", "clean", "data@cifar10-mini"}
    return place


def another(prepared, place):
    """A copy of the copy."""
    return shutil.copytree(prepared, place / "project", symlinks=True)


@pytest.fixture(scope="module")
def done(prepared, tmp_path_factory):
    """A copy whose three rows, and the main table of them, were run without disturbance."""
    place = another(prepared, tmp_path_factory.mktemp("done"))
    assert repro(place, "notebook@tiny-main_results") == {"analyse@tiny", "notebook@tiny-main_results", *RUNS}
    return place


MADE = ("notebooks", "build", "reports/tiny")  # by hand and by stages; what these are is in params.yaml and dvc.lock


@pytest.fixture
def at_rest(done, tmp_path):
    """The same, put back after the test."""
    for name in MADE:
        shutil.copytree(done / name, tmp_path / "kept" / name)
    kept = {done / name: (done / name).read_bytes() for name in ("params.yaml", "dvc.lock")}
    yield done
    for name in MADE:
        shutil.rmtree(done / name)
        shutil.copytree(tmp_path / "kept" / name, done / name)
    for path, content in kept.items():
        path.write_bytes(content)


@pytest.mark.slow
def test_nothing_changed_nothing_runs_and_the_tree_shows_only_small_records(at_rest):
    since = time.monotonic()
    assert repro(at_rest, "notebook@tiny-main_results") == set()
    assert time.monotonic() - since < 10
    new = subprocess.run(["git", "status", "--short", "-uall"], cwd=at_rest, capture_output=True, text=True).stdout
    assert {line.split()[-1].split("/")[0] for line in new.splitlines()} == {"dvc.lock", "reports"}
    runs = {line.split("/")[-1] for line in new.splitlines() if "/runs/" in line}
    assert runs == {"metrics.json", "scores.json", "history.csv", "layers.csv", "masks.npz", "timing.json"}


@pytest.mark.slow
def test_the_kernel_is_the_environments_own(at_rest):
    """Where papermill is found, there the notebook's Python is."""
    asked = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import sys; print(sys.prefix)")])
    asked.metadata = {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}}
    nbformat.write(asked, at_rest / "runs.ipynb")
    words = ["papermill", "runs.ipynb", "runs.ipynb", "-k", "python3", "--no-progress-bar"]
    process = start(at_rest, *words)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    (cell,) = nbformat.read(at_rest / "runs.ipynb", as_version=4).cells
    assert cell.outputs[0].text.strip() == sys.prefix


@pytest.mark.slow
@pytest.mark.parametrize(
    "module, made", [("paper/charts.py", set()), ("analysis/fields.py", {"analyse@tiny"}), ("bench/harness.py", set())]
)
def test_neither_a_plot_nor_how_a_field_is_computed_trains_anything_anew(at_rest, module, made):
    path = at_rest / "gmmvit" / module
    text = path.read_text()
    path.write_text(text + "\nBLUE = 'navy'\n")
    stale = repro(at_rest, "--dry", "notebook@tiny-main_results")
    path.write_text(text)
    assert stale == {"notebook@tiny-main_results", *made}


@pytest.mark.slow
def test_altered_images_stop_the_rows_that_need_them(at_rest):
    images = at_rest / "data" / "cifar10-mini" / "train.webp"
    content = images.read_bytes()
    images.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    process = start(at_rest, "dvc", "repro", "run@tiny-a")
    said, _ = process.communicate(timeout=300)
    images.write_bytes(content)
    assert process.returncode != 0 and ran(said) == {"data@cifar10-mini"}
    assert "cifar10-mini" in said and "run@tiny-a" not in ran(said)


@pytest.mark.slow
def test_saving_notebooks_in_jupyter_only_cleans_them_again(at_rest):
    for path in (at_rest / "notebooks").glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        notebook.metadata["kernelspec"] = {"name": "mine", "display_name": "My own", "language": "python"}
        for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
            cell.execution_count = 99
            cell.outputs = [nbformat.v4.new_output("stream", text="saved\n")]
            cell.metadata["collapsed"] = False
        nbformat.write(notebook, path)
    assert repro(at_rest, "notebook@tiny-main_results") == {"clean"}


@pytest.mark.slow
def test_a_changed_row_runs_alone_with_what_is_made_of_it(at_rest):
    write_params(at_rest, rows=ROWS | {"tiny-c": ROWS["tiny-c"] | {"seed": 1}})
    made_of_it = {"analyse@tiny", "notebook@tiny-main_results"}
    assert repro(at_rest, "notebook@tiny-main_results") == {"check", "run@tiny-c", *made_of_it}


@pytest.mark.slow
def test_another_profile_and_back_runs_no_row_again(at_rest):
    write_params(at_rest, "other", {"other-a": ROWS["tiny-a"]})
    assert repro(at_rest, "run@other-a") == {"check", "run@other-a"}
    write_params(at_rest)
    assert repro(at_rest, "notebook@tiny-main_results") <= {"check"}


@pytest.mark.slow
def test_killed_in_the_middle_and_repeated_it_ends_with_the_same_records(prepared, done, tmp_path):
    place = another(prepared, tmp_path)
    saved = place / "reports" / "tiny" / "runs" / ".checkpoints" / "tiny-b" / "last.pt"
    process = start(place, "dvc", "repro", *RUNS)
    deadline = time.monotonic() + 300
    while not saved.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    ended = {f"run@{path.parent.name}" for path in saved.parents[2].glob("*/metrics.json")}  # dvc's order is its own
    assert saved.exists() and "run@tiny-b" not in ended
    assert repro(place, *RUNS) == {*RUNS} - ended
    executed = (saved.parents[2] / "tiny-b" / "run.ipynb").read_text()
    assert "resumed at epoch" in executed
    for name in ROWS:
        for record in RECORDS:
            ours, theirs = (each / "reports" / "tiny" / "runs" / name / record for each in (place, done))
            assert ours.read_bytes() == theirs.read_bytes(), f"{name}: {record}"


GMMVIT = ("python", "pipeline/repro.py")


STOPS = [(GMMVIT, signal.SIGTERM, 143), (GMMVIT, signal.SIGINT, 143), (("dvc", "repro"), signal.SIGTERM, -15)]


@pytest.mark.slow
def test_stopped_by_a_queue_or_a_person_a_row_saves_its_state_and_the_lock_is_whole(prepared, done, tmp_path):
    """Three times, each time an epoch further on."""
    place = another(prepared, tmp_path)
    saved = place / "reports" / "tiny" / "runs" / ".checkpoints" / "tiny-b" / "last.pt"
    before = (0, 0)
    for words, number, code in STOPS:
        process = start(place, *words, "run@tiny-b")
        deadline = time.monotonic() + 300
        while place_of(saved) <= before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        at, written = place_of(saved), (place / "dvc.lock").read_text()
        os.killpg(process.pid, number)
        said, _ = process.communicate(timeout=120)  # until nobody holds the pipe any more: the kernel has ended too
        assert process.returncode == code and "Traceback" not in said and "tiny-b: stopped" in said, (words, said)
        before = place_of(saved)
        assert before > at and at[0] < 6, words
        assert (place / "dvc.lock").read_text() == written and "run@tiny-b" not in written, words
    assert repro(place, "run@tiny-b") == {"run@tiny-b"}
    assert "resumed at epoch" in (saved.parents[2] / "tiny-b" / "run.ipynb").read_text()
    for record in RECORDS:
        ours, theirs = (each / "reports" / "tiny" / "runs" / "tiny-b" / record for each in (place, done))
        assert ours.read_bytes() == theirs.read_bytes(), record


def place_of(checkpoint):
    """Epoch and step of a checkpoint; (0, 0) where there is none."""
    if not checkpoint.exists():
        return 0, 0
    content = torch.load(checkpoint, weights_only=True)["place"]
    return content["epoch"], content["step"]


@pytest.mark.slow
def test_rows_side_by_side_have_the_bytes_and_the_records_of_rows_one_by_one(prepared, done, tmp_path):
    """`make rows JOBS=2` after `dvc repro` has nothing to do, and alone it ends with the same files."""
    place = another(prepared, tmp_path)
    write_params(place, rows={name: ROWS[name] for name in ("tiny-a", "tiny-c")})
    env = environment(place) | {"OMP_NUM_THREADS": "2"}
    words = ["python", "pipeline/rows_queue.py", "2"]  # beside each other
    first = subprocess.run(words, cwd=place, env=env, capture_output=True, text=True, timeout=900)
    assert first.returncode == 0 and "2 of 2 rows have ended" in first.stdout, first.stdout + first.stderr
    for name in ("tiny-a", "tiny-c"):
        for record in RECORDS:
            ours, theirs = (each / "reports" / "tiny" / "runs" / name / record for each in (place, done))
            assert ours.read_bytes() == theirs.read_bytes(), f"{name}: {record}"
    assert json.loads((place / "reports/tiny/runs/tiny-a/metrics.json").read_text())["threads"] == 1
    assert repro(place, "run@tiny-a", "run@tiny-c") == set()  # dvc reads the lock that two of them wrote


@pytest.mark.slow
def test_a_fresh_clone_shows_a_changed_lock_and_nothing_else_when_all_of_smoke_was_made(tmp_path):
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    place = copy_of_the_project(tmp_path / "copy")
    write_params(place, "smoke", {"smoke-a": ROWS["tiny-a"]})
    stages = (place / "dvc.yaml").read_text()  # two notebooks stand for all, which leave their files where these do
    few = re.sub(r"name: \[priors, .*\]", "name: [priors, main_results]", stages)
    assert few != stages
    (place / "dvc.yaml").write_text(few)
    for notebook in (place / "notebooks").glob("*.ipynb"):
        if notebook.stem not in ("run", "priors", "main_results"):
            notebook.unlink()
    subprocess.run([*GIT, "commit", "-qam", "smoke"], cwd=place, check=True)
    stamp = tmp_path / "installed"
    stamp.touch()
    process = start(place, "make", f"VENV={sys.prefix}", f"STAMP={stamp}", "repro")
    said, _ = process.communicate(timeout=1800)
    assert process.returncode == 0, said
    assert (place / "reports" / "smoke" / "index.html").is_file()
    status = subprocess.run(["git", "status", "--short"], cwd=place, capture_output=True, text=True).stdout
    assert status == " M dvc.lock\n"


@pytest.mark.slow
def test_a_failing_row_stops_only_itself_and_the_tables_are_made_without_it(prepared, tmp_path):
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    place = another(prepared, tmp_path)
    for notebook in (place / "notebooks").glob("*.ipynb"):  # the others are made in the same way
        if notebook.stem not in ("run", "main_results"):
            notebook.unlink()
    diverging = {"mask": "none", "set": {"epochs": 1, "batch": 100, "lr": 1e30, "warmup_epochs": 0}}
    write_params(place, rows={"tiny-bad": diverging, "tiny-a": ROWS["tiny-a"]})
    stamp = tmp_path / "installed"
    stamp.touch()
    process = start(place, "make", f"VENV={sys.prefix}", f"STAMP={stamp}", "repro", "KEEP_GOING=1")
    said, _ = process.communicate(timeout=900)
    assert process.returncode != 0 and "1 of 2 rows have ended; run@tiny-bad failed" in said
    reports = place / "reports" / "tiny"
    assert json.loads((reports / "runs" / "tiny-a" / "metrics.json").read_text())["epochs"] == 1
    assert not (reports / "runs" / "tiny-bad" / "metrics.json").exists()
    assert not (reports / "index.html").exists()
    page = (reports / "partial" / "index.html").read_text()
    assert "failed" in page and 'href="rows/tiny-bad.html"' in page
    assert (reports / "partial" / "rows" / "tiny-bad.html").is_file()
    assert list((reports / "partial" / "tables").glob("main_results-*"))
