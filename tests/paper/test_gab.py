"""The GAB paper's tables: which rows are which arm, what stands beside them, and what became of A and sigma."""

import numpy as np
import pytest

import gmmvit
from gmmvit.core.masks import GaussianBias
from gmmvit.paper import charts, gab, published, runs
from gmmvit.paper.gab import heads, sizes
from gmmvit.paper.names import SIZES
from gmmvit.paper.tables import gains_table
from gmmvit.train import learned
from gmmvit.train.rows import Row

SMALL, MEDIUM, BASE = SIZES
NONE, KEPT, SHARED, EACH = (
    "no GAB, position bias drawn anew",
    "no GAB, pretrained position bias kept",
    "GAB shared by the heads",
    "GAB for each head",
)
ARMS = (
    ("none", {"pretrained": True, "reset_positions": True}),
    ("none", {"pretrained": True}),
    ("gab", {"pretrained": True, "reset_positions": True}),
    ("gab", {"pretrained": True, "reset_positions": True, "share_heads": False}),
)


def fine_tuned(dataset="pets", model=SMALL, arms=ARMS, seeds=(0, 1, 2)):
    rows = [Row(dataset, model, mask, "gab-finetune", seed, settings) for mask, settings in arms for seed in seeds]
    return {row.name: row for row in rows}


def scratch(dataset="cifar10", seeds=(0,), **settings):
    arms = (("none", {}), ("gab", {}), ("gab", {"share_heads": False}))
    rows = [Row(dataset, "vit_relpos", mask, "short", seed, more | settings) for mask, more in arms for seed in seeds]
    return {row.name: row for row in rows}


def arms_of(rows, accuracy=None, failed=(), only=None):
    """The arms of rows whose test accuracy is a function of the row, and whose validation accuracy is 1.5 higher."""
    ran = []
    for row in (only or rows).values() if accuracy else ():
        top1 = accuracy(row)
        val = {"val_top1": top1 + 1.5} if row.recipe_settings.select == "validation" else {}
        ran.append({"row": vars(row), "top1": top1} | val)
    return gab.arms(runs.of(rows, ran, failed))


def told(table, *keys):
    """{(data set, arm): the cells of columns}."""
    names = [column.key for column in table.columns]
    lines = [dict(zip(names, line, strict=True)) for line in table.cells()]
    return {(line["dataset"], line["arm"]): tuple(line[key] for key in keys) for line in lines}


def cells(table, model, dataset):
    """The columns of one model on one data set, by key."""
    names = [column.key for column in table.columns]
    lines = [dict(zip(names, line, strict=True)) for line in table.cells()]
    (line,) = [line for line in lines if (line["model"], line["dataset"]) == (model, dataset)]
    return line


# ---- heads ----------------------------------------------------------------------------------------------------------


def test_four_arms_with_validation_and_test_beside_the_published_numbers():
    rows = fine_tuned()
    plus = {True: 2.0, False: 1.0}
    table = gab.heads_table(arms_of(rows, lambda row: 91.0 + plus[row.set.get("share_heads", True)] + row.seed))
    assert list(told(table)) == [("Pets", NONE), ("Pets", KEPT), ("Pets", SHARED), ("Pets", EACH)]
    assert told(table, "val_published", "val", "test_published", "test", "difference") == {
        ("Pets", NONE): ("93.682", "95.50 ± 1.00 (3)", "91.486", "94.00 ± 1.00 (3)", "+2.51"),
        ("Pets", KEPT): ("–", "95.50 ± 1.00 (3)", "–", "94.00 ± 1.00 (3)", "–"),
        ("Pets", SHARED): ("93.923", "95.50 ± 1.00 (3)", "92.780", "94.00 ± 1.00 (3)", "+1.22"),
        ("Pets", EACH): ("93.773", "94.50 ± 1.00 (3)", "92.509", "93.00 ± 1.00 (3)", "+0.49"),
    }


def test_from_scratch_there_are_three_arms_and_no_validation_images():
    rows = scratch("cifar10-mini", epochs=1, warmup_epochs=0.2)
    table = gab.heads_table(arms_of(rows, lambda row: 20.0 + len(row.set)))
    assert told(table, "val", "test", "test_published") == {
        ("CIFAR-10 mini", "no GAB"): ("–", "22.00 (1)", "–"),
        ("CIFAR-10 mini", SHARED): ("–", "22.00 (1)", "–"),
        ("CIFAR-10 mini", EACH): ("–", "23.00 (1)", "–"),
    }


def test_rows_without_a_run_are_not_run_or_failed():
    rows = fine_tuned(seeds=(0,))
    first, *_, last = rows
    table = gab.heads_table(arms_of(rows, lambda row: 90.0, [last], {first: rows[first]}))
    assert told(table, "val", "test") == {
        ("Pets", NONE): ("91.50 (1)", "90.00 (1)"),
        ("Pets", KEPT): ("not run", "not run"),
        ("Pets", SHARED): ("not run", "not run"),
        ("Pets", EACH): ("failed", "failed"),
    }


