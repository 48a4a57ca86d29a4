"""Tables and figures of detection and segmentation, what is kept of predictions, and the benchmark."""

import json
import subprocess
import sys
from argparse import Namespace
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn as nn
from matplotlib import style
from matplotlib.colors import to_rgb
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode

import gmmvit
from gmmvit.analysis import drawn
from gmmvit.analysis.pictured import pictured
from gmmvit.bench import dense as bench_dense
from gmmvit.bench import verbs as benches
from gmmvit.dense import ade, coco
from gmmvit.dense.tasks import TASKS
from gmmvit.fetch import obtain, shapes
from gmmvit.paper import charts, costs, dense, pictures, runs
from gmmvit.train.processes import World
from gmmvit.train.rows import Row

SWIN = "swin_small_patch4_window7_224.ms_in1k"
RECIPE = {"coco": "coco-3x", "ade20k": "ade20k-160k"}


def row(dataset, mask="none", seed=0, model=SWIN, **settings):
    settings = settings or {"pretrained": True}
    return Row(dataset, model, mask, RECIPE[dataset.removesuffix("-shapes")], seed, settings)


def arms(*pairs, failed=()):
    """The arms of (row, scores or None where it was not run)."""
    rows = {each.name: each for each, _ in pairs}
    return dense.arms(runs.of(rows, [{"row": vars(each), **scores} for each, scores in pairs if scores], failed))


def cells(table, line):
    return dict(zip([column.key for column in table.columns], table.cells()[line], strict=True))


# ---- tables ---------------------------------------------------------------------------------------------------------


def test_table_4_has_published_and_ours_and_the_gain_paired_over_seeds():
    ap = {("none", 0): 40.0, ("none", 1): 42.0, ("gab", 0): 41.0, ("gab", 1): 43.5}
    ours = [(row("coco", mask, seed), {"box_AP": ap[mask, seed], "mask_AP": 30.0}) for mask, seed in ap]
    table = dense.table_4(arms(*ours, (row("ade20k"), None), (row("ade20k", "gab"), None)))
    box = cells(table, 0)
    assert (box["without_published"], box["with_published"], box["gain_published"]) == ("48.12", "48.23", "+0.11")
    assert (box["without"], box["with"]) == ("41.00 ± 1.41 (2)", "42.25 ± 1.77 (2)")
    assert box["gain"].startswith("+1.25 [") and box["gain"].endswith("(2)")
    miou = cells(table, 2)
    assert (miou["without_published"], miou["with_published"], miou["gain_published"]) == ("46.16", "46.41", "+0.25")
    assert (miou["without"], miou["with"], miou["gain"]) == ("not run", "not run", "not run")


def test_arms_that_are_not_those_of_table_4_are_not_in_it():
    scores = {"mIoU": 1.0, "aAcc": 1.0}
    others = [
        row("ade20k-shapes"),
        row("ade20k", model="swin_micro"),
        row("ade20k", pretrained=True, epochs=1),
        row("ade20k", pretrained=False),
    ]
    for other in others:
        assert cells(dense.table_4(arms((other, scores))), 2)["without"] == "not in this profile"
    for same in (row("ade20k", pretrained=True, batch=8), row("ade20k", pretrained_file="swin.pt")):
        assert cells(dense.table_4(arms((same, scores))), 2)["without"] == "1.00 (1)"


def test_scores_of_a_kind_are_in_its_own_table():
    detected = {"box_AP": 10.0, "box_AP50": 20.0, "mask_AP": 30.0, "mask_AP50": 40.0}
    broken = row("ade20k-shapes", "gab", model="swin_micro", epochs=2)
    pairs = (row("coco-shapes", "gab", model="swin_micro", epochs=2), detected), (broken, None)
    rows = arms(*pairs, (Row("cifar10", "vit"), {"top1": 50.0}), failed=[broken.name])
    table = dense.scores_table(rows, "detection")
    (line,) = table.cells()
    assert line[:4] == ["shapes like COCO", "Swin micro", "coco-3x, epochs 2", "GAB"]
    assert line[4:] == ["10.00 (1)", "20.00 (1)", "30.00 (1)", "40.00 (1)"]
    (line,) = dense.scores_table(rows, "segmentation").cells()
    assert line[4:] == ["failed", "failed"]


