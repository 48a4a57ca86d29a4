"""Sets of image files: official layouts, the 70/15/15 split, corrupt and missing images."""

import json
import os
import tarfile
import zipfile

import numpy as np
import pytest
import scipy.io
import torch
import torchvision
from torchvision.datasets.utils import calculate_md5
from torchvision.transforms.v2.functional import to_pil_image

from gmmvit import data, fetch
from gmmvit.data import files
from gmmvit.data.images import verify_images
from gmmvit.data.sets import POOLED
from gmmvit.fetch import download, official_files

RNG = np.random.default_rng(0)


@pytest.fixture
def room(tmp_path, monkeypatch):
    """An empty data folder, and no network."""

    def unreachable(url, *args):
        raise OSError("no route to host")

    monkeypatch.setenv("GMMVIT_DATA", str(tmp_path))
    monkeypatch.setattr(download, "download_url", unreachable)
    (tmp_path / "downloads").mkdir()
    return tmp_path


def shrink(monkeypatch, name, classes, **counts):
    monkeypatch.setitem(data.SETS, name, data.SETS[name]._replace(classes=classes, counts=counts))


def picture(path, grey=None):
    """A JPEG of noise, or of one grey."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RNG.integers(0, 256, (24, 32, 3), dtype=np.uint8) if grey is None else np.full((24, 32, 3), grey, np.uint8)
    to_pil_image(pixels).save(path, "JPEG")


def pets(room, monkeypatch):
    """Three breeds, one with an underscore and one with a small letter, in official lists; one image is not listed."""
    home = room / "downloads" / "oxford-iiit-pet"
    stems = [f"{breed}_{n}" for breed in ("great_pyrenees", "Maine_Coon", "Bengal") for n in range(1, 21)]
    for stem in [*stems, "Bengal_999"]:
        picture(home / "images" / f"{stem}.jpg")
    (home / "annotations").mkdir()
    (home / "annotations" / "trainval.txt").write_text("".join(f"{stem} 1 1 1\n" for stem in stems[::2]))
    (home / "annotations" / "test.txt").write_text("".join(f"{stem} 1 1 1\n" for stem in stems[1::2]))
    shrink(monkeypatch, "pets", 3, **{POOLED: 60})
    return home


def names(source):
    return [source.path(index).name for index in range(len(source))]


def test_pets_are_pooled_sorted_and_split_by_the_papers_rule(room, monkeypatch):
    pets(room, monkeypatch)
    splits = fetch.obtain("pets")
    breeds = ["Bengal", "Maine_Coon", "great_pyrenees"]
    listed = sorted(f"{breed}_{n}.jpg" for breed in breeds for n in range(1, 21))
    np.random.seed(0)
    order = np.random.permutation(60)
    assert names(splits["train"]) == [listed[number] for number in order[:42]]
    assert names(splits["val"]) == [listed[number] for number in order[42:51]]
    assert names(splits["test"]) == [listed[number] for number in order[51:]]
    for part in splits.values():
        assert [breeds[label] for label in part.labels] == [name.rsplit("_", 1)[0] for name in names(part)]


def test_shares_are_rounded_down_as_the_paper_counts_caltech():
    parts = files.resplit([str(number) for number in range(9_144)])
    assert {split: len(part) for split, part in parts.items()} == {"train": 6_400, "val": 1_371, "test": 1_371}
    assert len(set().union(*parts.values())) == 9_142
    dogs = [len(part) for part in files.resplit([str(number) for number in range(20_580)]).values()]
    assert dogs == [14_405, 3_087, 3_087]  # int(20_580 * 0.7), as the public code has it


def test_split_file_is_used_again_as_it_is(room, monkeypatch):
    pets(room, monkeypatch)
    fetch.obtain("pets")
    path = room / "pets" / "split.json"
    parts = json.loads(path.read_text())
    parts["val"], parts["test"] = parts["test"], parts["val"]
    path.write_text(json.dumps(parts))
    assert names(fetch.obtain("pets")["val"]) == parts["val"]
    parts["val"] = parts["train"][:9]
    path.write_text(json.dumps(parts))
    with pytest.raises(ValueError, match="split.json names 9 images twice"):
        data.load("pets")


def test_pets_out_of_their_archives(room, monkeypatch):
    home = pets(room, monkeypatch)
    resources = []
    for part in ("images", "annotations"):
        archive = home / f"{part}.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(home / part, part)
        resources.append((f"https://official/{archive.name}", calculate_md5(archive)))
        for file in (home / part).iterdir():
            file.unlink()
        (home / part).rmdir()
    monkeypatch.setattr(torchvision.datasets.OxfordIIITPet, "_RESOURCES", tuple(resources))
    assert len(fetch.obtain("pets")["train"]) == 42
    assert sorted(path.name for path in home.iterdir()) == [
        "annotations",
        "annotations.tar.gz",
        "images",
        "images.tar.gz",
    ]


def test_missing_and_corrupt_images_are_named_before_anything_is_written(room, monkeypatch):
    home = pets(room, monkeypatch)
    whole = (home / "images" / "Bengal_3.jpg").read_bytes()
    (home / "images" / "Bengal_3.jpg").unlink()
    with pytest.raises(ValueError, match="1 listed images are missing, Bengal_3.jpg for one"):
        fetch.obtain("pets")
    (home / "images" / "Bengal_3.jpg").write_bytes(whole[: len(whole) // 2])
    (home / "images" / "Maine_Coon_4.jpg").write_bytes(b"<html>not found</html>")
    with pytest.raises(ValueError, match="(?s)images/Bengal_3.jpg cannot be decoded.*images/Maine_Coon_4.jpg cannot"):
        fetch.obtain("pets")
    assert not (room / "pets").exists()
    assert len(verify_images([home / "images" / f"{name}.jpg" for name in ("Bengal_3", "Bengal_4")])) == 1


def test_an_image_that_changes_or_goes_later_is_named_before_the_training(room, monkeypatch):
    home = pets(room, monkeypatch)
    fetch.obtain("pets")
    path = home / "images" / "Bengal_3.jpg"
    path.write_bytes(path.read_bytes()[:-100])
    (home / "images" / "Bengal_4.jpg").unlink()
    with pytest.raises(ValueError, match="Bengal_3.jpg is not the file that was checked.*Bengal_4.jpg is missing"):
        data.load("pets")
    (row,) = fetch.check(["pets"])
    assert row.present and not row.complete and "Bengal_3.jpg" in row.problem


def test_wrong_counts_and_empty_classes_are_said_together(room, monkeypatch):
    pets(room, monkeypatch)
    shrink(monkeypatch, "pets", 37, **{POOLED: 7_349})
    with pytest.raises(
        ValueError, match="37 classes were expected, 3 are there; 7,349 pooled images were expected, 60 are"
    ):
        fetch.obtain("pets")


def caltech(home):
    """Three folders, the background among them; returns the file names in ImageFolder's order."""
    for name, count in (("accordion", 4), ("BACKGROUND_Google", 3), ("yin_yang", 3)):
        for number in range(1, count + 1):
            picture(home / name / f"image_{number:04d}.jpg")
    (home / "accordion" / "notes.txt").write_text("not an image")


