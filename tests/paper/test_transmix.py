"""TransMix's tables and figures: which rows are which arm, what stands beside what, and what is drawn of it."""

import json

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from gmmvit.paper import charts, pictures, project, runs, transmix
from gmmvit.paper.transmix import ARMS, arm_of
from gmmvit.train.rows import Row

BOTH = {"mixup": 0.8, "cutmix": 1.0, "switch_prob": 0.8}
SETTINGS = {
    "no mixing": {},
    "Mixup": {"mixup": 0.8},
    "CutMix": {"cutmix": 1.0},
    "Mixup + CutMix": BOTH,
    "TransMix": BOTH | {"transmix": True},
}


def row(arm, seed=0, dataset="cifar10", model="vit", mask="none", recipe="short", **more):
    return Row(dataset, model, mask, recipe, seed, {"readout": "token", **SETTINGS[arm], **more})


def comparisons(rows, ran=(), failed=()):
    return transmix.comparisons(runs.of({row.name: row for row in rows}, ran, failed))


def by_arm(rows):
    """{arm: how many rows}, arms in order."""
    return rows.groupby(["recipe", "arm"], sort=False).size()


def run(row, top1):
    return {"row": {"name": row.name, "seed": row.seed}, "top1": top1}


@pytest.mark.parametrize("arm", SETTINGS)
def test_an_arm_is_told_by_its_mixing_and_not_by_its_name(arm):
    assert arm_of(row(arm)) == arm
    spelt = Row("cifar10", "vit", set={"mix_prob": 1, "mixup": 0, "cutmix": 0, **SETTINGS[arm]}, name="anything")
    assert arm_of(spelt) == arm


@pytest.mark.parametrize(
    "settings", [{"switch_prob": 0.5}, {"mix_prob": 0.5}, {"cutmix": 0.3}, {"mixup": 1.0}], ids=lambda each: str(each)
)
def test_other_mixing_is_no_arm(settings):
    assert arm_of(row("TransMix", **settings)) is None
    assert arm_of(Row("cifar10", "vit", recipe="gmm")) is None  # the main table's: half of the batches are mixed


def test_the_recipe_of_deit_is_transmix_and_without_it_mixup_and_cutmix():
    for settings, arm in (({}, "TransMix"), ({"transmix": False}, "Mixup + CutMix")):
        assert arm_of(Row("imagenet", "deit_small_patch16_224", recipe="deit-transmix", set=settings)) == arm


def test_arms_are_compared_under_one_recipe():
    rows = [row(arm, seed) for arm in ARMS for seed in (0, 1)]
    others = [row("TransMix", epochs=9), row("CutMix", epochs=9), row("CutMix", lr=0.1), row("CutMix", mask="gmm")]
    found = by_arm(comparisons([*others, *rows]))
    nine = {("short, epochs 9, readout token", arm): 1 for arm in ("CutMix", "TransMix")}
    assert list(found.to_dict().items()) == [*nine.items(), *((("short, readout token", arm), 2) for arm in ARMS)]
    assert comparisons([row(arm) for arm in SETTINGS if arm != "TransMix"]).empty


def test_the_tables_of_arms_and_gains():
    top1 = {
        "no mixing": (80.0, 81.0),
        "CutMix": (82.0, 84.0),
        "Mixup + CutMix": (83.0, 83.0),
        "TransMix": (84.0, 85.0),
    }
    rows = [row(arm, seed) for arm in ARMS for seed in (0, 1)]
    ran = [run(each, top1[arm_of(each)][each.seed]) for each in rows if arm_of(each) in top1]
    found = comparisons(rows, ran, [each.name for each in rows if arm_of(each) == "Mixup"])
    table = transmix.arms_table(found)
    assert [column.title for column in table.columns][4:] == list(ARMS)
    (cells,) = table.cells()
    assert cells[4:] == ["80.50 ± 0.71 (2)", "failed", "83.00 ± 1.41 (2)", "83.00 ± 0.00 (2)", "84.50 ± 0.71 (2)"]
    points = transmix.gain_points(found).set_index("base")
    assert points.gain.to_dict() == {"Mixup + CutMix": 1.5, "CutMix": 1.5}
    assert points.gain_sd.round(6).to_dict() == {
        "Mixup + CutMix": round(0.5**0.5, 6),  # of 1 and 2
        "CutMix": round(0.5**0.5, 6),  # of 2 and 1: paired over seeds, not a difference of means
    }
    mixed = transmix.mixing_points(found).set_index("label")
    assert mixed.gain.to_dict() == pytest.approx(
        {"ViT, Mixup": float("nan"), "ViT, CutMix": 2.5, "ViT, Mixup + CutMix": 2.5, "ViT, TransMix": 4.0}, nan_ok=True
    )
    empty = transmix.gains_table(transmix.gain_points(comparisons(rows)))
    assert [cells[-1] for cells in empty.cells()] == ["not run", "not run"]