def test_every_deviation_is_listed_once_under_its_recipe():
    table = dense.deviations_table()
    recipes = [line["recipe"] for line in table.lines]
    assert recipes == sorted(recipes, key=["coco-3x", "ade20k-160k", "both"].index) and len(set(recipes)) == 3
    assert all("torchvision's Mask R-CNN" not in each["deviation"] for each in table.lines[-3:])
    assert sum("segmentation-models-pytorch" in each["deviation"] for each in table.lines) == 1


@pytest.mark.slow
def test_records_are_read_without_the_libraries_that_training_needs():
    code = "import sys; sys.modules.update(pycocotools=None, segmentation_models_pytorch=None)\n"
    code += "from gmmvit.paper import dense, pictures, runs; print(dense.table_4(dense.arms(runs.of({}, []))).md())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "48.12" in told


# ---- figures --------------------------------------------------------------------------------------------------------


def kept(folder, each, history, **arrays):
    """A run as the engine leaves it."""
    folder = folder / "runs" / each.name
    folder.mkdir(parents=True)
    names = list(history[0])
    lines = [names, *([line[name] for name in names] for line in history)]
    (folder / "history.csv").write_text("\n".join(",".join(map(str, line)) for line in lines) + "\n")
    drawn.file_of(folder).parent.mkdir(exist_ok=True)
    np.savez(drawn.file_of(folder), **arrays)
    return history[-1] | {"folder": folder}


def objects(score):
    """One disc, found a pixel too far to the right."""
    mask = np.zeros((1, 20, 30), bool)
    mask[0, 5:11, 8:16] = True
    truth = {"dense_true_boxes_0": np.float32([[8, 5, 16, 11, 1]]), "dense_true_masks_0": mask}
    found = {"dense_boxes_0": np.float32([[9, 5, 17, 11, score, 2]]), "dense_masks_0": np.roll(mask, 1, 2)}
    return {"dense_images": np.full((1, 20, 30, 3), 100, np.uint8)} | truth | found


def test_curves_and_pictures_come_from_the_files_of_runs(tmp_path):
    pairs = []
    for mask, best in (("none", 20.0), ("gab", 30.0)):
        history = [{"epoch": e, "box_AP": best * e / 2, "mask_AP": 1.0, "train_loss": 2.0} for e in (1, 2)]
        each = row("coco-shapes", mask, model="swin_micro", epochs=2)
        pairs.append((each, kept(tmp_path, each, history, **objects(best / 100))))
    rows = arms(*pairs)
    panels = dense.curves(rows)
    assert [panel["score"] for panel in panels] == ["box_AP", "mask_AP"]
    scores = {arm: [run["box_AP"] for run in histories] for arm, histories in panels[0]["arms"].items()}
    assert scores == {"no GAB": [[10, 20]], "GAB": [[15, 30]]}
    figure = charts.by_epoch(panels)
    assert figure.axes[0].get_ylabel() == "test AP box (%)"
    assert [list(line.get_ydata()) for line in figure.axes[0].lines] == [[10, 20], [15, 30]]
    found = dense.pictures(rows, "detection")
    assert list(found) == ["no GAB", "GAB"] and found["GAB"]["dense_boxes_0"][0, 4] == np.float32(0.3)
    assert dense.pictures(rows, "segmentation") == {}


def test_found_objects_stand_beside_the_true_ones():
    figure = pictures.detections({"GAB": objects(0.75)})
    truth, found = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["truth", "GAB"]
    (box,), (other,) = truth.patches, found.patches
    assert (box.get_x(), box.get_y(), box.get_width(), box.get_height()) == (7.5, 4.5, 8, 6)
    assert other.get_x() == 8.5 and box.get_edgecolor() != other.get_edgecolor()
    assert [text.get_text() for text in found.texts] == ["0.75"] and not truth.texts
    shown = truth.images[0].get_array()
    covered = np.any(shown != 100 / 255, axis=-1)
    assert np.array_equal(covered, objects(1)["dense_true_masks_0"][0])


