"""Records and checkpoints: none is lost to another row, to damage, to changed code or to numbers that are none."""

import json
import subprocess
import threading

import pytest
import torch

from gmmvit.data.places import alone, write_json
from gmmvit.train import Diverged, OtherRun, checkpoint, classification, loop, record, train
from gmmvit.train import engine as engine_module
from gmmvit.train.classify import Classification
from gmmvit.train.engine import PACKAGE, engine, made_by, modules, rooms

ROW = {
    "dataset": "cifar10-mini",
    "model": "test_vit",
    "mask": "gmm",
    "seed": 3,
    "set": {"epochs": 3, "passes": 1, "batch": 500, "warmup_epochs": 1},
}
SAME = ("metrics.json", "history.csv", "layers.csv", "masks.npz", "weights.pt")


class Killed(BaseException):
    pass


def quiet(line):
    pass


def after(epochs):
    """What ends a run like a kill, once so many epochs are saved."""

    def on_epoch(history):
        if len(history) > epochs:
            raise Killed

    return on_epoch


def files_of(out, names=SAME):
    return {name: (out / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The files of a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    train(ROW, out, say=quiet)
    return files_of(out)


@pytest.fixture
def stopped(tmp_path):
    """A run that was killed with two epochs saved: its folder and its last checkpoint."""
    out = tmp_path / "run"
    with pytest.raises(Killed):
        train(ROW, out, say=quiet, on_epoch=after(2))
    return out, checkpoint.folder_for(out) / "last.pt"


# ---- one folder, one row --------------------------------------------------------------------------------------------


def test_the_record_of_another_row_is_refused_and_left_alone(tmp_path, whole):
    for name, content in whole.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(OtherRun, match=r"metrics.json belongs to the row .* seed 3 instead of 4: give another --out"):
        train({**ROW, "seed": 4}, tmp_path, say=quiet)
    assert files_of(tmp_path) == whole


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"row": 3}', "\0\0"])
def test_a_record_that_cannot_be_read_is_refused_and_left_alone(tmp_path, content):
    (tmp_path / "metrics.json").write_text(content)
    with pytest.raises(OtherRun, match="is no record of a run: give another --out, or delete"):
        train(ROW, tmp_path, say=quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.json"]
    assert (tmp_path / "metrics.json").read_text() == content


def test_a_record_that_is_being_replaced_does_not_count_as_finished(tmp_path, monkeypatch, whole):
    """As in a fresh clone: the record is there, the weights are not."""
    old = json.loads(whole["metrics.json"]) | {"top1": 99.0}
    write_json(tmp_path / "metrics.json", old)

    def kill(*arguments, **options):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(record.learned, "save", kill)
        train(ROW, tmp_path, say=quiet)
    assert not (tmp_path / "metrics.json").exists()
    train(ROW, tmp_path, say=quiet)
    assert files_of(tmp_path) == whole


def test_a_second_training_waits_for_the_first_and_says_so(tmp_path, whole):
    out, said, waiting = tmp_path / "run", [], threading.Event()

    def say(line):
        said.append(line)
        waiting.set()

    with checkpoint.held(out, quiet):
        second = threading.Thread(target=train, args=(ROW, out), kwargs={"say": say})
        second.start()
        assert waiting.wait(60) and said == [f"another process trains into {out}: waiting until it ends"]
        out.mkdir()
        for name, content in whole.items():
            (out / name).write_bytes(content)
        (out / "timing.json").write_text("{}")
    second.join(60)
    assert "already ended" in said[-1] and files_of(out) == whole


def test_a_lock_leaves_nothing_and_lets_one_in_at_a_time(tmp_path):
    inside, most = [], []

    def work():
        for _ in range(40):
            with alone(tmp_path / "set"):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 160 and max(most) == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_is_refused_before_training(tmp_path, monkeypatch, place):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(classification, "task", None)
    with pytest.raises(OSError, match="file"):
        train(ROW, tmp_path / place, say=quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_written_to_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(classification, "task", None)
    monkeypatch.setattr(checkpoint.os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match="cannot be written to: expected a folder"):
        train(ROW, tmp_path, say=quiet)


def test_what_a_killed_process_was_writing_is_cleared_away_with_the_next_record(tmp_path, whole):
    out = tmp_path / "run"
    out.mkdir()
    left = [out / f".{name}.4194999.partial" for name in ("metrics.json", "timing.json", "history.csv", "weights.pt")]
    for path in left:
        path.write_text("half")
    train(ROW, out, say=quiet)
    assert files_of(out) == whole and not any(path.exists() for path in left)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


# ---- checkpoints ----------------------------------------------------------------------------------------------------


def test_a_checkpoint_left_behind_by_a_finished_run_goes(stopped, whole):
    out, last = stopped
    kept = last.read_bytes()
    train(ROW, out, say=quiet)
    last.parent.mkdir(parents=True)
    last.write_bytes(kept)  # as after a kill between metrics.json and its removal
    said = []
    train(ROW, out, say=said.append)
    assert "already ended" in said[0] and not last.parent.exists()


@pytest.mark.slow
def test_a_checkpoint_of_another_engine_is_not_gone_on_from(stopped, whole, monkeypatch):
    out, last = stopped
    said, now = [], engine("classification")
    monkeypatch.setattr(loop, "engine", lambda kind: {**now, "modules": "another"})
    train(ROW, out, say=said.append)
    assert any(f"{last} was made by another engine (other modules): the run begins anew" == line for line in said)
    assert not any("resumed" in line for line in said) and files_of(out) == whole


def test_the_engine_is_the_modules_that_dvc_compares_and_the_versions():
    listed = modules("classification")
    assert {"train/loop.py", "core/masks.py", "data/loader.py", "train/engine.py"} <= set(listed)
    assert not {"paper/plots.py", "cli.py", "paper/report.py", "dense/tasks.py", "fetch/download.py"} & set(listed)
    assert {"dense/tasks.py", *listed} < set(modules("detection"))
    assert all((PACKAGE / name).is_file() for name in listed)
    assert set(engine("classification")) == {"modules", "torch", "timm"}
    assert engine("classification")["modules"] != engine("detection")["modules"]


def test_a_record_names_the_commit_of_its_engine_and_no_later_one(tmp_path, monkeypatch, whole):
    assert json.loads(whole["metrics.json"])["engine"] == made_by("classification")

    def git(*words):
        name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        done = subprocess.run(["git", *name, *words], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def found(kind="classification"):
        made_by.cache_clear()
        return made_by(kind)["commit"]

    for room in (*rooms("detection"), "paper"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "file.py").write_text("")
    monkeypatch.setattr(engine_module, "PACKAGE", tmp_path)
    assert found() is None  # not in git
    git("init", "-q"), git("add", "-A"), git("commit", "-qm", "one")
    first = git("rev-parse", "HEAD")
    for room in ("paper", "dense"):
        (tmp_path / room / "file.py").write_text("changed")
        git("commit", "-aqm", room)
    assert found() == first and found("detection") == git("rev-parse", "HEAD")
    (tmp_path / "core" / "file.py").write_text("changed")
    assert found() is None  # not committed
    made_by.cache_clear()


def flipped(content, place):
    changed = bytearray(content)
    changed[place] ^= 1
    return bytes(changed)


def damages(content):
    size = len(content)
    cuts = {f"cut at {at}": content[:at] for at in (0, 1, 100, size // 2, size - 33, size - 1)}
    places = (0, 5_000, size // 3, size // 2, 3 * size // 4, size - 60, size - 20)
    flips = {f"a bit at {at}": flipped(content, at) for at in places}
    return cuts | flips | {"longer": content + b"\0", "another file": b"PK\3\4" + bytes(1000)}


def test_a_damaged_checkpoint_is_one_sentence_and_the_one_before_it_is_taken_up(stopped, whole, tmp_path):
    out, last = stopped
    now = engine("classification")
    row = json.loads(torch.load(last, weights_only=True)["row"])
    good, before = last.read_bytes(), last.with_name("before.pt").read_bytes()
    for what, content in damages(good).items():
        last.write_bytes(content)
        last.with_name("before.pt").write_bytes(before)
        said = []
        found = checkpoint.read(last, row, now, said.append)
        assert found["place"]["epoch"] == 1, what
        assert len(said) == 1 and "goes on from before.pt" in said[0] and "\n" not in said[0], what
        last.write_bytes(content)
        last.with_name("before.pt").unlink()
        with pytest.raises(checkpoint.Damaged, match="delete .* and the run begins anew") as caught:
            checkpoint.read(last, row, now, quiet)
        assert "\n" not in str(caught.value) and "weights_only" not in str(caught.value), what
    last.write_bytes(flipped(good, len(good) // 2))
    last.with_name("before.pt").write_bytes(before)
    said = []
    train(ROW, out, say=said.append)
    assert any("resumed at epoch 1" in line for line in said) and files_of(out) == whole


def test_a_kill_between_the_two_renames_of_a_save_loses_nothing(stopped, whole):
    out, last = stopped
    last.unlink()
    said = []
    train(ROW, out, say=said.append)
    assert any("resumed at epoch 1" in line for line in said) and files_of(out) == whole


SENSELESS = {
    "an epoch too many": {"place": {"epoch": 99}},
    "a step too many": {"place": {"step": 99}},
    "no history": {"place": {"history": []}},
    "a place of its own": {"place": {"hour": 3}},
    "a history of numbers": {"place": {"history": [1, 2]}},
    "an endless time": {"place": {"total": float("inf")}},
    "no model": {"state": {"model": None}},
    "another model": {"state": {"model": {"weight": torch.zeros(3)}}},
    "no optimiser": {"state": {"optimizer": {}}},
    "an epoch in words": {"place": {"epoch": "two"}},
}


@pytest.mark.parametrize("what", SENSELESS)
def test_a_checkpoint_without_sense_is_one_sentence(stopped, what):
    out, last = stopped
    content = torch.load(last, weights_only=True)
    for part, values in SENSELESS[what].items():
        content[part] |= values
    checkpoint.write(last, content)
    with pytest.raises(checkpoint.Damaged, match="no checkpoint of this row .* delete .* begins anew") as caught:
        train(ROW, out, say=quiet)
    assert "\n" not in str(caught.value) and last.exists()


def test_another_number_of_threads_is_said_in_one_line(stopped):
    out, last = stopped
    content = torch.load(last, weights_only=True)
    checkpoint.write(last, content | {"threads": 64})
    said = []
    train(ROW, out, say=said.append)
    assert [line for line in said if "thread(s)" in line] == [
        f"begun with 64 thread(s), goes on with {torch.get_num_threads()}: its last digits may differ"
    ]


# ---- numbers that are none ------------------------------------------------------------------------------------------


def explode(at, value):
    """A step of the optimiser that makes a weight infinite, or no number, as update `at` ends."""
    step, count = torch.optim.AdamW.step, []

    def exploding(self, *arguments, **options):
        result = step(self, *arguments, **options)
        count.append(1)
        if len(count) == at:
            self.param_groups[0]["params"][0].data.view(-1)[0] = value
        return result

    return exploding


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_after_the_last_step_of_an_epoch_are_not_saved(tmp_path, monkeypatch, value):
    monkeypatch.setattr(torch.optim.AdamW, "step", explode(8, value))  # the last of epoch 2
    with pytest.raises(Diverged, match="weights are not finite in epoch 2, step 4; the last good checkpoint is"):
        train(ROW, tmp_path / "run", say=quiet)
    saved = torch.load(checkpoint.folder_for(tmp_path / "run") / "last.pt", weights_only=True)
    assert saved["place"]["epoch"] == 1
    assert all(values.isfinite().all() for values in saved["state"]["model"].values() if values.is_floating_point())


def test_a_run_that_diverges_in_its_only_step_leaves_no_record(tmp_path):
    settings = {"batch": 2000, "epochs": 1, "warmup_epochs": 0, "lr": 1e30}
    with pytest.raises(Diverged, match=r"in epoch 1, step \d+; no checkpoint was written"):
        train({**ROW, "set": settings}, tmp_path / "run", say=quiet)
    assert not list(tmp_path.iterdir())


def test_a_test_loss_that_is_not_finite_stops_the_run(tmp_path, monkeypatch):
    original = Classification.test

    def test(self, model, split="test"):
        return original(self, model, split) | {"loss": float("inf")}

    monkeypatch.setattr(Classification, "test", test)
    with pytest.raises(Diverged, match="test_loss is inf in epoch 1, step 4; no checkpoint was written"):
        train(ROW, tmp_path / "run", say=quiet)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_no_json_holds_a_number_that_is_none(tmp_path, value):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "it.json", {"loss": value})
    assert not list(tmp_path.iterdir())
