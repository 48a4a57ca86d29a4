"""Official layouts of COCO and ADE20K: reading, bad data by name, drawn shapes, and the transforms of the recipes."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as run_lengths
from torchvision.ops import masks_to_boxes

from gmmvit.cli import main
from gmmvit.data import draws
from gmmvit.dense import ade, coco, opened, sets
from gmmvit.dense.crops import distorted, for_segmentation
from gmmvit.dense.multi_scale import Sizes, for_detection
from gmmvit.dense.transforms import LIGHT
from gmmvit.fetch import annotated, shapes

SAMPLES = Path(__file__).parents[3] / "shared" / "samples"
SMALL = Sizes().times(0.12)
FEW = {"train": 4, "test": 2}


@pytest.fixture
def data(tmp_path, monkeypatch):
    """An empty data folder."""
    monkeypatch.setenv("GMMVIT_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def small_coco(data):
    home = data / "downloads" / "coco"
    shapes.write_coco(home, FEW)
    return home


@pytest.fixture
def small_ade(data):
    home = data / "downloads" / "ADEChallengeData2016"
    shapes.write_ade(home, FEW)
    return home


def edited(home, change, split="train2017"):
    path = home / "annotations" / f"instances_{split}.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def seeds(count, seed=0):
    return draws.sample_seeds(seed, np.arange(count))


# ---- COCO -----------------------------------------------------------------------------------------------------------


def test_boxes_labels_and_masks_of_a_sample_fit_together(small_coco):
    source = annotated.obtain("coco")["train"]
    assert len(source) == 4 and source.classes == sets.SHAPES
    for image, objects in source.read(np.arange(4)):
        target = source.target(objects, image.size[::-1])
        assert len(target["labels"]) == len(objects) > 0 and target["masks"].shape[1:] == (96, 96)
        around = masks_to_boxes(target["masks"])
        assert (around - target["boxes"]).abs().max() <= 1.5  # an outline lies between pixels
        pixels = np.asarray(image).astype(int)
        for mask in target["masks"].bool().numpy():
            assert pixels[mask].mean() > 120 > pixels[~target["masks"].bool().any(0).numpy()].mean()


def test_official_numbers_of_categories_have_gaps_and_classes_have_none(small_coco):
    def spread(content):
        for each in content["categories"]:
            each["id"] = 10 * each["id"] + 3
        for each in content["annotations"]:
            each["category_id"] = 10 * each["category_id"] + 3

    before = annotated.obtain("coco")["train"]
    labels = [before.target(before.annotations(i), (96, 96))["labels"].tolist() for i in range(4)]
    edited(small_coco, spread)
    after = coco.read_split(small_coco, "train")
    assert after.categories.tolist() == [13, 23, 33]
    assert [after.target(after.annotations(i), (96, 96))["labels"].tolist() for i in range(4)] == labels


def test_masks_are_read_from_polygons_and_both_kinds_of_run_lengths():
    square = [[2.0, 3.0, 6.0, 3.0, 6.0, 8.0, 2.0, 8.0]]
    expected = np.zeros((10, 12), np.uint8)
    expected[3:8, 2:6] = 1
    packed = run_lengths.encode(np.asfortranarray(expected))
    counts = [23, 5, 5, 5, 5, 5, 5, 5, 62]  # down the columns: 2 * 10 + 3 zeros, 5 ones, ...
    for segmentation in (square, packed, {"size": [10, 12], "counts": counts}):
        assert np.array_equal(coco.bitmap(segmentation, (10, 12)), expected)


def test_crowds_and_empty_images_are_left_out_of_training_alone(small_coco):
    def crowded(content):
        first = content["images"][0]["id"]
        for each in content["annotations"]:
            each["iscrowd"] = int(each["image_id"] == first)

    edited(small_coco, crowded)
    edited(small_coco, crowded, "val2017")
    found = annotated.obtain("coco")
    assert found["train"].ids.tolist() == [2, 3, 4] and found["test"].ids.tolist() == [1, 2]


def test_boxes_without_area_are_named_and_left_out(small_coco):
    def flatten(content):
        content["annotations"][0]["bbox"][3] = 0

    edited(small_coco, flatten)
    told = []
    source = annotated.obtain("coco", told.append)["train"]
    assert len(told) == 1 and "annotation 1 of image 1 has a box without area" in told[0]
    objects = sum(len(source.annotations(i)) for i in range(len(source)))
    assert objects == len(json.loads(source.truth.read_text())["annotations"]) - 1
    for images, targets in [for_detection(source, source.read(np.arange(len(source))), seeds(len(source)), SMALL)]:
        assert len(images) == len(targets) and all((t["boxes"][:, 2:] > t["boxes"][:, :2]).all() for t in targets)


BAD_COCO = {
    "train2017/000000000002.jpg is missing": lambda home, _: (home / "train2017/000000000002.jpg").unlink(),
    "train2017/000000000003.jpg cannot be decoded": lambda home, _: (home / "train2017/000000000003.jpg").write_text(
        "no"
    ),
    "train2017/000000000001.jpg is 96 x 96, not 90 x 96": lambda _, c: c["images"][0].update(width=90),
    "annotation 1 of image 77: that image is not listed": lambda _, c: c["annotations"][0].update(image_id=77),
    "annotation 1 of image 1: its category 9 is not listed": lambda _, c: c["annotations"][0].update(category_id=9),
    "annotation 1 of image 1 has no mask": lambda _, c: c["annotations"][0].update(segmentation=[]),
    "annotation 1 of image 1: its mask is 8 x 5, the image 96 x 96": lambda _, c: c["annotations"][0].update(
        segmentation={"size": [5, 8], "counts": [40]}
    ),
    "expected images, annotations, categories, but categories is not there": lambda _, c: c.pop("categories"),
}


@pytest.mark.parametrize("sentence", BAD_COCO)
def test_what_is_wrong_with_coco_is_named_before_a_training(small_coco, sentence):
    edited(small_coco, lambda content: BAD_COCO[sentence](small_coco, content))
    with pytest.raises(ValueError, match="coco in .* has 1 problems") as caught:
        annotated.obtain("coco")
    assert sentence in str(caught.value)


def test_what_changes_after_it_was_looked_at_is_said(small_coco):
    annotated.obtain("coco")
    assert len(opened.load("coco")["test"]) == 2
    (small_coco / "train2017" / "000000000002.jpg").unlink()
    with pytest.raises(ValueError, match="is not what was looked at: it had 8 files.*complete.json to look again"):
        opened.load("coco")


def test_a_set_that_is_not_there_says_where_its_files_belong(data):
    with pytest.raises(FileNotFoundError, match="coco was not found.*downloads/coco, so that annotations/ lies in it"):
        annotated.obtain("coco")
    with pytest.raises(FileNotFoundError, match="coco is not in .*: fetch it with `gmmvit data coco`"):
        opened.load("coco")
    with pytest.raises(ValueError, match="unknown data set .*'coko'.*nearest is 'coco'"):
        opened.load("coko")


# ---- ADE20K ---------------------------------------------------------------------------------------------------------


def test_label_0_is_no_class_and_the_others_begin_at_0(small_ade):
    source = annotated.obtain("ade20k")["train"]
    assert source.classes == ("ground", *sets.SHAPES)
    for index, (_, classes) in enumerate(source.read(np.arange(4))):
        official = np.asarray(Image.open(ade.files(small_ade, "train", source.names[index].decode())[1])).astype(int)
        assert np.array_equal(classes == 255, official == 0) and (official == 0).any()
        assert np.array_equal(classes[official > 0], official[official > 0] - 1)


def redrawn(home, change):
    path = second(home)[1]
    Image.fromarray(change(np.array(Image.open(path)))).save(path)


def in_colour(labels):
    return np.stack([labels] * 3, 2)


def too_high(labels):
    labels[5, 7] = 151
    return labels


def second(home):
    return ade.files(home, "train", "shapes_00000002")


BAD_ADE = {
    "annotations/training/shapes_00000002.png is missing": lambda home: second(home)[1].unlink(),
    "training/shapes_00000002.jpg is missing, though it is annotated": lambda home: second(home)[0].unlink(),
    "shapes_00000002.png is 90 x 96, its image 96 x 96": lambda home: redrawn(home, lambda v: v[:, :90]),
    "shapes_00000002.png has the label 151: expected 0 to 4": lambda home: redrawn(home, too_high),
    "shapes_00000002.png cannot be decoded (its mode is RGB": lambda home: redrawn(home, in_colour),
    "objectInfo150.txt cannot be read": lambda home: (home / "objectInfo150.txt").unlink(),
}


@pytest.mark.parametrize("sentence", BAD_ADE)
def test_what_is_wrong_with_ade20k_is_named_before_a_training(small_ade, sentence):
    BAD_ADE[sentence](small_ade)
    with pytest.raises(ValueError, match="ade20k in .* has 1 problems") as caught:
        annotated.obtain("ade20k")
    assert sentence in str(caught.value)


# ---- shapes ---------------------------------------------------------------------------------------------------------


def test_shapes_are_drawn_where_they_are_asked_for_and_always_the_same(data, monkeypatch):
    first, second = annotated.obtain("coco-shapes"), annotated.obtain("ade20k-shapes")
    assert [len(first[s]) for s in ("train", "test")] == [len(second[s]) for s in ("train", "test")] == [200, 40]
    written = (data / "coco-shapes/annotations/instances_train2017.json").read_text()
    shapes.write_coco(data / "again")
    assert (data / "again/annotations/instances_train2017.json").read_text() == written


@pytest.mark.parametrize("name", ("coco-shapes", "ade20k-shapes"))
def test_the_command_draws_looks_and_writes_down_what_there_is(data, capsys, name):
    record = data / "records" / f"{name}.json"
    assert main(["data", name, "--check"]) == 1 and f"`gmmvit data {name}` draws it" in capsys.readouterr().out
    assert main(["data", name, "--record", str(record)]) == 0
    assert capsys.readouterr().out == f"{name}: train 200, test 40\n"
    assert main(["data", name, "--check"]) == 0 and re.search(rf"{name} +yes +yes", capsys.readouterr().out)
    first, known = json.loads(record.read_text()), sets.find(name)
    assert first["counts"] == known.images and len(opened.load(name)["train"].classes) == known.classes

    image = next((data / name).rglob("*.jpg"))
    image.write_bytes(image.read_bytes() + b"0")
    assert main(["data", name, "--check"]) == 1 and re.search(rf"{name} +yes +no", capsys.readouterr().out)
    (data / name / "complete.json").unlink()
    assert main(["data", name, "--record", str(record)]) == 0
    again = json.loads(record.read_text())
    assert again["counts"] == first["counts"] and again["sha256"] != first["sha256"]


# ---- real images ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (SAMPLES / "coco").is_dir(), reason="the sample images are not part of the project")
def test_real_images_of_coco_are_read_and_evaluate_as_themselves(data):
    (data / "coco").symlink_to(SAMPLES / "coco")
    wrong, left_out = coco.problems(data / "coco")
    assert not wrong and not left_out
    source = coco.read_split(data / "coco", "train")
    assert len(source.classes) == 80 and 0 < len(source) <= 32
    samples = source.read(np.arange(4))
    _, targets = for_detection(source, samples, seeds(4), Sizes())
    for target in targets:
        assert min(target["masks"].shape[1:]) <= 800 and target["labels"].max() <= 80


@pytest.mark.skipif(not (SAMPLES / "ade20k-sample").is_dir(), reason="the sample images are not part of the project")
def test_real_images_of_ade20k_are_read(data):
    sample, home = SAMPLES / "ade20k-sample", data / "ade20k"
    for folder in ade.SPLITS.values():
        for part in ("images", "annotations"):
            (home / part).mkdir(parents=True, exist_ok=True)
            (home / part / folder).symlink_to(sample / "sampleData" / part)
    (home / ade.CLASSES).symlink_to(sample / ade.CLASSES)
    wrong, _ = ade.problems(home)
    assert not wrong
    source = ade.read_split(home, "test")
    assert len(source.classes) == 150 and source.classes[:3] == ("wall", "building", "sky")
    images, labels = for_segmentation(((0.5,) * 3, (0.5,) * 3), source.read(np.arange(3)), seeds(3), crop=512)
    assert images.shape == (3, 3, 512, 512) and labels[labels != 255].max() < 150


# ---- transforms -----------------------------------------------------------------------------------------------------


def test_a_sample_is_transformed_by_its_seed_alone(small_coco, small_ade):
    source = annotated.obtain("coco")["train"]
    samples, numbers = source.read(np.arange(4)), seeds(4)
    images, targets = for_detection(source, samples, numbers, SMALL)
    for i in range(4):
        (image,), (target,) = for_detection(source, samples[i : i + 1], numbers[i : i + 1], SMALL)
        assert torch.equal(image, images[i]) and all(torch.equal(target[key], targets[i][key]) for key in target)
    (other,), _ = for_detection(source, samples[:1], seeds(1, seed=1), SMALL)
    assert other.shape != images[0].shape or not torch.equal(other, images[0])


def test_boxes_and_masks_follow_their_objects_through_flips_sizes_and_crops(small_coco):
    source = annotated.obtain("coco")["train"]
    sides, square = set(), sets.SHAPES.index("square") + 1
    for round_ in range(30):
        images, targets = for_detection(source, source.read(np.arange(4)), seeds(4, seed=round_), SMALL)
        for image, target in zip(images, targets, strict=True):
            assert target["masks"].shape[1:] == image.shape[1:]
            sides.add(min(image.shape[1:]))
            for box, label, mask in zip(*(target[key] for key in ("boxes", "labels", "masks")), strict=True):
                if mask.sum() > 30:
                    (around,) = masks_to_boxes(mask[None])
                    assert (around[:2] >= box[:2] - 1.5).all() and (around[2:] <= box[2:] + 1.5).all()
                    assert label != square or (around - box).abs().max() <= 2.5  # a cut triangle leaves its box
                    assert image[:, mask.bool()].mean() > 0.45
    assert len(sides) >= 8 and max(sides) == max(SMALL.short)


def test_full_size_images_have_the_sides_of_the_recipe():
    nothing = np.array([])
    source = coco.Coco(Path(), Path(), nothing, nothing, nothing, nothing, np.arange(1, 4), ("a", "b", "c"))
    sizes = set()
    for round_ in range(40):
        samples = [(Image.new("RGB", (640, 480)), [])]
        (image,), (target,) = for_detection(source, samples, seeds(1, seed=round_), Sizes())
        rows, columns = image.shape[1:]
        assert max(rows, columns) <= 1333 and target["masks"].shape == (0, rows, columns)
        assert min(rows, columns) in Sizes().short or max(rows, columns) == 1333
        sizes.add((rows, columns))
    assert len(sizes) > 15


def test_labels_follow_their_pixels_into_the_crop():
    classes = np.zeros((60, 80), np.uint8)
    classes[:, 40:], classes[30:, :40] = 1, 2
    colours = np.array([[20, 20, 20], [120, 120, 120], [240, 240, 240]], np.uint8)
    sample = (Image.fromarray(colours[classes]), classes)
    padded, corners = 0, set()
    for round_ in range(30):
        u = seeds(1, seed=round_)
        images, labels = for_segmentation(((0.0,) * 3, (1.0,) * 3), [sample], u, crop=48, short=48, long=192)
        assert images.shape == (1, 3, 48, 48) and labels.shape == (1, 48, 48)
        none = labels[0] == 255
        assert (images[0][:, none] == 0).all() and not none.all()
        padded += bool(none.any())
        means = [images[0][:, labels[0] == c].mean().item() for c in range(3) if (labels[0] == c).any()]
        assert len(means) > 1 and means == sorted(means)  # the distortion keeps the order of greys
        corners.add(tuple(labels[0, ::47, ::47].flatten().tolist()))
    assert 0 < padded < 30 and {(0, 1), (1, 0)} <= {corner[:2] for corner in corners}  # mirrored ones too


def test_crops_of_almost_one_class_are_drawn_again():
    classes = np.zeros((96, 96), np.uint8)
    classes[:48, :48] = 1  # a quarter: one crop in five would have enough of both
    sample, mixed = (Image.new("RGB", (96, 96)), classes), 0
    for round_ in range(40):
        _, labels = for_segmentation(((0.0,) * 3, (1.0,) * 3), [sample], seeds(1, seed=round_), 24, 96, 384)
        counts = torch.bincount(labels[labels != 255], minlength=2)
        mixed += bool(counts.max() < 0.75 * counts.sum())
    assert mixed > 25


def test_evaluation_keeps_the_labels_size_and_fits_the_image(small_ade):
    wide = (Image.new("RGB", (200, 50), (255, 0, 0)), np.zeros((50, 200), np.uint8))
    images, labels = for_segmentation(((0.0,) * 3, (1.0,) * 3), [wide], seeds(1), short=100, long=300)
    assert images[0].shape == (3, 75, 300) and labels[0].shape == (50, 200)


def test_the_distortion_has_the_four_steps_of_ssd():
    image = torch.rand(3, 8, 8) * 0.5 + 0.2
    still = np.ones(9)
    assert torch.equal(distorted(image, still), image)

    def only(**steps):
        names = ("brighter", "by", "contrast_first", "contrasted", "times", "saturated", "factor", "turned", "angle")
        return np.array([steps.get(name, 1.0) for name in names])

    torch.testing.assert_close(distorted(image, only(brighter=0, by=0.75)), (image + 16 / 255).clamp(0, 1))
    for first in (0, 1):
        torch.testing.assert_close(distorted(image, only(contrasted=0, contrast_first=first, times=0.2)), image * 0.7)
    grey = distorted(image, only(saturated=0, factor=0.0))  # half the saturation of HSV, value kept
    spread = 1 - image.amin(0) / image.amax(0)
    torch.testing.assert_close(1 - grey.amin(0) / grey.amax(0), spread / 2)
    torch.testing.assert_close(grey.amax(0), image.amax(0))
    red = torch.tensor([1.0, 0, 0])[:, None, None]
    torch.testing.assert_close(  # 36 degrees from red
        distorted(red, only(turned=0, angle=1.0)), torch.tensor([1.0, 0.6, 0])[:, None, None], atol=2e-3, rtol=0
    )
    assert LIGHT + 9 <= 20
