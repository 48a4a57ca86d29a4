"""What is seen of something that takes long: in a terminal, in a log, in Jupyter, under papermill."""

import sys

import nbformat
import pytest
from nbclient import NotebookClient
from tqdm import tqdm

from gmmvit.analysis import fields as erf
from gmmvit.data import progress


@pytest.fixture
def nobody_watches(monkeypatch):
    """Neither a terminal nor a kernel."""
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by 25 seconds whenever it is looked at."""
    times = iter(range(0, 10**6, 25))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))


def test_a_log_gets_a_line_a_minute(nobody_watches, capsys, clock):
    with progress.bar(total=20, initial=10, desc="epoch 1 of 5", leave=False) as steps:
        for _ in range(10):
            steps.update()
            steps.set_postfix(loss="2.305")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "epoch 1 of 5: 13 of 20 (65%), 01:15, loss=2.305",
        "epoch 1 of 5: 16 of 20 (80%), 02:30, loss=2.305",
        "epoch 1 of 5: 19 of 20 (95%), 03:45, loss=2.305",
    ]


def test_what_is_iterated_and_what_has_no_end_are_counted_too(nobody_watches, capsys, clock):
    assert list(progress.bar(range(7), desc="decoding", unit="image")) == list(range(7))
    endless = progress.bar(desc="bytes", unit="B", unit_scale=True)
    for _ in range(3):
        endless.update(1_000_000)
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == "decoding: 3 of 7 (43%) image, 01:15" and last == "bytes: 3.00M B, 01:15"


def test_a_short_loop_says_nothing(nobody_watches, capsys):
    assert list(progress.bar(range(1000), desc="quick")) == list(range(1000))
    assert capsys.readouterr().err == ""


def test_under_papermill_the_record_stays_as_it_is(nobody_watches, capsys, clock, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    list(progress.bar(range(50), desc="epoch"))
    assert capsys.readouterr().err == ""


def test_in_a_terminal_there_is_a_bar(nobody_watches, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert type(progress.bar(total=3)) is tqdm


@pytest.mark.slow
def test_a_notebook_that_is_saved_holds_no_dead_widget(monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", "x.ipynb")
    cells = ["from gmmvit.data.progress import bar", "for _ in bar(range(3), desc='seen'): pass"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, kernel_name="python3").execute()
    outputs = notebook.cells[1].outputs
    assert {(output.output_type, output.name) for output in outputs} == {("stream", "stdout")}
    shown = "".join(output.text for output in outputs)
    assert "seen" in shown and shown.split("\r")[-1] == ""  # what is left to see: nothing


def test_a_receptive_field_says_of_how_many_images(monkeypatch):
    from gmmvit.analysis import samples
    from gmmvit.fetch import obtain
    from gmmvit.train.classify import Classification
    from gmmvit.train.processes import World
    from gmmvit.train.rows import Row

    asked = []
    monkeypatch.setattr(samples, "FIELD_IMAGES", 4)
    monkeypatch.setattr(erf, "bar", lambda **options: asked.append(options) or progress.Lines(**options))
    obtain("cifar10-mini")
    task = Classification(Row("cifar10-mini", "vit"), World(), 0)
    samples._field(task, task.model())
    assert [options["total"] for options in asked if options] and all(options["total"] == 4 for options in asked)
