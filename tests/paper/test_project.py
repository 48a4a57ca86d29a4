"""Where a project's files are, and the copies of notebooks that the pipeline runs."""

import json

import clean
import nbformat
import pytest

from gmmvit.data.sets import SETS
from gmmvit.fetch import content
from gmmvit.paper import project

ROW = "{dataset: cifar10-mini, model: vit}"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A project with the profiles a (in force, changed by hand) and b, seen from its notebooks/."""
    (tmp_path / "profiles").mkdir()
    (tmp_path / "dvc.yaml").touch()
    (tmp_path / "params.yaml").write_text(f"profile: a\nrows:\n  a-changed: {ROW}\n")
    for profile in "ab":
        (tmp_path / "profiles" / f"{profile}.yaml").write_text(f"profile: {profile}\nrows:\n  {profile}-row: {ROW}\n")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    return tmp_path


def test_the_root_is_found_from_within_and_from_elsewhere(place, tmp_path_factory, monkeypatch):
    assert project.root() == place
    assert project.runs_folder("a") == place / "reports" / "a" / "runs"
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert (project.root() / "gmmvit").is_dir()


def test_a_profile_in_force_is_read_from_params_and_another_from_its_own_file(place):
    assert list(project.rows("a").rows) == ["a-changed"]
    assert list(project.rows("b").rows) == ["b-row"]
    (place / "params.yaml").unlink()
    assert list(project.rows("a").rows) == ["a-row"]
    with pytest.raises(ValueError, match="unknown profile 'bb': the nearest is 'b'; expected one of a, b"):
        project.rows("bb")


def saved_by_jupyter(notebook):
    """The notebook after somebody ran and saved it, as a new notebook."""
    run = nbformat.from_dict(json.loads(json.dumps(notebook)))
    run.metadata = {"kernelspec": {"name": "mine", "display_name": "My own", "language": "python"}, "toc": {"x": 1}}
    for number, cell in enumerate(run.cells):
        cell.id = f"other{number}"
        cell.metadata["collapsed"] = True
        if cell.cell_type == "code":
            cell.execution_count = number + 7
            cell.outputs = [nbformat.v4.new_output("stream", text="3\n")]
    return run


def test_saving_a_notebook_leaves_its_copy_as_it_was_and_changing_it_does_not(tmp_path):
    v4 = nbformat.v4
    cells = [v4.new_markdown_cell("# Title"), v4.new_code_cell("row = 1\nrow", metadata={"tags": ["parameters"]})]
    notebook = v4.new_notebook(cells=cells)
    changed = saved_by_jupyter(notebook)
    changed.cells[1].source += " + 1"
    copies = []
    for number, each in enumerate((notebook, saved_by_jupyter(notebook), changed)):
        path = tmp_path / str(number) / "run.ipynb"
        path.parent.mkdir()
        nbformat.write(each, path)
        clean.main(str(path.parent), str(tmp_path / "copies"))
        copies.append((tmp_path / "copies" / "run.ipynb").read_bytes())
    assert copies[0] == copies[1] != copies[2]
    copy = nbformat.reads(copies[0].decode(), as_version=4)
    nbformat.validate(copy)
    assert [cell.source for cell in copy.cells] == [cell.source for cell in cells]
    assert copy.cells[1].metadata.tags == ["parameters"] and copy.cells[1].outputs == []
    assert copy.metadata.kernelspec.name == "python3"


def test_a_record_says_what_a_set_contains_and_not_where_it_came_from():
    record = content("cifar10-mini")
    assert record == {
        "name": "cifar10-mini",
        "counts": {"train": 2000, "test": 1000},
        "sha256": SETS["cifar10-mini"].sums,
    }
