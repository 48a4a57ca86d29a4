"""Data altered after it was laid out is noticed before a training: the embedded sample, indexed files, shapes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from gmmvit import data
from gmmvit.data import arrays, places, sums
from gmmvit.dense import coco, opened, outlines
from gmmvit.fetch import annotated, shapes

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A data folder with the embedded sample in it."""
    monkeypatch.setenv("GMMVIT_DATA", str(tmp_path))
    shutil.copytree(ROOT / "data" / "cifar10-mini", tmp_path / "cifar10-mini")
    return tmp_path


def repainted(path, change):
    pixels = np.array(Image.open(path))
    Image.fromarray(change(pixels)).save(path, lossless=True)


def one_pixel(pixels):
    pixels[100, 100, 0] ^= 1
    return pixels


def relabelled(folder, change):
    labels = json.loads((folder / "labels.json").read_text())
    change(labels)
    (folder / "labels.json").write_text(json.dumps(labels))


ALTERED = {
    "black": lambda folder: repainted(folder / "train.webp", np.zeros_like),
    "grey": lambda folder: repainted(folder / "train.webp", lambda p: np.full_like(p, 127)),
    "one pixel": lambda folder: repainted(folder / "train.webp", one_pixel),
    "upside down": lambda folder: repainted(folder / "test.webp", lambda p: p[::-1].copy()),
    "shuffled labels": lambda folder: relabelled(folder, lambda labels: labels["train"].reverse()),
}


@pytest.mark.parametrize("what", ALTERED)
def test_an_altered_sample_is_refused_each_time(home, what):
    assert len(data.load("cifar10-mini")["train"]) == 2000  # its sizes and times are known from now on
    ALTERED[what](home / "cifar10-mini")
    for _ in range(2):
        with pytest.raises(ValueError, match="cifar10-mini is damaged: .* has the sha256 .*it was altered"):
            data.load("cifar10-mini")


def test_a_record_that_was_altered_with_its_set_does_not_help(home):
    folder = home / "cifar10-mini"
    ALTERED["one pixel"](folder)
    record = json.loads((folder / "complete.json").read_text())
    record["sha256"]["train_images"] = arrays.sum_of(arrays.Arrays(folder, "train").images)
    places.write_json(folder / "complete.json", record)
    with pytest.raises(ValueError, match="train_images has the sha256"):
        data.load("cifar10-mini")


def test_every_byte_is_read_once_per_change_of_size_or_time(home, monkeypatch):
    read, sum_of = [], arrays.sum_of
    monkeypatch.setattr(arrays, "sum_of", lambda array: read.append(1) or sum_of(array))
    for _ in range(3):
        data.load("cifar10-mini")
    assert len(read) == 4  # images and labels of two splits
    (home / "cifar10-mini" / "test.webp").touch()
    data.load("cifar10-mini")
    data.load("cifar10-mini")
    assert len(read) == 8


def test_where_nothing_can_be_written_down_all_is_read_again(home, monkeypatch):
    def denied(path, mode):
        raise PermissionError(path)

    monkeypatch.setattr(sums, "atomic", denied)
    assert len(data.load("cifar10-mini")["train"]) == 2000
    ALTERED["one pixel"](home / "cifar10-mini")
    with pytest.raises(ValueError, match="altered"):
        data.load("cifar10-mini")


@pytest.mark.parametrize("record", ["{}", "[]", "3", '{"name": "cifar10-mini"}', "nonsense"])
def test_a_record_that_says_nothing_is_a_sentence(home, record):
    (home / "cifar10-mini" / "complete.json").write_text(record)
    with pytest.raises((ValueError, OSError), match="gmmvit data cifar10-mini"):
        data.load("cifar10-mini")


@pytest.mark.parametrize("content", ["{}", '{"train": []}', '{"train": 3, "test": [1]}', "[1]", '{"train": ["a"]}'])
def test_labels_that_are_none_are_a_sentence(home, content):
    (home / "cifar10-mini" / "labels.json").write_text(content)
    with pytest.raises(ValueError, match="cifar10-mini is damaged"):
        data.load("cifar10-mini")


def test_dvc_asks_for_the_data_again_when_the_embedded_sample_changes():
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    assert "data/cifar10-mini" in stages["data"]["do"]["deps"]


