"""The plan against sums done by hand with the published MACs."""

import json

import pytest

from gmmvit import create_model
from gmmvit.cli import main
from gmmvit.core.cost import cost
from gmmvit.dense.backbone import pyramid
from gmmvit.dense.segmenter import Segmenter
from gmmvit.paper.hours import a100_speed, measured
from gmmvit.paper.plan import images_seen, plan, plan_table
from gmmvit.train.checks import BadRow
from gmmvit.train.rows import Row

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
    assert plan_table(plan({}))[0] == [("total", "", "", "", "0", "0.00", "0.00", "0.000", "0.0", "0.0")]


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


def test_hours_of_an_a100_by_precision_and_size():
    assert a100_speed("auto", 4_600_000_000) == a100_speed("bfloat16", 4_600_000_000) == pytest.approx(0.4 * 312e12)
    assert a100_speed("tf32", 4_600_000_000) == pytest.approx(0.4 * 156e12)
    assert a100_speed("float32", 4_600_000_000) == a100_speed("float32", 184_600_000) == pytest.approx(0.6 * 19.5e12)
    assert a100_speed("auto", 184_600_000) == a100_speed("tf32", 184_600_000) == 20e12  # kernels to launch
    rows = by_name(Row("cifar10", "vit", recipe="short"), Row("cifar10", "vit", recipe="gmm"))
    short, long = plan(rows).lines
    assert short.gpu_hours == pytest.approx(short.flops / 20e12 / 3600)
    assert long.gpu_hours == pytest.approx(long.flops / 11.7e12 / 3600)  # the recipe is float32
    assert plan(rows).total.gpu_hours == pytest.approx(short.gpu_hours + long.gpu_hours)


def run_of(row, speed, device="cpu", macs=184_616_832):
    timing = {"device": device, "images_per_second": speed}
    return {"row": {"name": row.name}, "images": 249_600, "macs": macs, "timing": timing}


def test_finished_rows_measure_the_plan():
    rows = [Row("cifar10", "vit", seed=seed) for seed in range(4)]
    planned = plan(by_name(*rows), images_per_second=350)
    runs = [
        run_of(rows[0], 100),
        run_of(rows[1], 200),
        run_of(Row("svhn", "vit"), 1),
    ]  # not of these
    (found,) = measured(runs, planned.work, planned.vit)
    assert (found.device, found.rows, found.slowest, found.fastest) == ("cpu", 2, *map(pytest.approx, (100, 200)))
    assert found.together == pytest.approx(2 / (1 / 100 + 1 / 200))  # both did the same work
    assert found.left == pytest.approx(planned.total.hours / 2 * 350 / found.together)
    twice = measured([run_of(rows[0], 100, macs=2 * 184_616_832)], planned.work, planned.vit)
    assert twice[0].together == pytest.approx(200)  # a model of twice the work
    devices = measured([*runs, run_of(rows[2], 9_000, "cuda")], planned.work, planned.vit)
    assert [(each.device, each.rows) for each in devices] == [("cpu", 2), ("cuda", 1)]
    assert measured([run_of(rows[0], None)], planned.work, planned.vit) == []


def test_the_verb_says_what_it_assumes_and_what_was_measured(tmp_path, monkeypatch, capsys):
    row = Row("cifar10", "vit")
    (tmp_path / "dvc.yaml").touch()
    (tmp_path / "params.yaml").write_text("profile: a\nrows:\n  a-row: {dataset: cifar10, model: vit}\n")
    monkeypatch.chdir(tmp_path)
    assert main(["plan"]) == 0
    said = capsys.readouterr().out
    assert "A100 hours are assumed, not measured: 40 % of its 312 TFLOP/s" in said and "finished row" not in said
    run = tmp_path / "reports" / "a" / "runs" / "a-row"
    run.mkdir(parents=True)
    (run / "metrics.json").write_text(json.dumps(run_of(row, 70) | {"row": {"name": "a-row"}}))
    (run / "timing.json").write_text(json.dumps(run_of(row, 70)["timing"]))
    assert main(["plan"]) == 0
    assert "1 finished row on cpu: 70 images/s of that vit; those that are left take 0.0" in capsys.readouterr().out
