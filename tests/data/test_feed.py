"""What a run reads: epochs and tests from processes that last, from any place on; nothing is left behind."""

import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from gmmvit import data
from gmmvit.data.feed import Feed
from gmmvit.data.loader import Stream
from gmmvit.train.processes import World
from gmmvit.train.shares import evaluation_keys, training_keys

CIFAR, CPU = data.SETS["cifar10"], torch.device("cpu")
SIZES = {"passes": 1, "batch": 150, "steps": 3, "accumulate": 1}

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Numbers:
    """A source of 500 samples whose images are their numbers and the process that read them."""

    labels = np.arange(500)

    def __len__(self):
        return 500

    def read(self, indices):
        return np.stack([indices, np.full(len(indices), os.getpid())], 1)


def plain(samples, seeds):
    return torch.from_numpy(samples)


def groups(name, epoch):
    return training_keys(500, 0, epoch, World(), **SIZES) if name == "train" else evaluation_keys(500, World(), 120)


def feed(workers, augment=plain, source=None):
    streams = {name: Stream(source or Numbers(), augment) for name in ("train", "test", "val")}
    return Feed(streams, groups, workers=workers, device=CPU)


def read(of, *place):
    """[(keys, numbers, labels, processes)] of each group."""
    found = []
    for keys, items in of.read(*place):
        images, labels = (torch.cat(part) for part in zip(*items, strict=True))
        found.append((keys.tolist(), images[:, 0].tolist(), labels.tolist(), set(images[:, 1].tolist())))
    return found


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_epochs_and_tests_are_read_in_any_order_by_the_same_processes(workers):
    of, processes = feed(workers), set()
    places = [("train", 0), ("test",), ("val",), ("train", 1), ("test",), ("train", 1, 2), ("train", 7), ("val",)]
    for name, epoch, start in ((*place, None, 0)[:3] if len(place) < 3 else place for place in places):
        found = read(of, name, *((epoch,) if epoch is not None else ()), *((start,) if start else ()))
        epoch_read = epoch if epoch is not None else of.epoch
        expected = groups(name, epoch_read)[start or 0 :]
        assert [keys for keys, *_ in found] == [keys.tolist() for keys in expected]
        for keys, numbers, labels, by in found:
            assert numbers == labels == [key % 500 for key in keys]
            processes |= by
    of.close()
    assert processes == {os.getpid()} if workers == 0 else len(processes) == workers and os.getpid() not in processes


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_may_be_left_entered_again_and_interrupted_by_a_test(workers):
    of = feed(workers)
    whole = [keys.tolist() for keys in groups("train", 0)]
    reading = of.read("train", 0)
    first = next(reading)[0].tolist()
    tested = read(of, "test")  # in the middle of the epoch
    rest = [keys.tolist() for keys, _ in reading]
    assert [first, *rest] == whole and [keys for keys, *_ in tested] == [keys.tolist() for keys in groups("test", 0)]
    next(of.read("train", 0))  # left after a group
    assert [keys for keys, *_ in read(of, "train", 0, 1)] == whole[1:]
    assert [numbers for _, numbers, *_ in read(of, "train", 0)] == [[key % 500 for key in keys] for keys in whole]
    of.close()


def test_nothing_that_a_test_reads_is_unfit_for_training():
    """What comes from a process in inference mode could not be saved for a backward pass."""
    for workers in (0, 1):
        of = feed(workers)
        with torch.inference_mode():
            _, items = next(of.read("test"))
        assert not any(part.is_inference() for item in items for part in item)
        of.close()


def test_a_process_makes_at_most_64_images_at_a_time():
    of = feed(0)
    sizes = [[len(labels) for _, labels in items] for _, items in of.read("train", 0)]
    assert sizes == [[64, 64, 22]] * 3