def test_caltech_keeps_its_background_and_its_files_where_they_are(room, monkeypatch):
    home = room / "caltech101" / "101_ObjectCategories"  # put by hand where torchvision would look for it
    caltech(home)
    shrink(monkeypatch, "caltech101", 3, **{POOLED: 10})
    splits = fetch.obtain("caltech101")
    assert {split: len(part) for split, part in splits.items()} == {"train": 7, "val": 1, "test": 1}
    record = json.loads((room / "caltech101" / "complete.json").read_text())
    assert record["classes"] == ["BACKGROUND_Google", "accordion", "yin_yang"]
    assert record["home"] == "caltech101/101_ObjectCategories"
    assert len(list(home.glob("*/*.jpg"))) == 10
    folder = torchvision.datasets.ImageFolder(home)
    listed = [os.path.relpath(path, home) for path, _ in folder.imgs]
    assert [line.split("\t")[2] for line in (room / "caltech101" / "images.tsv").read_text().splitlines()] == listed


def test_caltech_out_of_its_archive_in_the_archive(room, monkeypatch):
    caltech(room / "made" / "101_ObjectCategories")
    with tarfile.open(room / "made" / "101_ObjectCategories.tar.gz", "w:gz") as tar:
        tar.add(room / "made" / "101_ObjectCategories", "101_ObjectCategories")
    archive = room / "downloads" / "caltech101" / "caltech-101.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.write(room / "made" / "101_ObjectCategories.tar.gz", "caltech-101/101_ObjectCategories.tar.gz")
    monkeypatch.setattr(official_files, "CALTECH", official_files.CALTECH._replace(md5=calculate_md5(archive)))
    shrink(monkeypatch, "caltech101", 3, **{POOLED: 10})
    assert len(fetch.obtain("caltech101")["train"]) == 7


