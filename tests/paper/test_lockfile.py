"""dvc.lock: entries put into it as text are what DVC would have written, and no kill damages it."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from dvc.dependency import ParamsDependency
from dvc.repo import Repo
from dvc.stage import serialize
from dvc.utils.serialize import dumps_yaml, loads_yaml
from dvc_data.hashfile.hash_info import HashInfo
from dvc_data.hashfile.meta import Meta
from lockfile import entries, forget, record

from gmmvit.paper.project import params_of

ROOT = Path(__file__).parents[2]

LONG = "run@" + "a-long-name-" * 14 + "s0"  # YAML writes it on a line of its own, behind a question mark


def entry(size, count=3):
    """What DVC records of a stage."""
    deps = [{"path": f"gmmvit/module{i}.py", "hash": "md5", "md5": f"{i:032d}", "size": size} for i in range(count)]
    params = {"params.yaml": {"rows.a": {"set": {"lr": 0.001, "sigma_init": [10, 0]}, "note": "a: b\n# c"}}}
    return {"cmd": "exec python pipeline/stage.py", "deps": deps, "params": params, "outs": []}


def lock(names, size=1):
    return dumps_yaml({"schema": "2.0", "stages": {name: entry(size) for name in names}})


def test_an_entry_is_put_in_its_place_and_a_new_one_at_the_end(tmp_path):
    path, names = tmp_path / "dvc.lock", ["check", "run@a", LONG, "run@b"]
    path.write_text(lock(names))
    assert list(entries(path.read_text())) == names
    for name in ("run@a", LONG, "report@smoke", "123", "yes"):
        record(path, name, entry(2))
    stages = {name: entry(1) for name in names} | {
        name: entry(2) for name in ("run@a", LONG, "report@smoke", "123", "yes")
    }
    assert loads_yaml(path.read_text()) == {"schema": "2.0", "stages": stages}
    assert path.read_text() == dumps_yaml({"schema": "2.0", "stages": stages})  # to the byte what DVC writes


def test_a_lock_begins_and_what_stands_around_the_stages_stays(tmp_path):
    path = tmp_path / "dvc.lock"
    record(path, "check", entry(1))
    assert path.read_text() == lock(["check"])
    path.write_text(lock(["check"]) + "datasets:\n- name: x\n  type: url\n")
    record(path, "run@a", entry(1))
    assert path.read_text() == lock(["check", "run@a"]) + "datasets:\n- name: x\n  type: url\n"
    path.write_text("schema: '2.0'\nstages: {}\n")
    record(path, "check", entry(1))
    assert path.read_text() == lock(["check"])


def test_the_lock_of_smoke_is_one_that_a_person_can_read(tmp_path):
    """As DVC writes it when all stages were run: at most 3,600 lines."""
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    (tmp_path / "params.yaml").write_text(params_of(ROOT / "profiles" / "smoke.yaml"))
    found = {}
    with Repo.init(tmp_path, no_scm=True) as project:
        for stage in project.index.stages:
            for each in (*stage.deps, *stage.outs):
                folder = "." not in each.def_path  # but build/checked, which is a line less
                each.hash_info = HashInfo("md5", "0" * 32 + ".dir" * folder)
                each.meta = Meta(size=1, nfiles=9 if folder else None)
                if isinstance(each, ParamsDependency):
                    each.save()
            found |= serialize.to_lockfile(stage)
    lines = dumps_yaml({"schema": "2.0", "stages": found}).splitlines()
    assert sum(name.startswith("run") for name in found) == 36 and 2_000 < len(lines) <= 3_600


def test_rows_that_a_profile_has_no_more_are_taken_out_unless_their_records_are_here(tmp_path):
    path, long = tmp_path / "dvc.lock", LONG.removeprefix("run@")
    folders = {name: f"reports/p/runs/{name}/" for name in ("a", "b", "c", long)}
    rows = {f"run@{name}": {"outs": [{"path": folder + "metrics.json"}]} for name, folder in folders.items()}
    rows |= {"run_dense@d": {"outs": [{"path": "reports/other/runs/d/metrics.json"}]}, "report@p": {"outs": []}}
    path.write_text(dumps_yaml({"schema": "2.0", "stages": rows}))
    (tmp_path / folders["b"]).mkdir(parents=True)
    (tmp_path / folders["b"] / "metrics.json").touch()
    forget(path, "p", ["a"])
    assert list(entries(path.read_text())) == ["run@a", "run@b", "run_dense@d", "report@p"]
    assert loads_yaml(path.read_text())["stages"] == {
        name: row for name, row in rows.items() if name not in ("run@c", LONG)
    }


def test_what_dvc_did_not_write_is_refused_and_kept(tmp_path):
    path = tmp_path / "dvc.lock"
    path.write_text("<<<<<<< HEAD\n")
    with pytest.raises(ValueError, match="expected a file that DVC wrote"):
        record(path, "check", entry(1))
    assert path.read_text() == "<<<<<<< HEAD\n" and list(tmp_path.iterdir()) == [path]


def test_a_lock_of_the_size_of_paper_is_written_in_under_a_second(tmp_path):
    """622 stages of 300 lines; DVC itself takes half a minute."""
    path = tmp_path / "dvc.lock"
    one = dumps_yaml({"stages": {"NAME": entry(1, 70)}}).partition("\n")[2]
    path.write_text("schema: '2.0'\nstages:\n" + "".join(one.replace("NAME", f"run@row-{i}") for i in range(622)))
    assert path.read_text().count("\n") > 180_000
    since = time.process_time()
    record(path, "run@row-300", entry(2))
    assert time.process_time() - since < 1
    assert len(entries(path.read_text())) == 622


@pytest.mark.slow
def test_a_lock_that_is_written_while_its_writer_is_killed_is_whole(tmp_path):
    path, moments = tmp_path / "dvc.lock", random.Random(0)
    path.write_text(lock([f"run@row-{i}" for i in range(500)]))
    before, killed = lock([f"run@row-{i}" for i in range(500)]), 0
    for _ in range(20):
        child = os.fork()
        if not child:
            for size in range(1000):
                record(path, "run@row-250", entry(size))
            os._exit(0)
        time.sleep(moments.uniform(0.02, 0.2))
        os.kill(child, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        found = entries(path.read_text())
        assert len(found) == 500 and path.read_text().endswith("outs: []\n")
        assert all(found[name] == text for name, text in entries(before).items() if name != "run@row-250")
    assert killed == 20
    record(path, "run@row-250", entry(1))
    assert path.read_text() == before
