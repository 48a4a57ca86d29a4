"""From folders of runs to tables: what is read, grouped, set beside published numbers, and written."""

import csv
import html.parser
import io
import json

import pytest

from gmmvit.paper import published
from gmmvit.paper.main_table import (
    VARIED,
    gain_points,
    gains_table,
    main_groups,
    main_results,
    published_main,
    results_table,
)
from gmmvit.paper.runs import Score, compare, gains, group, history, look_up, missing, runs
from gmmvit.paper.seeds import Gain, Summary
from gmmvit.paper.tables import SMOKE, Column, Table, pivot, span, text
from gmmvit.train.rows import Row


def write(folder, rows, top1):
    """Folders of runs, {name: top-1}, as training leaves them."""
    for name, value in top1.items():
        run = folder / "runs" / name
        run.mkdir(parents=True)
        cost = {"parameters": 2_693_122, "macs": 184_618_752, "macs_paper": 170_911_338, "depth": 9}
        row = {"name": name, **rows[name]}
        (run / "metrics.json").write_text(json.dumps({"row": row, "top1": value, "best_top1": value + 1, **cost}))
        (run / "history.csv").write_text("epoch,lr,train_loss,test_loss,top1\n1,0.001,2.5,2,30\n2,0.0005,2,1.5,40\n")
    return folder


def make(mask="none", seeds=(0, 1, 2), model="vit", dataset="cifar10", **settings):
    label = "".join(f"-{key}{value}" for key, value in settings.items())
    plain = {"dataset": dataset, "model": model, "mask": mask, "recipe": "short", "set": settings}
    return {f"{dataset}-{model}-{mask}{label}-s{seed}": plain | {"seed": seed} for seed in seeds}


def test_runs_are_read_with_their_timing_and_history(tmp_path):
    rows = make()
    write(tmp_path, rows, {"cifar10-vit-none-s1": 60.0, "cifar10-vit-none-s0": 61.0})
    (tmp_path / "runs" / "cifar10-vit-none-s0" / "timing.json").write_text('{"images_per_second": 350.0}')
    (tmp_path / "runs" / "half-done").mkdir()
    found = runs(tmp_path)
    assert [run["row"]["name"] for run in found] == ["cifar10-vit-none-s0", "cifar10-vit-none-s1"]
    assert [run["timing"] for run in found] == [{"images_per_second": 350.0}, None]
    assert missing(rows, found) == ["cifar10-vit-none-s2"]
    columns = history(found[0]["folder"])
    assert columns["epoch"] == [1, 2] and columns["test_loss"] == [2.0, 1.5] and "top5" not in columns
    assert runs(tmp_path / "nowhere") == []


def test_a_broken_record_is_named(tmp_path):
    write(tmp_path, make(), {"cifar10-vit-none-s1": 60.0})
    path = tmp_path / "runs" / "cifar10-vit-none-s1" / "metrics.json"
    path.write_text(path.read_text()[:-5])
    with pytest.raises(ValueError, match="cifar10-vit-none-s1.metrics.json: expected JSON"):
        runs(tmp_path)


# ---- groups ---------------------------------------------------------------------------------------------------------


def test_rows_are_grouped_over_seeds_by_fields_and_settings(tmp_path):
    rows = make() | make("gmm") | make("gmm", kernels=3) | make("gmm", seeds=(3,), kernels=5)
    write(tmp_path, rows, {"cifar10-vit-gmm-s0": 60.0, "cifar10-vit-gmm-s2": 62.0, "cifar10-vit-gmm-kernels5-s3": 64.0})
    plain, five, three = group(rows, runs(tmp_path), ["cifar10-vit-gmm-s1"], model=None, mask="none", kernels=5)
    assert five.keys == {"model": "vit", "mask": "gmm", "kernels": 5}
    assert five.score() == Score(62.0, 2.0, 3, 4, 1)
    assert five.score("best_top1").mean == 63.0
    assert five.by_seed() == {0: 60.0, 2: 62.0, 3: 64.0}
    assert (five.one("depth"), plain.one("depth")) == (9, None)
    assert plain.score() == Score(None, None, 0, 3, 0) and three.keys["kernels"] == 3


def test_rows_of_params_yaml_are_grouped_as_well(tmp_path):
    rows = {"a": Row("cifar10", "vit", "gmm", set={"kernels": 3}), "b": Row("cifar10", "vit", "gmm", seed=1)}
    assert [each.rows for each in group(rows, [], mask="none", kernels=5)] == [("a",), ("b",)]


def test_rows_that_differ_in_more_than_the_keys_are_not_averaged():
    rows = make("gmm") | make("gmm", kernels=3)
    with pytest.raises(ValueError, match="'cifar10-vit-gmm-s0' and 'cifar10-vit-gmm-kernels3-s0'"):
        group(rows, [], model=None, mask="none")