def test_a_local_file_of_weights_makes_the_same_arms_as_timms():
    local = [
        (mask, {key: value for key, value in settings.items() if key != "pretrained"} | {"pretrained_file": "a.pth"})
        for mask, settings in ARMS
    ]
    here, there = (gab.heads_table(arms_of(fine_tuned(arms=arms))) for arms in (local, ARMS))
    assert here.md() == there.md()


@pytest.mark.parametrize(
    "row",
    [
        Row("cifar10", "vit", "gab"),
        Row("cifar10", "vit_relpos", "gmm"),
        Row("cifar10", "vit_relpos", "gab", set={"sigma": 2.0}),
        Row("cifar10", "vit_relpos", "none", set={"mixup": 0.8}),
    ],
)
def test_rows_of_other_questions_are_left_out(row):
    assert arms_of({row.name: row}).empty


def test_the_other_sizes_are_no_question_of_heads_and_other_arms_none_of_sizes():
    rows = fine_tuned() | fine_tuned(model=BASE, arms=ARMS[::2]) | scratch()
    found = arms_of(rows)
    assert set(heads(found).model) == {SMALL, "vit_relpos"}
    named = [(SIZES[row.model], row.arm) for row in sizes(found)[["model", "arm"]].drop_duplicates().itertuples()]
    assert named == [(SIZES[model], arm) for model in (SMALL, BASE) for arm in (NONE, SHARED)]


# ---- gains ----------------------------------------------------------------------------------------------------------


def test_gains_are_paired_with_the_arm_whose_position_bias_was_drawn_anew():
    rows = fine_tuned() | scratch()
    shift = {("none", True): 0.0, ("none", False): 3.0, ("gab", True): 1.0}

    def accuracy(row):
        anew = not row.set.get("pretrained") or row.set.get("reset_positions", False)
        return 50.0 + 10 * row.seed**2 + shift[row.mask, anew] + 0.1 * row.seed * (row.mask == "gab")

    table = gains_table(gab.gain_points(arms_of(rows, accuracy)))
    assert told(table, "published", "gain", "verdict") == {
        ("CIFAR-10", SHARED): ("–", "+1.00 (1)", "–"),
        ("CIFAR-10", EACH): ("–", "+1.00 (1)", "–"),
        ("Pets", KEPT): ("–", "+3.00 [+3.00 to +3.00] (3)", "larger than the seeds' spread"),
        ("Pets", SHARED): ("+1.29", "+1.10 [+0.85 to +1.35] (3)", "larger than the seeds' spread"),
        ("Pets", EACH): ("+1.02", "+1.10 [+0.85 to +1.35] (3)", "larger than the seeds' spread"),
    }


def test_gains_of_what_was_not_run_are_not_run():
    points = gab.gain_points(arms_of(fine_tuned("dogs")))
    assert told(gains_table(points), "published", "gain") == {
        ("Dogs", KEPT): ("–", "not run"),
        ("Dogs", SHARED): ("+0.97", "not run"),
        ("Dogs", EACH): ("−0.10", "not run"),  # A3: the text says that it is at least better
    }


# ---- transfer, ImageNet, dense --------------------------------------------------------------------------------------


def test_every_line_of_table_3_is_there_run_or_not_or_not_in_the_profile():
    rows = fine_tuned() | fine_tuned(model=MEDIUM, arms=ARMS[::2])
    found = arms_of(rows, lambda row: 90.0 + row.seed + 2 * (row.mask == "gab"), only=fine_tuned())
    table = gab.sizes_table(found, "gab_transfer")
    assert len(table.lines) == 12
    small = cells(table, "ViT-S/16 (R)", "Pets")
    assert (small["without_published"], small["with_published"], small["gain_published"]) == (
        "91.486",
        "92.780",
        "+1.294",
    )
    assert (small["without"], small["with"]) == ("91.00 ± 1.00 (3)", "93.00 ± 1.00 (3)")
    assert small["gain"] == "+2.00 [+2.00 to +2.00] (3)"
    medium = cells(table, "ViT-M/16 (R)", "Pets")
    assert (medium["without"], medium["with"], medium["gain"]) == ("not run",) * 3
    base = cells(table, "ViT-B/16 (R)", "Dogs")
    assert (base["with_published"], base["without"], base["with"], base["gain"]) == (
        "90.185", "not in this profile", "not in this profile", "–"
    )  # fmt: skip


def test_fine_tuning_on_imagenet_is_not_table_2():
    rows = fine_tuned("imagenet", arms=ARMS[::2])
    fine = gab.sizes_table(arms_of(rows), "gab_imagenet")
    assert cells(fine, "ViT-S/16 (R)", "ImageNet-1K")["with"] == "not in this profile"
    rows = {row.name: row for row in (Row("imagenet", SMALL, mask, "gab-imagenet") for mask in ("none", "gab"))}
    table = gab.sizes_table(arms_of(rows, lambda row: 80.0), "gab_imagenet")
    line = cells(table, "ViT-S/16 (R)", "ImageNet-1K")
    assert (line["gain_published"], line["with"], line["gain"]) == ("+0.157", "80.00 (1)", "+0.00 (1)")