# ---- detection and segmentation -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["coco-shapes", "ade20k-shapes"])
def test_a_repainted_picture_is_noticed_and_drawn_again(home, name):
    annotated.obtain(name)
    picture = next((home / name).rglob("*.jpg"))
    official, size = picture.read_bytes(), picture.stat().st_size
    changed = bytearray(official)
    changed[size // 2] ^= 1  # as long as it was
    picture.write_bytes(changed)
    with pytest.raises(ValueError, match=f"is not what was looked at: .*{picture.name} was altered"):
        opened.load(name)
    said = []
    annotated.obtain(name, said.append)
    assert "drawn again" in said[0] and picture.read_bytes() == official


def test_a_set_that_is_whole_is_not_looked_at_again(home, monkeypatch):
    annotated.obtain("coco-shapes")
    monkeypatch.setattr(coco, "problems", None)
    assert len(annotated.obtain("coco-shapes")["train"]) == 200


@pytest.mark.parametrize("name, harm", [("coco-shapes", "half"), ("ade20k-shapes", "half"), ("coco-shapes", "empty")])
def test_shapes_whose_last_file_was_being_written_are_drawn_again(home, name, harm):
    """As an earlier version left them when it was killed."""
    folder, last = home / name, annotated.DRAWN[name][1]
    (shapes.write_coco if "coco" in name else shapes.write_ade)(folder)
    content = (folder / last).read_bytes()
    (folder / last).write_bytes(content[: len(content) // 2] if harm == "half" and "coco" in name else b"")
    assert len(annotated.obtain(name, lambda line: None)["train"]) == 200
    assert (folder / last).read_bytes() == content


# ---- masks that pycocotools must not be given -----------------------------------------------------------------------

SIZE = (10, 12)
SQUARE = [2.0, 3.0, 6.0, 3.0, 6.0, 8.0, 2.0, 8.0]
MASKS = {
    "a huge coordinate": [[0, 0, 1e9, 0, 1e9, 1e9]],
    "a coordinate far outside": [[0, 0, 500, 0, 500, 500]],
    "a number that is none": [[0, 0, float("nan"), 0, 5, 5]],
    "an endless number": [[0, 0, float("inf"), 0, 5, 5]],
    "two points": [[0, 0, 5, 5]],
    "a coordinate too few": [[*SQUARE, 1.0]],
    "words": [["a", "b", "c", "d", "e", "f"]],
    "a number": 7,
    "a word": "polygon",
    "polygons in polygons": [[SQUARE]],
    "points in pairs": [[[2, 3], [6, 3], [6, 8]]],
    "nothing in a polygon": [[]],
    "no polygon but a number": [3],
    "no size": {"counts": [120]},
    "half a size": {"size": [10], "counts": [120]},
    "a size in words": {"size": ["a", "b"], "counts": [120]},
    "another size": {"size": [12, 10], "counts": [120]},
    "no counts": {"size": [10, 12]},
    "too few runs": {"size": [10, 12], "counts": [50]},
    "too many runs": {"size": [10, 12], "counts": [100, 100]},
    "a run below 0": {"size": [10, 12], "counts": [-20, 140]},
    "runs in words": {"size": [10, 12], "counts": ["a"]},
    "runs with fractions": {"size": [10, 12], "counts": [60.5, 59.5]},
    "a run beyond all bounds": {"size": [10, 12], "counts": [2**40]},
    "packed runs that are too short": {"size": [10, 12], "counts": "0"},
    "packed runs that break off": {"size": [10, 12], "counts": "oooo"},
    "packed runs of other characters": {"size": [10, 12], "counts": " !"},
    "packed runs that are empty": {"size": [10, 12], "counts": ""},
    "packed runs without end": {"size": [10, 12], "counts": "o" * 1000 + "0"},
    "packed runs in another alphabet": {"size": [10, 12], "counts": "äöü"},
}


@pytest.mark.parametrize("what", MASKS)
def test_a_mask_that_is_none_is_a_sentence_and_reaches_no_c_code(what, monkeypatch):
    monkeypatch.setattr(coco, "need", None)
    with pytest.raises(ValueError, match="mask|run lengths") as caught:
        coco.bitmap(MASKS[what], SIZE)
    assert "\n" not in str(caught.value)


def test_packed_run_lengths_are_those_of_pycocotools():
    tools = pytest.importorskip("pycocotools.mask")
    random = np.random.default_rng(0)
    for density in (0.0, 0.02, 0.5, 0.98, 1.0):
        for shape in ((1, 1), (7, 3), (60, 45), (300, 200)):
            pixels = np.asfortranarray(random.random(shape) < density, np.uint8)
            flat = pixels.flatten("F")
            ends = np.flatnonzero(np.diff(np.concatenate([[0], flat, [2]])))
            runs = np.diff(np.concatenate([[0], ends])).tolist()
            assert outlines.unpacked(tools.encode(pixels)["counts"]) == runs
            assert np.array_equal(coco.bitmap(tools.encode(pixels), shape), pixels)


def official(folder, change):
    """The shapes in coco's place, their annotations changed."""
    shapes.write_coco(folder, {"train": 4, "test": 2})
    path = folder / "annotations" / "instances_train2017.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


MALFORMED = {
    "no id": lambda c: c["annotations"][0].pop("id"),
    "an id in words": lambda c: c["annotations"][0].update(id="one"),
    "one id twice": lambda c: c["annotations"][1].update(id=c["annotations"][0]["id"]),
    "no box": lambda c: c["annotations"][0].pop("bbox"),
    "half a box": lambda c: c["annotations"][0].update(bbox=[1, 2]),
    "a box in words": lambda c: c["annotations"][0].update(bbox=list("abcd")),
    "a box far outside": lambda c: c["annotations"][0].update(bbox=[9000, 9000, 5, 5]),
    "no category": lambda c: c["annotations"][0].pop("category_id"),
    "an annotation that is a number": lambda c: c["annotations"].__setitem__(0, 3),
    "an image without a name": lambda c: c["images"][0].pop("file_name"),
    "an image without a width": lambda c: c["images"][0].pop("width"),
    "one image twice": lambda c: c["images"].append(dict(c["images"][0])),
    "images by name": lambda c: c.update(images={"a": 1}),
    "a category without a name": lambda c: c["categories"][0].pop("name"),
    "a mask far outside": lambda c: c["annotations"][0].update(segmentation=[[0, 0, 1e9, 0, 1e9, 1e9]]),
    "runs that are too short": lambda c: c["annotations"][0].update(segmentation={"size": [96, 96], "counts": "0"}),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_what_is_malformed_in_coco_is_named_before_a_training(home, what):
    official(home / "coco", MALFORMED[what])
    with pytest.raises(ValueError, match=r"coco in .* has [\d,]+ problems:\n.*instances_train2017.json: "):
        annotated.obtain("coco")


def test_a_truncated_picture_of_coco_is_named_before_a_training(home):
    official(home / "coco", lambda content: None)
    path = home / "coco" / "train2017" / "000000000002.jpg"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match="000000000002.jpg cannot be decoded"):
        annotated.obtain("coco")