def test_pixels_of_a_class_have_its_colour_and_those_without_are_black():
    labels = np.array([[[0, 3], [3, 255]]], np.uint8)
    image = np.zeros((1, 2, 2, 3), np.uint8)
    figure = pictures.segmentations({"GAB": {"dense_images": image, "dense_labels": labels, "dense_true": labels}})
    shown = figure.axes[1].images[0].get_array()
    with style.context(charts.STYLE):
        expected = 0.7 * np.array([to_rgb("C0"), to_rgb("C3")])
    np.testing.assert_allclose([shown[0, 0], shown[0, 1]], expected)
    assert np.array_equal(shown[0, 1], shown[1, 0]) and not shown[1, 1].any()


# ---- what is kept of predictions ------------------------------------------------------------------------------------


def task_of(kind, folder, monkeypatch, side):
    monkeypatch.setenv("GMMVIT_DATA", str(folder))
    counts = {"train": 2, "test": 4}
    shapes.write_coco(folder / "coco-shapes", counts, side=side)
    shapes.write_ade(folder / "ade20k-shapes", counts, side=side)
    dataset = {"detection": "coco-shapes", "segmentation": "ade20k-shapes"}[kind]
    obtain(dataset)
    small = {"batch": 2, "epochs": 1, "width": 16, "regions": 16}
    return TASKS[kind](row(dataset, "gab", model="swin_micro", **small), World(), workers=0)


class Knowing(nn.Module):
    """Finds what is there, surely, and something else, unsurely."""

    def __init__(self, source):
        super().__init__()
        self.source = source

    def forward(self, images):
        assert not self.training
        outputs = []
        for i, image in enumerate(images):
            truth = self.source.target(self.source.annotations(i), tuple(image.shape[-2:]))
            scores = torch.linspace(1, 0.5, len(truth["boxes"]))
            sure = {
                "boxes": truth["boxes"],
                "labels": truth["labels"],
                "scores": scores,
                "masks": truth["masks"][:, None],
            }
            outputs.append({key: torch.cat([v, v[:1] * (0.49 if key == "scores" else 1)]) for key, v in sure.items()})
        return outputs