def test_printed_differences_are_those_of_the_printed_accuracies():
    """Each difference that the paper prints, of its tables 2 and 3."""
    printed = {
        "gab_transfer": "1.294 0.150 0.362 1.799 0.851 0.316 2.953 3.159 2.458 0.972 0.626 0.929",
        "gab_imagenet": "0.157 0.025 0.103",
    }
    for name, differences in printed.items():
        found = [line["gain_published"] for line in gab.sizes_table(arms_of({}), name).lines]
        assert found == pytest.approx([float(each) for each in differences.split()], abs=1e-9)


def test_two_published_tables_agree_on_the_small_model():
    """Table 3 and the supplement's Table 4 print the same six accuracies of ViT-S twice."""
    heads, transfer = (published.table(name)["rows"] for name in ("gab_heads", "gab_transfer"))
    for row in (row for row in heads if row["split"] == "test" and row["share_heads"]):
        (twin,) = [each for each in transfer if (each["model"], each["mask"]) == (SMALL, row["mask"])]
        assert {key: row[key] for key in twin} == twin


def test_published_heads_name_the_arm_that_is_below_the_baseline():
    gains = told(gab.published_heads(), "test_gain")
    assert [key for key, (gain,) in gains.items() if gain.startswith("−")] == [("Dogs", EACH)]
    assert len(gains) == 12 and gains["Cars", NONE] == ("–",)


def test_fits_of_position_biases_are_whole():
    rows = published.table("gab_fits")["rows"]
    assert [(row["model"], row["layer"]) for row in rows] == [
        (model, layer) for model in SIZES for layer in range(1, 13)
    ]
    assert all((row["r2"] < 0.4) == (row["layer"] > 10) for row in rows)


# ---- A and sigma ----------------------------------------------------------------------------------------------------


@pytest.fixture
def trained(tmp_path):
    """Rows on Pets and their runs; in layer l of a run with GAB, A is +-(1 + l) and sigma 4, or by head 4, 5, ... ."""
    rows = fine_tuned(seeds=(0,)) | fine_tuned("cars", seeds=(0,))
    found = arms_of(rows, lambda row: 90.0)
    found["folder"] = [tmp_path / str(number) for number in range(len(found))]
    for row in found.itertuples():
        row.folder.mkdir()
        if row.mask != "gab":
            continue
        shared = row.share_heads
        model = gmmvit.create_model("vit_d6", mask="gab", share_heads=shared)
        for layer, mask in enumerate(gmmvit.masks_of(model).values()):
            mask.amplitude.data.fill_((-1) ** layer * (1.0 + layer))
            mask.sigma.data = mask.sigma.data.new_tensor([4.0 + head for head in range(mask.rows)])
        learned.save(model, row.folder)
    return found


def test_learned_means_stand_beside_the_published_ones(trained):
    table = gab.learned_table(trained)
    names = [column.key for column in table.columns]
    found = {line[:3]: dict(zip(names, line, strict=True)) for line in map(tuple, table.cells())}
    shared = found["Pets", "ViT-S/16 (R)", SHARED]
    assert (shared["amplitude_published"], shared["amplitude"]) == ("1.987", "3.500 (1)")  # mean of 1 ... 6
    assert (shared["sigma_published"], shared["sigma"]) == ("4.996", "4.000 (1)")
    each = found["Pets", "ViT-S/16 (R)", EACH]
    count = gab.learned_layers(trained)[1]["sigma"].shape[1]
    assert (each["sigma_published"], each["sigma"]) == ("–", f"{4 + (count - 1) / 2:.3f} (1)")
    assert found["Dogs", "ViT-B/16 (R)", SHARED]["sigma"] == "not in this profile"
    assert len(table.lines) == 12 + 2  # the published means and two arms for each head


def test_learned_layers_are_drawn_around_where_they_began(trained):
    layers = gab.learned_layers(trained)
    assert [line["amplitude"].shape[1] > 1 for line in layers] == [False, True, False, True]
    assert layers[0]["amplitude"][:, 0].tolist() == [1, 2, 3, 4, 5, 6]  # the bias does not see the sign
    figure = charts.learned_layers(layers)
    assert len(figure.axes) == 4
    heads = layers[1]["amplitude"].shape[1]
    amplitude = figure.axes[0]
    dots = [line for line in amplitude.lines if line.get_marker() == "o"]
    assert len(dots) == heads
    means = [line for line in amplitude.lines if len(line.get_xdata()) == 6 and line.get_marker() != "o"]
    np.testing.assert_allclose([line.get_ydata() for line in means], [np.arange(1, 7)] * 2)
    levels = {line.get_linestyle(): line.get_ydata()[0] for line in amplitude.lines if len(line.get_xdata()) == 2}
    assert levels == {"-": 2.0, "--": 1.987}


def test_the_grey_line_is_where_training_begins():
    bias = GaussianBias((4, 4), 3)
    assert {name: float(getattr(bias, name).detach().mean()) for name in charts.START} == {
        name: start for name, (start, _) in charts.START.items()
    }
