"""The notebooks: their form, their parameters, what they do without runs, and that nbval sees an altered number."""

import ast
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from forks import Forked, run_cells

from gmmvit.paper import charts, notebook, project, runs
from gmmvit.paper.tables import Column, Table
from gmmvit.train.rows import Row

FOLDER = Path(__file__).parents[2] / "notebooks"
EXACT = {  # a number that each shows and that no machine and no run changes
    "run": "2,692,042",
    "priors": "24,576",
    "main_results": "95.06",
    "motivation": "4,096",
    "gmm_ablation": "94.87",
    "gab_heads": "93.682",
    "gab_transfer": "80.567",
    "erf_rpe": "0.787",
    "transmix": "80.7",
    "dense": "48.12",
    "profile": "184,616,832",
}
TABLES = [name for name in EXACT if name not in ("run", "profile")]


def opened(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def tags(cell):
    return cell.metadata.get("tags", [])


def test_every_notebook_is_tested():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(EXACT)


@pytest.mark.parametrize("name", EXACT)
def test_a_notebook_says_calls_and_shows(name):
    cells = opened(name).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    headings = [cell.source.split(" ")[0] for cell in cells if cell.cell_type == "markdown"]
    assert len(code) <= 9 and headings == ["#", *["##"] * (len(headings) - 1)]  # of the report's sections
    for cell in code:
        tree = ast.parse(cell.source)
        assert not any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in ast.walk(tree))
    (parameters,) = [number for number, cell in enumerate(code) if "parameters" in tags(cell)]
    given = [line.targets[0].id for line in ast.parse(code[parameters].source).body]
    (call,) = [
        node
        for node in ast.walk(ast.parse(code[parameters + 1].source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "notebook.checked"
    ]
    assert [keyword.arg for keyword in call.keywords] == given


@pytest.mark.parametrize("name", EXACT)
def test_a_notebook_is_committed_with_outputs_that_are_compared(name):
    code = [cell for cell in opened(name).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    shown = [cell for cell in code if cell.outputs]
    ignored = [cell for cell in shown if "nbval-ignore-output" in tags(cell)]
    assert len(shown) >= 5 and 3 * len(ignored) <= len(shown)
    assert "assert " in code[-1].source and code[-1].outputs
    for cell in code:
        assert set(cell.metadata) <= {"tags"}
        assert not any(output.output_type == "error" or output.get("name") == "stderr" for output in cell.outputs)


def test_the_committed_run_is_the_one_of_the_committed_report():
    """notebooks/run.ipynb and reports/cpu show one run of a row, not two."""
    cells = [cell for cell in opened("run").cells if cell.cell_type == "code"]
    (row,) = [line.split('"')[1] for line in cells[0].source.splitlines() if line.startswith("row = ")]
    metrics = json.loads((FOLDER.parent / f"reports/cpu/runs/{row}/metrics.json").read_text())
    outputs = [output for cell in cells for output in cell.outputs]
    shown = "".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs)
    wanted = {
        f"top-1 after epoch {metrics['epoch']}, the result (%)": f"{metrics['top1']:,.2f}",
        f"top-1 after epoch {metrics['best_epoch']}, the best (%)": f"{metrics['best_top1']:,.2f}",
        "test loss (nats)": f"{metrics['test_loss']:,.2f}",
        "images seen": f"{metrics['images']:,}",
    }
    table = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", shown, re.MULTILINE))
    assert {name: table.get(name) for name in wanted} == wanted
    assert f"train_loss {metrics['train_loss']}" in shown and f"test_loss {metrics['test_loss']}" in shown


def test_a_row_with_a_record_is_shown_without_its_weights_and_its_data_and_another_is_trained(tmp_path, monkeypatch):
    row = "cpu-cifar10-vit-gmm-s0"
    names = {"profile": "cpu", "row": row, "out": "", "In": [""]}
    folder = notebook.checked(names, profile=str, row=str, out=str)
    assert folder == project.runs_folder("cpu") / row
    copy = tmp_path / row
    copy.mkdir()
    for name in ("metrics.json", "timing.json", "history.csv"):
        shutil.copy(folder / name, copy)
    trained = []
    monkeypatch.setattr("gmmvit.train.train", lambda row, *_, **__: trained.append(row.seed) or {})
    monkeypatch.setattr(notebook, "display", lambda *_, **__: SimpleNamespace(update=lambda figure: None))
    monkeypatch.setenv("GMMVIT_DATA", str(tmp_path / "no_data"))
    setting = Row(**json.loads((folder / "metrics.json").read_text())["row"])
    metrics, timing = notebook.trained(setting, copy)
    assert trained == [] and metrics == json.loads((folder / "metrics.json").read_text())
    assert timing["images_per_second"] > 0
    notebook.trained(replace(setting, seed=1), copy)
    assert trained == [1]


@pytest.mark.parametrize("name", EXACT)
def test_a_notebook_names_no_path_of_a_machine(name):
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]
    texts = [re.sub(r'"image/png": "[^"]*"', "", json.dumps(cell)) for cell in cells]
    assert not re.search(r"(?<![\w.:/])/(home|root|tmp|work|usr|opt|Users)/", " ".join(texts))


# ---- parameters -----------------------------------------------------------------------------------------------------


def injected(**values):
    """A notebook's globals behind papermill's cell."""
    cell = "# Parameters\n" + "\n".join(f"{name} = {value!r}" for name, value in values.items())
    return {"profile": "smoke", "out": "", "trace": True, "batch": 64, "In": ["", "profile = 'smoke'", cell], **values}


TYPES = {"profile": str, "out": str, "trace": bool, "batch": int}


def test_a_misspelt_parameter_raises_with_the_nearest_name():
    with pytest.raises(ValueError, match="'profil'.*nearest is 'profile'"):
        notebook.checked(injected(profil="cpu"), **TYPES)
    names = injected()
    del names["profile"]
    with pytest.raises(ValueError, match="profile: expected"):
        notebook.checked(names, **TYPES)


@pytest.mark.parametrize(
    "name, given, becomes",
    [
        ("trace", "false", False),
        ("trace", "True", True),
        ("trace", False, False),
        ("batch", "32", 32),
        ("profile", 5, "5"),
    ],
)
def test_parameters_get_their_type(name, given, becomes):
    names = injected(**{name: given})
    notebook.checked(names, **TYPES)
    assert names[name] == becomes and type(names[name]) is type(becomes)


@pytest.mark.parametrize(
    "name, given", [("trace", "no"), ("trace", 1), ("batch", "many"), ("batch", 1.5), ("batch", 32.0), ("batch", True)]
)
def test_parameters_of_another_type_are_a_sentence(name, given):
    with pytest.raises(ValueError, match=f"{name}: expected .*got"):
        notebook.checked(injected(**{name: given}), **TYPES)


def test_what_a_notebook_makes_goes_to_the_reports_in_the_pipeline_and_to_an_ignored_folder_by_hand():
    by_hand = {"profile": "smoke", "out": "", "row": "a", "In": [""]}
    pipeline = injected(profile="cpu", row="a")
    types = {"profile": str, "out": str}
    assert notebook.checked(dict(by_hand), **types) == project.root() / "runs"
    assert notebook.checked(dict(by_hand), **types, row=str) == project.root() / "runs" / "a"
    assert notebook.checked(dict(pipeline), **types, row=str) == project.reports("cpu") / "runs" / "a"
    assert notebook.checked(injected(profile="cpu"), **types) == project.reports("cpu")
    assert notebook.checked(by_hand | {"out": "elsewhere"}, **types) == project.root() / "elsewhere"


# ---- records, figures and tables ------------------------------------------------------------------------------------


ROW = "{dataset: cifar10-mini, model: vit, mask: %s, recipe: short, seed: 0}"


@pytest.fixture
def empty_project(tmp_path, monkeypatch):
    """A project of three rows in which nothing was run."""
    rows = "".join(f"  {name}: {ROW % mask}\n" for name, mask in (("a", "none"), ("b", "gmm"), ("c", "elm")))
    (tmp_path / "params.yaml").write_text(f"profile: smoke\nrows:\n{rows}")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_row_has_run_failed_or_not_run(empty_project):
    for name, metadata in (
        ("a", {}),
        ("b", {"papermill": {"exception": True}}),
        ("c", {"papermill": {"exception": None}}),
    ):
        folder = empty_project / "reports" / "smoke" / "runs" / name
        folder.mkdir(parents=True)
        nbformat.write(nbformat.v4.new_notebook(metadata=metadata), folder / "run.ipynb")
    metrics = {"row": {"name": "a", "seed": 0}, "top1": 50.0}
    (empty_project / "reports/smoke/runs/a/metrics.json").write_text(json.dumps(metrics))
    rows = runs.frame("smoke")
    assert rows.state.to_dict() == {"a": "done", "b": "failed", "c": "not run"}
    assert notebook.find_run(rows, mask="none")["top1"] == 50 and notebook.find_run(rows, mask="elm") is None
    assert notebook.learned_masks(None) == notebook.arrays_drawn(None) == {}


def test_rows_of_detection_and_segmentation_are_lines_of_their_kind(empty_project):
    with open(empty_project / "params.yaml", "a") as file:
        file.write("dense_rows:\n  d: {dataset: coco-shapes, model: swin_micro, recipe: coco-3x}\n")
    assert runs.frame("smoke").kind.to_dict() == dict.fromkeys("abc", "classification") | {"d": "detection"}


def test_the_run_with_the_fewest_settings_stands_for_its_kind():
    rows = {
        "token": Row("cifar10", "vit", "gmm", set={"epochs": 1, "readout": "token"}, name="token"),
        "plain": Row("cifar10", "vit", "gmm", set={"epochs": 1}, name="plain"),
        "fewer": Row("cifar10", "vit", "gmm", name="fewer"),
    }
    known = runs.of(rows, [{"row": {"name": name}} for name in ("token", "plain")])
    assert notebook.find_run(known, model="vit", mask="gmm")["row"].name == "plain"
    assert notebook.find_run(known, model="swin", mask="gmm") is None


def test_what_is_shown_is_saved_with_its_note_and_what_is_missing_is_said(tmp_path):
    table = Table([Column("a", "a")], [{"a": 1.0}])
    notebook.show(table, tmp_path, "x-table", "smoke run")
    assert "smoke run" in (tmp_path / "tables" / "x-table.md").read_text()
    figure = charts.throughput({"one": 1.0, "two": 2.0})
    assert isinstance(figure, charts.Figure)
    width, height = figure.get_size_inches()
    notebook.show(figure, tmp_path, "x-figure", "smoke run")
    assert (tmp_path / "figures" / "x-figure.png").stat().st_size > 1000
    assert [text.get_text() for text in figure.texts] == ["smoke run"]
    assert figure.get_size_inches()[1] > height  # the note took nothing from the plot
    notebook.show([], tmp_path, "x-nothing")
    assert "x-nothing" not in " ".join(path.name for path in tmp_path.rglob("*"))


# ---- run for real ---------------------------------------------------------------------------------------------------


def command(*words, cwd):
    return subprocess.run([sys.executable, "-m", *words], cwd=cwd, capture_output=True, text=True, timeout=600)


def texts(path):
    outputs = [output for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", [])]
    shown = [output.get("text") or output.get("data", {}) for output in outputs]
    return "\n".join(each if isinstance(each, str) else str(each.get("text/markdown", "")) for each in shown)


SHOWN_AGAIN = """import sys
from IPython.display import display
for output in %r:
    sys.stdout.write(output["text"]) if "text" in output else display(output["data"], raw=True)"""


def shown_again(cell):
    """A cell with the tags of a stored one, and with its outputs, that shows what is stored without computing it."""
    stored = json.loads(json.dumps([{key: o[key] for key in ("text", "data") if key in o} for o in cell.outputs]))
    kept = {key: cell[key] for key in ("metadata", "outputs", "execution_count")}
    return nbformat.v4.new_code_cell(SHOWN_AGAIN % stored, **kept)


def altered(cells, number):
    """The first compared cell that shows a number, which then has another last digit in what is stored."""
    changed = number[:-1] + str((int(number[-1]) + 1) % 10)
    for index, cell in enumerate(cells):
        for output in [] if "nbval-ignore-output" in tags(cell) else cell.outputs:
            for holder, key in ((output, "text"), (output.get("data", {}), "text/plain")):
                if number in holder.get(key, ""):
                    holder[key] = holder[key].replace(number, changed, 1)
                    return index
    pytest.fail(f"{number} is not shown")


@pytest.mark.slow
def test_nbval_sees_one_altered_number_of_each_notebook(tmp_path):
    """The cells of all in one, and what they show is not computed: that is what `make test` asks nbval."""
    cells, wrong = [], {}
    for name, number in EXACT.items():
        own = [shown_again(cell) for cell in opened(name).cells if cell.cell_type == "code"]
        wrong[name] = len(cells) + altered(own, number)
        cells += own
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), tmp_path / "all.ipynb")
    done = command(
        "pytest", "--nbval", "--nbval-current-env", "-p", "no:cacheprovider", "-rf", "all.ipynb", cwd=tmp_path
    )
    failed = {int(number) for number in re.findall(r"^FAILED .*::Cell (\d+)", done.stdout, re.MULTILINE)}
    assert failed == {*wrong.values()}, f"{wrong}\n{done.stdout[-3000:]}"


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_a_profile_that_was_not_run_is_shown_as_not_run(name, empty_project):
    shutil.copy(FOLDER / f"{name}.ipynb", empty_project)
    process = Forked(run_cells, str(empty_project), f"{name}.ipynb", {"profile": "smoke"})
    said, errors = process.communicate()
    assert process.returncode == 0, said[-3000:] + errors[-1000:]
    assert "not run" in said


@pytest.mark.slow
def test_papermill_hands_over_booleans_and_a_misspelt_parameter_stops_it(empty_project):
    shutil.copy(FOLDER / "profile.ipynb", empty_project)
    words = ["papermill", "profile.ipynb", "done.ipynb", "-k", "python3", "-p"]
    done = command(*words, "trace", "false", "-p", "batch", "4", cwd=empty_project)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "no trace was asked for" in texts(empty_project / "done.ipynb")
    assert not list(empty_project.rglob("trace"))
    done = command(*words, "trce", "false", cwd=empty_project)
    assert done.returncode != 0 and "nearest is 'trace'" in done.stderr