@pytest.mark.parametrize(("device", "pinned"), [("cpu", False), ("cuda", True)])
def test_memory_is_pinned_for_the_device_of_the_run_and_not_for_one_that_is_there(monkeypatch, device, pinned):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    streams = {"train": Stream(Numbers(), plain)}
    assert Feed(streams, groups, device=torch.device(device)).loader.pin_memory is pinned


def failing(samples, seeds):
    if len(samples) == 22:  # the last item of each group
        raise ValueError("the disk has gone")
    return torch.from_numpy(samples)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts in /proc")
@pytest.mark.parametrize("augment", [plain, failing])
def test_processes_and_files_do_not_grow_and_are_gone_at_the_end(augment):
    gc.collect()
    before, counts = open_now(), []
    of = feed(2, augment)
    for epoch in range(6):
        if augment is failing:
            with pytest.raises(ValueError, match="the disk has gone"):
                read(of, "train", epoch)
        else:
            read(of, "train", epoch), read(of, "test"), read(of, "val")
        counts.append(open_now())
    assert {children for children, _ in counts} == {before[0] + 2}
    assert max(files for _, files in counts) - counts[0][1] < 20  # what is loaded ahead may differ, nothing piles up
    of.close()
    deadline = time.monotonic() + 20
    while (after := open_now())[1] > before[1] and time.monotonic() < deadline:
        gc.collect()  # queues are closed by threads of their own
        time.sleep(0.1)
    assert after[0] == before[0] and after[1] <= before[1]
    of.close()  # twice is no harm
    assert len(read(feed(0), "train", 0)) == 3


def open_now():
    """This process's children and open files."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return len(children), len(os.listdir("/proc/self/fd"))


LEFT_OPEN = """
import numpy as np, os, sys
from gmmvit import data
from gmmvit.data.loader import Loader, Stream
source = data.load("cifar10-mini")["test"]
augment = data.augmentation("short", data.SETS["cifar10"], train=True)
loading = iter(Loader(Stream(source, augment), list(np.arange(500).reshape(10, 50)), workers=2))
next(loading)
print(*open(f"/proc/self/task/{os.getpid()}/children").read().split())
%s
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks into /proc")
@pytest.mark.parametrize("end", ["", "raise ValueError", "sys.exit(3)"])
def test_a_program_that_ends_amid_batches_ends(end):
    done = subprocess.run([sys.executable, "-c", LEFT_OPEN % end], capture_output=True, text=True, timeout=120)
    children = done.stdout.split()
    assert len(children) == 2 and not any(Path(f"/proc/{child}").exists() for child in children)
    assert done.returncode == {"": 0, "raise ValueError": 1, "sys.exit(3)": 3}[end], done.stderr


class Large(Numbers):
    """Reading takes 80 MB, which are free afterwards; then what the process still holds."""

    def read(self, indices):
        block = torch.ones(20 << 20)
        del block
        held = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return np.stack([indices, np.full(len(indices), held)], 1)


FREED = """
from gmmvit.data.memory import keep_freed_memory
from test_feed import Large, feed, read
assert keep_freed_memory()
of = feed(1, source=Large())
print(min(*read(of, "test")[0][3], *read(of, "test")[1][3]), *read(feed(0, source=Large()), "test")[0][3])
of.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_processes_give_back_the_memory_that_training_keeps():
    here = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, timeout=120, cwd=here)
    assert done.returncode == 0, done.stderr
    theirs, ours = map(int, done.stdout.split()[:2])
    assert ours - theirs > 60e6


def test_the_next_epoch_is_loaded_while_a_run_tests(tmp_path):
    of = feed(1, Marked(tmp_path))
    read(of, "train", 0), read(of, "test"), read(of, "val")  # 9 items each
    asked = len(list(tmp_path.iterdir()))
    deadline = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 27 + 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    of.close()
    assert asked >= 27 and len(list(tmp_path.iterdir())) == 27 + 2


class Marked:
    """Leaves a file for every item that was loaded."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, samples, seeds):
        (self.folder / str(time.monotonic_ns())).touch()
        return torch.from_numpy(samples)
