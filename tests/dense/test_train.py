"""Detection and segmentation in the same loop as classification: records, resuming, and rows that cannot be run."""

import json

import pytest
import torch

from gmmvit import fetch
from gmmvit.analysis import drawn
from gmmvit.fetch import shapes
from gmmvit.paper import runs as results
from gmmvit.train import learned, train
from gmmvit.train.checks import problems
from gmmvit.train.rows import Row

SMALL = {"batch": 2, "epochs": 2, "epoch_steps": 2, "precision": "float32", "width": 16}
ROWS = {
    "box_AP": Row("coco-shapes", "swin_micro", "gab", "coco-3x", set=SMALL | {"regions": 16}),
    "mIoU": Row("ade20k-shapes", "swin_micro", "gab", "ade20k-160k", set=SMALL),
}


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("GMMVIT_DATA", str(tmp_path / "data"))
    shapes.write_coco(tmp_path / "data" / "coco-shapes", {"train": 5, "test": 3})
    shapes.write_ade(tmp_path / "data" / "ade20k-shapes", {"train": 5, "test": 3})
    for row in ROWS.values():
        fetch.obtain(row.dataset)
    return tmp_path


def broken_off(history):
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("score", ROWS)
def test_a_run_leaves_its_record_and_goes_on_where_it_broke_off(data, score):
    row, quiet = ROWS[score], {"say": lambda line: None}
    whole, parts = (data / "runs" / name for name in ("whole", "parts"))
    metrics = train(row, whole, **quiet)
    lines = results.history(whole)
    assert metrics[score] == lines[score][-1] and metrics[f"best_{score}"] == max(lines[score])
    assert "top1" not in metrics and metrics["images"] == 8 and metrics["parameters"] > 1e6 and metrics["macs"] > 1e7
    assert json.loads((whole / "metrics.json").read_text()) == metrics
    assert len(learned.read(whole)) == 5  # layers of swin_micro
    assert drawn.analyse(whole)["dense_images"].shape[0] == 3

    with pytest.raises(KeyboardInterrupt):
        train(row, parts, on_epoch=broken_off, **quiet)
    train(row, parts, **quiet)
    one, two = (torch.load(run / "weights.pt", weights_only=True)["model"] for run in (whole, parts))
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    assert (whole / "history.csv").read_bytes() == (parts / "history.csv").read_bytes()


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"dataset": "ade20k-shapes"}, "coco-3x is a recipe of detection, ade20k-shapes a set of segmentation"),
        ({"dataset": "coco-shape"}, "nearest is 'coco-shapes'"),
        ({"model": "swin_smal"}, "swin_smal cannot be a pyramid"),
        ({"set": {"mixup": 0.8}}, "unknown setting 'mixup'"),
        ({"set": {"kind": "segmentation"}}, "unknown setting 'kind'"),
        ({"set": {"milestones": [2, "x"]}}, "milestones: expected"),
        ({"set": {"readout": "token"}}, "readout: expected no such setting in a row of detection"),
        (
            {"set": {"batch": 3, "accumulate": 2}},
            "batch: expected a multiple of 2 = 1 (processes) x 2 (accumulate), got 3",
        ),
        ({"dataset": "ade20k", "recipe": "ade20k-160k", "set": {"batch": 1}}, "with 2 images in each part, got 1"),
    ],
)
def test_rows_that_cannot_be_run_say_why(fields, said):
    row = Row(**{"dataset": "coco-shapes", "model": "swin_micro", "mask": "gab", "recipe": "coco-3x", **fields})
    (wrong,) = problems(row)
    assert said in wrong


def test_the_papers_rows_can_be_run():
    for mask in ("none", "gab"):
        for dataset, recipe in (("coco", "coco-3x"), ("ade20k", "ade20k-160k")):
            row = Row(dataset, "swin_small_patch4_window7_224.ms_in1k", mask, recipe, set={"pretrained": True})
            assert problems(row) == []