def test_cars_take_their_classes_from_the_official_annotations(room, monkeypatch):
    with pytest.raises(
        fetch.NotObtained, match="cars_train/, cars_test/, devkit/ and cars_test_annos_withlabels.mat into"
    ):
        fetch.obtain("cars")
    home = room / "downloads" / "stanford_cars"
    (home / "devkit").mkdir(parents=True)
    official = ["Ram C/V 2012", "Acura RL 2012", "BMW M3 2012"]  # class numbers 1, 2, 3
    scipy.io.savemat(home / "devkit" / "cars_meta.mat", {"class_names": np.array(official, object)})
    for folder, path in (
        ("cars_train", "devkit/cars_train_annos.mat"),
        ("cars_test", "cars_test_annos_withlabels.mat"),
    ):
        rows = [(f"{number:05d}.jpg", number % 3 + 1) for number in range(1, 11)]
        scipy.io.savemat(home / path, {"annotations": np.array(rows, [("fname", object), ("class", object)])})
        for name, label in rows:
            picture(home / folder / name, grey=50 * label)
    shrink(monkeypatch, "cars", 3, **{POOLED: 20})
    splits = fetch.obtain("cars")
    assert json.loads((room / "cars" / "complete.json").read_text())["classes"] == sorted(official)
    for part in splits.values():
        for image, label in zip(part.read(range(len(part))), part.labels, strict=True):
            assert official[round(image.getpixel((5, 5))[0] / 50) - 1] == sorted(official)[label]


def imagenet(room, monkeypatch):
    shrink(monkeypatch, "imagenet", 3, train=9, test=3)
    home = room / "downloads" / "imagenet"
    for split, count in (("train", 3), ("val", 1)):
        for label, wnid in enumerate(("n01440764", "n02088094", "n09999999")):
            for number in range(count):
                picture(home / split / wnid / f"{wnid}_{number}.JPEG", grey=50 * label)
    return home


def test_imagenet_says_which_files_to_put_where_and_reads_class_folders(room, monkeypatch):
    with pytest.raises(fetch.NotObtained) as refusal:
        fetch.obtain("imagenet")
    for name in ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"):
        assert name in str(refusal.value)
    assert str(room / "downloads" / "imagenet") in str(refusal.value)
    imagenet(room, monkeypatch)
    splits = fetch.obtain("imagenet")
    assert splits["train"].labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert splits["test"].labels.tolist() == [0, 1, 2]
    greys = [image.getpixel((0, 0))[0] for image in splits["test"].read([0, 1, 2])]
    assert np.allclose(greys, [0, 50, 100], atol=3)


def test_imagenet_out_of_its_archives(room, monkeypatch):
    home = imagenet(room, monkeypatch)
    wnids = sorted(path.name for path in (home / "train").iterdir())
    with tarfile.open(home / "ILSVRC2012_img_train.tar", "w") as outer:
        for wnid in wnids:
            with tarfile.open(room / f"{wnid}.tar", "w") as inner:
                for path in (home / "train" / wnid).iterdir():
                    inner.add(path, path.name)
            outer.add(room / f"{wnid}.tar", f"{wnid}.tar")
    with tarfile.open(home / "ILSVRC2012_img_val.tar", "w") as tar:
        for number, wnid in enumerate(reversed(wnids)):
            tar.add(home / "val" / wnid / f"{wnid}_0.JPEG", f"ILSVRC2012_val_{number:08d}.JPEG")
    (room / "empty.txt").touch()
    with tarfile.open(home / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as tar:
        tar.add(room / "empty.txt", "empty.txt")
    official = torchvision.datasets.imagenet
    known = {part: (name, calculate_md5(home / name)) for part, (name, _) in official.ARCHIVE_META.items()}
    monkeypatch.setattr(official, "ARCHIVE_META", known)
    # The development kit's own format is torchvision's affair: the file it makes of it is put there instead.
    monkeypatch.setattr(
        official, "parse_devkit_archive", lambda root: torch.save(({}, wnids[::-1]), os.path.join(root, "meta.bin"))
    )
    os.rename(home / "train", room / "old_train")
    os.rename(home / "val", room / "old_val")
    splits = fetch.obtain("imagenet")
    assert splits["train"].labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    greys = [image.getpixel((0, 0))[0] for image in splits["test"].read([0, 1, 2])]
    assert np.allclose(greys, [0, 50, 100], atol=3)


def test_imagenet_whose_validation_images_have_no_class_folders_is_refused(room, monkeypatch):
    home = imagenet(room, monkeypatch)
    os.rename(home / "val" / "n09999999", home / "val" / "n00000001")
    with pytest.raises(ValueError, match="different class folders, n00000001 for one"):
        fetch.obtain("imagenet")


def test_dogs_are_one_folder_a_breed(room, monkeypatch):
    for breed in ("n02085620-Chihuahua", "n02116738-African_hunting_dog"):
        for number in range(5):
            picture(room / "downloads" / "stanford-dogs" / "Images" / breed / f"{breed[:9]}_{number}.jpg")
    shrink(monkeypatch, "dogs", 2, **{POOLED: 10})
    splits = fetch.obtain("dogs")
    assert sum(len(part) for part in splits.values()) == 9
    for part in splits.values():
        assert [("n02085620", "n02116738")[label] for label in part.labels] == [name[:9] for name in names(part)]
