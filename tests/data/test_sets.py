"""The table of data sets, the embedded sample, and what is said of sets that are there or not."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from gmmvit import data, fetch
from gmmvit.data import places
from gmmvit.data.arrays import sum_of
from gmmvit.dense.sets import SETS as DENSE
from gmmvit.fetch import mini

ROOT = Path(__file__).parents[2]
# From the record of the set's making, independent of the table in the package.
MINI_TRAIN = "4e5ac895e46a9b569a45d0220f845bd1c317a6bbb96ae905af26bf5b6ca10a16"
MINI_TEST = "cc2bd4479eda140793858a9ea7f9016e6870fefd7f69f172720267e933ec44a5"


@pytest.fixture(scope="module")
def full():
    """The full CIFAR-10, where it is there."""
    if places.record_of(places.folder_of("cifar10")) is None:
        pytest.skip("the full CIFAR-10 is not in the data folder")
    return data.load("cifar10")


def test_embedded_sample_is_the_recorded_one_balanced_and_small():
    splits = data.load("cifar10-mini")
    assert sum_of(splits["train"].images) == MINI_TRAIN
    assert sum_of(splits["test"].images) == MINI_TEST
    assert np.bincount(splits["train"].labels).tolist() == [200] * 10
    assert np.bincount(splits["test"].labels).tolist() == [100] * 10
    files = list((ROOT / "data" / "cifar10-mini").iterdir())
    assert sum(file.stat().st_size for file in files) < 6e6


def test_embedded_sample_holds_the_first_images_of_each_class_of_the_full_set(full):
    for split, count in (("train", 200), ("test", 100)):
        source, sample = full[split], data.load("cifar10-mini")[split]
        for label in range(10):
            first = np.flatnonzero(source.labels == label)[:count]
            assert (source.images[first] == sample.images[sample.labels == label]).all()


def test_a_mosaic_comes_apart_into_its_tiles(tmp_path):
    from torchvision.transforms.v2.functional import to_pil_image

    images = np.random.default_rng(0).integers(0, 256, (80, 32, 32, 3), dtype=np.uint8)
    to_pil_image(mini.tile(images)).save(tmp_path / "m.webp", lossless=True)
    assert (data.arrays.untile(tmp_path / "m.webp") == images).all()


def test_full_set_is_the_official_one_with_the_published_statistics(full):
    (row,) = fetch.check(["cifar10"])
    assert row.complete, row.problem
    check_statistics(full["train"].images, 5.1e-5, 1.5e-4)


def test_statistics_are_near_those_of_the_embedded_sample():
    check_statistics(data.load("cifar10-mini")["train"].images, 0.01, 0.01)


def check_statistics(images, mean_within, std_within):
    """Channel means and standard deviations, from a histogram of the values, against the published ones."""
    values = np.arange(256) / 255
    for channel in range(3):
        share = np.bincount(images[..., channel].ravel(), minlength=256) / images[..., channel].size
        mean = share @ values
        assert mean == pytest.approx(data.SETS["cifar10"].mean[channel], abs=mean_within)
        assert np.sqrt(share @ (values - mean) ** 2) == pytest.approx(data.SETS["cifar10"].std[channel], abs=std_within)


def test_full_set_opens_in_under_a_second(full):
    start = time.perf_counter()
    splits = data.load("cifar10")
    splits["train"].read(np.arange(128))
    assert time.perf_counter() - start < 1


def test_unknown_set_is_answered_with_the_nearest_name():
    with pytest.raises(ValueError, match="unknown data set 'cifar-100'.*nearest is 'cifar100'"):
        data.load("cifar-100")


def test_missing_set_is_refused_and_reported_with_the_command_that_fetches_it(tmp_path, monkeypatch):
    monkeypatch.setenv("GMMVIT_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="gmmvit data svhn"):
        data.load("svhn")
    rows = {row.name: row for row in fetch.check()}
    assert list(rows) == [*data.SETS, *DENSE]
    assert (
        rows["cifar10-mini"].complete
        and rows["cifar10-mini"].bytes > 1e6
        and "repository" in rows["cifar10-mini"].source
    )
    assert not rows["svhn"].present and not rows["svhn"].complete and "gmmvit data svhn" in rows["svhn"].problem


def test_data_folder_is_the_project_s_around_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.delenv("GMMVIT_DATA", raising=False)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert places.root() == ROOT / "data"
    (tmp_path / "dvc.yaml").touch()
    assert places.root() == tmp_path / "data"
    monkeypatch.setenv("GMMVIT_DATA", str(tmp_path / "elsewhere"))
    assert places.root() == tmp_path / "elsewhere"


def test_two_processes_do_not_work_on_one_set_at_a_time(tmp_path):
    children = []
    for number in range(3):
        children.append(os.fork())
        if children[-1] == 0:
            with places.alone(tmp_path / "set"):
                start = time.monotonic()
                time.sleep(0.1)
                (tmp_path / str(number)).write_text(f"{start} {time.monotonic()}")
            os._exit(0)
    for child in children:
        os.waitpid(child, 0)
    spans = sorted([float(moment) for moment in (tmp_path / str(n)).read_text().split()] for n in range(3))
    assert spans[0][1] <= spans[1][0] and spans[1][1] <= spans[2][0]