def test_planned_arms_of_every_profile_are_all_in_the_table():
    found = {}
    for profile in ("cpu", "paper"):
        rows = project.rows(profile).rows
        found[profile] = comparisons(rows.values())
        mixed = [name for name, each in rows.items() if each.recipe_settings.transmix]
        assert mixed and set(mixed) <= set(found[profile].index)
    assert by_arm(found["cpu"]).to_list() == [3] * 5
    pairs = found["paper"][found["paper"].dataset == "imagenet"][["model", "arm"]].drop_duplicates()
    assert sorted(pairs.arm) == ["Mixup + CutMix"] * 2 + ["TransMix"] * 2


def test_imagenet_published_and_ours():
    deit = dict(dataset="imagenet", model="deit_small_patch16_224", recipe="deit-transmix")
    rows = [Row(**deit, set={"transmix": False}), Row(**deit)]
    found = comparisons(rows, [run(rows[0], 79.5), run(rows[1], 80.25)])
    lines = {cells[0]: cells[1:] for cells in transmix.imagenet_table(found).cells()}
    assert lines["DeiT-S"][1:5] == ["22", "79.8", "80.7", "+0.9"]
    assert lines["DeiT-S"][5:] == ["79.50 (1)", "80.25 (1)", "+0.75 (1)"]
    for name in ("DeiT-B", "PVT-S", "PVT-M", "XCiT-S", "XCiT-M", "XCiT-L"):
        assert lines[name][5:] == ["not run", "not run", "–"]
    assert lines["PVT-S"][0] == "not in timm"


def test_the_published_models_are_timms_of_that_size():
    import timm
    import torch

    for line in transmix.imagenet_table(comparisons([])).lines:
        if line["model"] in transmix.TIMM:
            with torch.device("meta"):
                model = timm.create_model(line["timm"])
            assert round(sum(p.numel() for p in model.parameters()) / 1e6) == line["parameters_M"]


# ---- images and shifts ----------------------------------------------------------------------------------------------


def arrays(side=8, box=(2, 6, 0, 4), **more):
    """Two pairs of images of one colour each, and an attention map that is the patch's number."""
    images = np.stack([np.full((side, side, 3), 10 * (number + 1), np.uint8) for number in range(4)])
    attention = np.tile(np.arange(16, dtype=np.float16).reshape(4, 4) / 128, (4, 1, 1))  # sum 0.9375
    found = {"mix_images": images, "mix_attention": attention, "mix_share": np.full((4, 2), 0.25, np.float32)}
    return found | {"mix_box": np.array([box, box], np.float32) * side / 8} | more