def test_gains_are_paired_with_the_base_of_the_same_data_set_and_model(tmp_path):
    rows = make() | make("gmm") | make("elm") | make("gmm", model="pit")
    top1 = {f"cifar10-vit-{mask}-s{s}": 60 + s + add for mask, add in (("none", 0), ("gmm", 2)) for s in range(3)}
    write(tmp_path, rows, top1)
    found = group(rows, runs(tmp_path), dataset=None, model=None, mask="none")
    lines = gains(found, {"mask": "none"}, ["dataset", "model"])
    assert [(line["model"], line["mask"]) for line in lines] == [("vit", "gmm"), ("vit", "elm")]
    assert lines[0]["gain"].mean == 2 and lines[0]["gain"].beyond_spread
    assert lines[1]["gain"] == Gain(None, None, 0, None, None)


def test_published_numbers_are_looked_up_by_the_keys_they_have():
    rows = published.table("gmm_main")["rows"]
    assert look_up(rows, {"model": "pit", "mask": "gmm", "dataset": "svhn", "kernels": 5}, "svhn") == 97.82
    assert look_up(rows, {"model": "vit_heat", "mask": "gmm"}, "svhn") is None
    assert look_up(rows, {"model": "pit", "mask": "gmm"}, "cifar10_mini") is None


# ---- the main table -------------------------------------------------------------------------------------------------


def test_the_main_table(tmp_path):
    rows = (
        make()
        | make(readout="token")
        | make("gmm")
        | make("gmm", share_heads=True)
        | make("gmm", kernels=3)
        | make("elm")
        | make("gmm", model="pit", dataset="tiny-imagenet")
        | make("gmm", model="vit_heat")
    )
    write(tmp_path, rows, {"cifar10-vit-none-s0": 93.17, "cifar10-vit-none-s1": 95.17, "cifar10-vit-gmm-s0": 95.56})
    failed = ["cifar10-vit-none-s2", *make("gmm", share_heads=True)]
    table = main_results(rows, runs(tmp_path), published_main(), failed, SMOKE)
    cells = {(row[0], row[1], row[2]): row[3:6] for row in table.cells()}
    assert cells == {
        ("CIFAR-10", "ViT", "plain"): ["94.17", "94.17 ± 1.41 (2 of 3, 1 failed)", "+0.00"],
        ("CIFAR-10", "ViT", "plain, class token"): ["93.65", "not run", "–"],
        ("CIFAR-10", "ViT", "GMM"): ["95.06", "95.56 (1 of 3)", "+0.50"],
        ("CIFAR-10", "ViT", "GMM, shared by the heads"): ["94.75", "failed", "–"],
        ("Tiny-ImageNet", "PiT", "GMM"): ["58.37", "not run", "–"],
    }
    assert table.cells()[0][6:] == ["2,693,122", "170.9", "184.6", "9"]
    assert all(SMOKE in written for written in (table.md(), table.html(), table.csv()))


def test_published_rows_stand_beside_the_arm_they_come_from():
    """Errata G1 to G3: the mean read-out and the shared mask are the first table's."""
    rows = published_main()

    def number(dataset, mask, readout="mean", share_heads=False, model="vit"):
        keys = {"model": model, "mask": mask, "readout": readout, "share_heads": share_heads}
        return look_up(rows, keys, dataset)

    assert [number(d, "none") for d in ("cifar10", "cifar100", "svhn", "tiny_imagenet")] == [94.17, 75.36, 97.93, 59.89]
    assert [number(d, "none", "token") for d in ("cifar10", "cifar100")] == [93.65, None]
    assert [number("tiny_imagenet", "gmm", share_heads=shared) for shared in (False, True)] == [62.27, 61.86]
    assert number("cifar10", "none", model="cait") == 94.79
    assert number("cifar10", "gmm", model="cait", share_heads=True) is None


def test_a_table_of_other_masks(tmp_path):
    rows = make() | make("elm") | make("gab")
    write(tmp_path, rows, {f"cifar10-vit-gab-s{seed}": 60.0 + seed for seed in range(3)})
    table = results_table(group(rows, runs(tmp_path), **VARIED), published_main())
    assert [row[2:6] for row in table.cells()] == [
        ["plain", "94.17", "not run", "–"],
        ["ELM", "–", "not run", "–"],
        ["GAB", "–", "61.00 ± 1.00 (3)", "–"],
    ]


def test_the_gains_of_the_main_table(tmp_path):
    rows = make() | make("gmm") | make(readout="token") | make(model="pit") | make("gmm", model="pit")
    top1 = {"none": (60.0, 61.5, 63.0), "gmm": (61.0, 62.6, 64.2)}
    ours = {f"cifar10-vit-{mask}-s{seed}": values[seed] for mask, values in top1.items() for seed in range(3)}
    write(tmp_path, rows, ours | {"cifar10-pit-none-s0": 60.0, "cifar10-pit-gmm-s0": 59.0})
    points = gain_points(main_groups(rows, runs(tmp_path)), published_main())
    assert [(p["model"], p["arm"], round(p["published"], 2)) for p in points] == [
        ("vit", "GMM", 0.89),
        ("pit", "GMM", 0.73),
    ]
    assert [row[4:] for row in gains_table(points).cells()] == [
        ["+1.10 [+0.85 to +1.35] (3)", "larger than the seeds' spread"],
        ["−1.00 (1)", "–"],
    ]


