"""The plan against sums done by hand with the published MACs."""

import pytest

from gmmvit import create_model
from gmmvit.checks import BadRow
from gmmvit.dense.backbone import pyramid
from gmmvit.dense.segmenter import Segmenter
from gmmvit.measure import cost
from gmmvit.plan import images_seen, plan, plan_table
from gmmvit.rows import Row

VIT, VIT_TOKEN, CAIT = 184.62e6, 187.72e6, 358.51e6  # full MACs at 32 px, counted of the public code


def by_name(*rows):
    return {row.name: row for row in rows}


def test_rows_are_grouped_and_counted_by_hand():
    rows = by_name(
        *(Row("cifar10", "vit", mask, seed=seed) for mask in ("none", "gmm") for seed in range(3)),
        Row("cifar10", "cait", recipe="gmm"),
    )
    planned = plan(rows, images_per_second=350)
    assert [(line.model, line.mask, line.recipe, line.runs) for line in planned.lines] == [
        ("vit", "none", "short", 3),
        ("vit", "gmm", "short", 3),
        ("cait", "none", "gmm", 1),
    ]
    short, _, cait = planned.lines
    assert (short.trained, short.evaluated) == (3 * 5 * 390 * 128, 3 * 5 * 10_000)
    assert (cait.trained, cait.evaluated) == (117_100 * 128, 100 * 10_000)
    assert short.flops == pytest.approx((6 * short.trained + 2 * short.evaluated) * VIT, rel=1e-4)
    assert cait.flops == pytest.approx((6 * cait.trained + 2 * cait.evaluated) * CAIT, rel=1e-4)
    assert short.hours == pytest.approx((short.trained + short.evaluated / 3) / 350 / 3600)
    total = planned.total
    assert (total.runs, total.trained) == (7, 2 * short.trained + cait.trained)
    assert total.hours == pytest.approx(sum(line.hours for line in planned.lines))
    assert plan(rows, images_per_second=700).total.hours == pytest.approx(total.hours / 2)


def test_overrides_change_the_cost():
    plain, longer, token = (
        plan(by_name(Row("cifar10", "vit", set=settings))).total
        for settings in ({}, {"epochs": 10, "cooldown_epochs": 1}, {"readout": "token"})
    )
    assert longer.trained == plain.trained * 11 / 5 and longer.evaluated == plain.evaluated * 11 / 5
    assert token.flops / plain.flops == pytest.approx(VIT_TOKEN / VIT, rel=1e-4)


def test_fine_tuning_looks_at_validation_and_test():
    row = Row("caltech101", "vit_relpos_small_patch16_224", "gab", "gab-finetune")
    assert images_seen(row) == (200 * 50 * 128, 200 * (1_371 + 1_371))


def test_masks_add_no_products():
    (macs,) = {cost(create_model("vit", mask=mask)).macs_full for mask in (None, "gmm", "elm", "gab")}
    assert macs == pytest.approx(VIT, rel=1e-4)


def test_data_need_not_be_there_but_rows_must_be_right(tmp_path, monkeypatch):
    monkeypatch.setenv("GMMVIT_DATA", str(tmp_path))
    assert plan(by_name(Row("svhn", "vit"))).total.runs == 1
    with pytest.raises(BadRow, match="row bad: unknown setting 'epoch'"):
        plan({"bad": Row("svhn", "vit", set={"epoch": 1})})
    with pytest.raises(ValueError, match="images_per_second: expected a speed above 0, got 0"):
        plan({}, images_per_second=0)


def test_table_ends_with_the_total():
    rows, head = plan_table(plan(by_name(Row("cifar10", "vit"), Row("cifar10", "vit", seed=1))))
    assert rows[-1][0] == "total" and all(len(row) == len(head) for row in rows)
    assert dict(zip(head, rows[0], strict=True))["trained M"] == "0.50"
    assert plan_table(plan({}))[0] == [("total", "", "", "", "0", "0.00", "0.00", "0.000", "0.0")]


def test_detection_and_segmentation_are_planned_without_their_data(tmp_path, monkeypatch):
    monkeypatch.setenv("GMMVIT_DATA", str(tmp_path))
    images = {"coco-3x": (36 * 7_329 * 16, 36 * 5_000), "ade20k-160k": (160_000 * 16, 10 * 2_000)}
    for recipe, dataset in (("coco-3x", "coco"), ("ade20k-160k", "ade20k")):
        assert images_seen(Row(dataset, "swin_micro", recipe=recipe, set={"pretrained": True})) == images[recipe]
    settings = {"epochs": 2, "epoch_steps": 3, "batch": 4, "width": 16}
    rows = [Row("ade20k-shapes", "swin_micro", mask, "ade20k-160k", set=settings) for mask in ("none", "gab")]
    plain, masked = plan(by_name(*rows)).lines
    model = Segmenter(pyramid("swin_micro"), 4, width=16)
    assert (plain.trained, plain.evaluated) == (masked.trained, masked.evaluated) == (2 * 3 * 4, 2 * 40)
    assert plain.flops == masked.flops == (6 * 24 + 2 * 80) * cost(model, 96).macs_full
