"""How many processes load, and whether their shared memory suffices."""

import os

import pytest
import torch

from gmmvit.data import workers
from gmmvit.data.workers import cores, loading_processes, shared_memory_needed, too_little_shared_memory

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("LOCAL_WORLD_SIZE", "GMMVIT_JOBS"):
        monkeypatch.delenv(name, raising=False)


def allow(monkeypatch, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(count)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)


@pytest.mark.parametrize(
    ("allowed", "environment", "of_files", "of_arrays"),
    [
        (1, {}, 1, 1),  # sbatch's default of one core for a task on a machine with 64
        (8, {}, 7, 2),
        (64, {}, 16, 2),
        (64, {"LOCAL_WORLD_SIZE": "8"}, 7, 2),
        (64, {"GMMVIT_JOBS": "4"}, 15, 2),
        (64, {"LOCAL_WORLD_SIZE": "8", "GMMVIT_JOBS": "4"}, 1, 1),
        (8, {"LOCAL_WORLD_SIZE": "8", "GMMVIT_JOBS": "4"}, 1, 1),
        (64, {"GMMVIT_JOBS": ""}, 16, 2),
    ],
)
def test_processes_follow_from_the_cores_that_are_allowed(monkeypatch, allowed, environment, of_files, of_arrays):
    allow(monkeypatch, allowed)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (loading_processes(CUDA, arrays=False), loading_processes(CUDA, arrays=True)) == (of_files, of_arrays)
    assert loading_processes(CPU, arrays=False) == loading_processes(CPU, arrays=True) == 0


def test_where_there_is_no_affinity_all_cores_count(monkeypatch):
    allow(monkeypatch, 3)
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cores() == 64


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
def test_a_process_bound_to_one_core_starts_one_worker():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert loading_processes(CUDA, arrays=False) == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_shared_memory_is_that_of_what_is_loaded_ahead():
    image = 224 * 224
    assert 3 * image * 64 * 32 < shared_memory_needed(1024, 224, 16) < 500 << 20  # 20 GB with float32 batches
    assert shared_memory_needed(8, 224, 16) == shared_memory_needed(64, 224, 2)
    assert shared_memory_needed(1024, 224, 0) == 0
    assert shared_memory_needed(128, 224, 2, pinned=False) > shared_memory_needed(128, 224, 2)


def test_too_little_shared_memory_is_said_in_a_sentence(monkeypatch):
    docker = 64 << 20
    assert too_little_shared_memory(128, 32, 2, docker) == "" == too_little_shared_memory(1024, 224, 16, None)
    said = too_little_shared_memory(1024, 224, 16, docker)
    assert said.startswith("/dev/shm: expected 392 MB free for 16 loading processes, got 64 MB")
    assert "--shm-size=1g" in said and "--workers 2 fits" in said
    assert too_little_shared_memory(1024, 224, 2, docker) == ""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert "expected 196 MB" in too_little_shared_memory(1024, 224, 2, docker)


def test_a_run_says_so_before_it_trains(monkeypatch, tmp_path):
    from gmmvit.train import train

    monkeypatch.setattr(workers, "shared_memory_free", lambda: 100_000)
    row = {"dataset": "cifar10-mini", "model": "test_vit", "recipe": "gmm", "set": {"epochs": 1, "warmup_epochs": 0}}
    with pytest.raises(ValueError, match="/dev/shm: expected .* --workers 0 fits"):
        train(row, tmp_path / "run", device="cpu", workers=2)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not os.path.exists(workers.SHARED), reason="shared memory is no file system here")
def test_free_shared_memory_is_what_the_system_says():
    free = workers.shared_memory_free()
    with open(f"{workers.SHARED}/gmmvit-test-{os.getpid()}", "wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, 30 << 20)
            assert free - workers.shared_memory_free() == pytest.approx(30 << 20, abs=20 << 20)
        finally:
            os.unlink(file.name)