# ---- writing --------------------------------------------------------------------------------------------------------


def test_values_as_text():
    assert text(Summary(94.123, 0.456, 3)) == "94.12 ± 0.46 (3)"
    assert text(Summary(94.123, None, 1)) == "94.12 (1)"
    assert text(Score(None, None, 0, 3, 1)) == "failed" and text(Score(None, None, 0, 3, 0)) == "not run"
    assert text(Score(1.0, 0.5, 2, 2, 0)) == "1.00 ± 0.50 (2)"
    assert text(Gain(-0.5, 0.1, 3, -0.75, -0.25), "+.2f") == "−0.50 [−0.75 to −0.25] (3)"
    assert text(Gain(0.5, None, 1, None, None), "+.2f") == "+0.50 (1)"
    assert text(Gain(None, None, 0, None, None), "+.2f") == "not run"
    assert (text(-0.0004, ".3f"), text(-0.001, "+.2f"), text(-0.0006, ".3f")) == ("0.000", "+0.00", "−0.001")
    assert (span([-0.474, 0.171]), span([0.99, 0.991]), span([1, 3], "d"), span([float("nan")])) == (
        "−0.47 to 0.17", "0.99", "1 to 3", "–"
    )  # fmt: skip
    assert text(-3.14159) == "−3.14" and text(None) == "–" and text(2693122, ",d") == "2,693,122"


EXAMPLE = Table(
    [Column("name", "a | b"), Column("ours", "ours"), Column("difference", "difference", "+.1f")],
    [
        {"name": "<GMM> & co | x", "ours": Score(94.5, 0.25, 3, 3, 0), "difference": -0.25},
        {"name": "plain", "ours": Score(None, None, 0, 3, 0), "difference": None},
    ],
    SMOKE,
)


def test_markdown():
    note, empty, head, rule, *lines = EXAMPLE.md().splitlines()
    assert (note, empty) == (f"**{SMOKE}**", "")
    assert head == r"| a \| b | ours | difference |" and rule == "| --- | ---: | ---: |"
    assert lines == [r"| <GMM> & co \| x | 94.50 ± 0.25 (3) | −0.2 |", "| plain | not run | – |"]


class Cells(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text.append(data)


def test_words_in_place_of_a_number_are_aligned_like_one_and_short_cells_stay_in_one_line():
    lines = [{"model": "ViT-S/16 (R)", "ours": 1.5, "gain": "not run"}, {"model": "a " * 30, "ours": "not run"}]
    table = Table([Column("model", "model"), Column("ours", "ours"), Column("gain", "gain")], lines)
    assert table.md().splitlines()[1] == "| --- | ---: | ---: |"
    written = table.html()
    assert written.count('<td class="number" style="text-align: right" nowrap>') == 4  # Jupyter broke "not run" in two
    assert written.count('<td style="text-align: left" nowrap>ViT-S/16 (R)<') == 1 and written.count("nowrap") == 5


def test_html_is_escaped():
    parser = Cells()
    parser.feed(EXAMPLE.html())
    assert "gmm" not in parser.tags and parser.tags.count("td") == 6 and parser.tags.count("th") == 3
    assert "<GMM> & co | x" in parser.text and SMOKE in parser.text
    assert EXAMPLE._repr_html_() == EXAMPLE.html()


def test_csv_is_for_programs():
    first, second = csv.DictReader(io.StringIO(EXAMPLE.csv()))
    assert first == {
        "name": "<GMM> & co | x",
        "ours": "94.50",
        "ours_sd": "0.25",
        "ours_n": "3",
        "difference": "-0.2",
        "note": SMOKE,
    }
    assert (second["ours"], second["ours_n"], second["difference"]) == ("not run", "0", "")


def test_a_saved_table(tmp_path):
    EXAMPLE.save(tmp_path / "tables", "example")
    assert (tmp_path / "tables" / "example.md").read_text(encoding="utf-8") == EXAMPLE.md()
    assert (tmp_path / "tables" / "example.csv").read_text(encoding="utf-8") == EXAMPLE.csv()


def test_pivot_puts_data_sets_side_by_side(tmp_path):
    rows = {**make("gmm", kernels=3), **make("gmm"), **make("gmm", kernels=3, dataset="cifar100")}
    write(tmp_path, rows, {"cifar10-vit-gmm-kernels3-s0": 94.0})
    groups = group(rows, runs(tmp_path), dataset=None, mask="none", kernels=5)
    lines = compare(groups, published.table("gmm_kernels")["rows"])
    table = pivot(
        lines, "dataset", [Column("published", "published"), Column("ours", "ours")], [Column("kernels", "K", "d")]
    )
    assert [column.title for column in table.columns] == [
        "K",
        "cifar10 published",
        "cifar10 ours",
        "cifar100 published",
        "cifar100 ours",
    ]
    assert table.cells() == [
        ["3", "94.87", "94.00 (1 of 3)", "76.64", "not run"],
        ["5", "94.75", "not run", "–", "–"],
    ]