@pytest.mark.parametrize("side", (8, 64, 56))
def test_what_is_said_of_a_mixed_image(side):
    first, second, third, _ = transmix.mixed_images(arrays(side))
    assert first["own"][0, 0, 0] == 10 and first["pasted"][0, 0, 0] == second["own"][0, 0, 0] == 20
    assert third["own"][0, 0, 0] == 30 and third["pasted"][0, 0, 0] == 40  # each pair under a box of its own
    assert (first["mixed"] == 20).mean() == 0.25 and first["mixed"][side // 2, 0, 0] == 20
    inside = (4 + 5 + 8 + 9) / 128  # rows 1 and 2, columns 0 and 1 of the patches
    assert first["paper"] == pytest.approx(inside)
    assert first["inside"] == pytest.approx(inside / 0.9375)
    assert first["code"] == pytest.approx((0.25 + inside / 0.9375) / 2)
    assert first["trained"] == 0.25


def test_one_box_may_mix_a_whole_batch_reversed():
    lines = transmix.mixed_images(arrays(mix_box=np.array([2, 6, 0, 4])))
    assert [line["pasted"][0, 0, 0] for line in lines] == [40, 30, 20, 10]


def test_a_box_in_the_pixels_of_a_smaller_picture_holds_the_same_patches():
    attention = np.full((4, 14, 14), 1 / 196, np.float32)
    for top in range(0, 224, 16):
        box = (np.array([[top, 224, 0, 224]]) * (64 / 224)).astype(np.float32)
        line, *_ = transmix.mixed_images(arrays(64, mix_box=box, mix_attention=attention))
        assert line["paper"] == pytest.approx(1 - top / 224, rel=1e-5)


def test_the_recomputed_lambda_is_that_of_the_library():
    import timm
    import torch

    from gmmvit import TransMix
    from gmmvit.train.mixing import mixed_sample

    torch.manual_seed(0)
    np.random.seed(1)
    model, images = timm.create_model("gmmvit_vit", num_classes=3, readout="token"), torch.randn(8, 3, 32, 32)
    for definition in ("code", "paper"):
        mix = TransMix(cutmix_alpha=1.0, mixup_alpha=0.0, num_classes=3, definition=definition)
        found = mixed_sample(mix, model, images, torch.zeros(8, dtype=torch.long), boxes=4)
        lines = transmix.mixed_images(
            {"mix_images": np.zeros((8, 32, 32, 3), np.uint8)} | {f"mix_{name}": each for name, each in found.items()}
        )
        np.testing.assert_allclose([line[definition] for line in lines], found["share"][:, 1], rtol=1e-5)


def test_a_run_without_pairs_has_no_images():
    assert transmix.mixed_images({"images": np.zeros(3)}) == []


def test_the_figure_of_pairs_shows_boxes_and_shares():
    lines = transmix.mixed_images(arrays())
    figure = pictures.mixed_images(lines)
    assert len(figure.axes) == 6 * len(lines)  # attention has a bar of its colours
    own, pasted, mixed, attention, bars = figure.axes[:5]
    for axes in (pasted, mixed, attention):
        (box,) = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
        assert box.get_bbox().bounds == (-0.5, 1.5, 4, 4)  # left, top, width, height; pixels have their centre at n
    assert tuple(attention.images[0].get_extent()) == (-0.5, 7.5, 7.5, -0.5)
    assert not own.patches and (mixed.images[0].get_array() == lines[0]["mixed"]).all()
    shares = [lines[0][name] for name in ("area", "inside", "code", "paper")]
    assert [patch.get_width() for patch in bars.patches] == pytest.approx(shares)


def history(shift, epochs=3):
    quantiles = {"05": -0.2, "25": -0.1, "50": 0.0, "75": 0.1, "95": 0.2}
    columns = {f"shift_q{q}": [value + shift] * epochs for q, value in quantiles.items()}
    return {"epoch": list(range(1, epochs + 1)), **columns}


@pytest.mark.parametrize("epochs", (1, 3))
def test_the_bands_of_shifts_are_means_over_seeds(epochs):
    figure = charts.shifts({"ViT": [history(0.0, epochs), history(0.1, epochs + 2)]})
    (axes,) = figure.axes
    (median,) = [line for line in axes.lines if line.get_label() == "median"]
    np.testing.assert_allclose(median.get_ydata(), [0.05] * epochs, atol=1e-9)
    for band, (low, high) in zip(axes.collections, ((-0.15, 0.25), (-0.05, 0.15)), strict=True):
        x, y = band.get_paths()[0].vertices.T
        assert (x.min(), x.max()) == (0.5, epochs + 0.5)  # also one epoch can be seen
        assert (y.min(), y.max()) == pytest.approx((low, high))


def test_shifts_are_read_from_the_runs_of_transmix(tmp_path):
    rows, ran = [row("TransMix"), row("CutMix"), row("TransMix", mask="gmm"), row("TransMix", epochs=9)], []
    for number, each in enumerate(rows):
        columns = history(0.1 * number) if number != 2 else {"epoch": [1, 2, 3]}
        lines = [",".join(columns), *(",".join(map(str, values)) for values in zip(*columns.values(), strict=True))]
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "history.csv").write_text("\n".join(lines) + "\n")
        ran.append(json.loads(json.dumps(run(each, 1.0))) | {"folder": folder})
    found = transmix.shifts(comparisons(rows, ran))
    assert list(found) == ["ViT: CIFAR-10", "ViT: CIFAR-10, short, epochs 9, readout token"]
    assert found["ViT: CIFAR-10"][0]["shift_q50"] == [0.0, 0.0, 0.0]