@pytest.mark.parametrize("side", [96, 256])
def test_three_test_images_are_kept_small_with_the_sure_detections(tmp_path, monkeypatch, side):
    task = task_of("detection", tmp_path, monkeypatch, side)
    source = task.sources["test"]
    arrays = pictured(task, Knowing(source))
    small = min(side, 128)
    assert arrays["dense_images"].shape == (3, small, small, 3) and arrays["dense_images"].dtype == np.uint8
    listed = json.loads((tmp_path / "coco-shapes" / coco.LAST).read_text())["annotations"]
    for i in range(3):
        truth = [each for each in listed if each["image_id"] == source.ids[i]]
        boxes = np.array([[x, y, x + w, y + h] for x, y, w, h in (each["bbox"] for each in truth)]) * small / side
        kinds = [each["category_id"] for each in truth]
        np.testing.assert_allclose(arrays[f"dense_true_boxes_{i}"], np.column_stack([boxes, kinds]), rtol=1e-5)
        found = arrays[f"dense_boxes_{i}"]
        assert found.shape == (len(truth), 6) and found[:, 4].min() >= 0.5 and found[0, 4] == 1
        np.testing.assert_allclose(found[:, [0, 1, 2, 3, 5]], arrays[f"dense_true_boxes_{i}"])
        masks = arrays[f"dense_true_masks_{i}"]
        assert masks.dtype == bool and np.array_equal(masks, arrays[f"dense_masks_{i}"])
        full = np.stack([coco.bitmap(each["segmentation"], (side, side)) for each in truth])
        shares = full.reshape(len(truth), small, side // small, small, side // small).mean((2, 4))
        assert np.array_equal(masks, shares > 0.5)


class Constant(nn.Module):
    """Says class 2 of everything on the left, 0 of the rest."""

    def forward(self, images):
        logits = torch.zeros(len(images), 4, *images.shape[-2:])
        logits[:, 0] = 1
        logits[:, 2, :, : images.shape[-1] // 2] = 2
        return logits


@pytest.mark.parametrize("side", [96, 256])
def test_classes_of_pixels_are_kept_beside_the_true_ones(tmp_path, monkeypatch, side):
    task = task_of("segmentation", tmp_path, monkeypatch, side)
    arrays = pictured(task, Constant())
    small = min(side, 128)
    labels, truth = arrays["dense_labels"], arrays["dense_true"]
    assert labels.shape == truth.shape == (3, small, small) and labels.dtype == truth.dtype == np.uint8
    assert (labels[:, :, : small // 2 - 1] == 2).all() and (labels[:, :, small // 2 + 1 :] == 0).all()
    _, path = ade.files(tmp_path / "ade20k-shapes", "test", task.sources["test"].names[0].decode())
    step = side // small
    full = np.asarray(Image.open(path))[step // 2 :: step, step // 2 :: step]
    assert np.array_equal(truth[0], full - np.uint8(1)) and (truth == 255).any()


def test_images_of_different_sizes_are_laid_on_white(tmp_path, monkeypatch):
    task = task_of("segmentation", tmp_path, monkeypatch, 96)
    source = task.sources["test"]
    image, annotation = ade.files(source.home, "test", source.names[1].decode())
    Image.open(image).crop((0, 0, 60, 80)).save(image)
    Image.open(annotation).crop((0, 0, 60, 80)).save(annotation)
    arrays = pictured(task, Constant())
    assert arrays["dense_images"].shape == (3, 96, 96, 3)
    assert (arrays["dense_images"][1, 80:] == 255).all() and (arrays["dense_images"][1, :, 60:] == 255).all()
    for name in ("dense_labels", "dense_true"):
        assert (arrays[name][1, 80:] == 255).all() and (arrays[name][1, :, 60:] == 255).all()
    assert set(np.unique(arrays["dense_labels"][1, :80, :60])) == {0, 2}


# ---- the benchmark --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_both_arms_of_the_benchmark_do_the_same_work():
    images, targets = bench_dense.scene(64)
    assert len(targets[0]["boxes"]) == 8 and targets[0]["masks"].flatten(1).sum(1).min() > 0
    losses, found = {}, {}
    for arm, options in bench_dense.ARMS.items():
        model = bench_dense.detector("swin_micro", 64, options)
        assert len(gmmvit.masks_of(model)) == (5 if arm == "gab" else 0)
        losses[arm] = bench_dense.training(model, images, targets, torch.float32, World())()
        if arm == "gab":
            gmmvit.fold(model)
            assert not gmmvit.masks_of(model)
        found[arm] = bench_dense.inference(model, images, torch.float32, World())()
    assert losses["gab"] == pytest.approx(losses["plain"], rel=1e-5) and found == {"plain": 100, "gab": 100}


class Operators(TorchDispatchMode):
    """Counts what a step computes."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, function, types, inputs=(), options=None):
        self.calls[function] += 1
        return function(*inputs, **(options or {}))


@pytest.mark.slow
def test_folded_inference_runs_the_very_operators_of_the_plain_model():
    images, _ = bench_dense.scene(64)
    counts = {}
    for arm, options in bench_dense.ARMS.items():
        for folded in (False, True)[: 1 + (arm == "gab")]:
            model = bench_dense.detector("swin_micro", 64, options)
            step = bench_dense.inference(gmmvit.fold(model) if folded else model, images, torch.float32, World())
            with Operators() as seen:
                step()
            counts[arm, folded] = seen.calls
    assert counts["gab", True] == counts["plain", False] != counts["gab", False]


def test_what_bench_dense_says_is_what_it_measured(monkeypatch):
    seconds = iter([{"explicit": 2.0, "fused": 2.4, "gab": 2.02}, {"plain": 1.0, "gab": 0.5}])
    monkeypatch.setattr(bench_dense, "interleaved", lambda steps, rounds, say: next(seconds))
    record, said = benches.dense(Namespace(model="swin_micro", rounds=1), "cpu")
    assert (
        record["without"] == "explicit"
        and record["time"] == {"step": 0.01, "inference": -0.5}
        and "+1.0%" in str(said)
        and "-50.0%" in str(said)
    )
    assert costs.dense_table(record).cells() == [
        ["a training step", "2.0000", "2.0200", "+1.0%"],
        ["inference, GAB folded", "1.0000", "0.5000", "−50.0%"],
    ]


def test_printed_gains_are_those_of_the_printed_scores():
    """Each difference that the paper prints, of its Table 4."""
    found = [line["gain_published"] for line in dense.table_4(arms()).lines]
    assert found == pytest.approx([0.11, 0.10, 0.25, 0.27], abs=1e-9)
