"""Tables as Markdown, HTML and CSV: each number written in one way, and what was not run counted instead of printed."""

import csv
import html.parser
import io
import math

import pandas as pd

from gmmvit.paper.tables import SMOKE, Column, Table, cell, pivot, span, text


def score(mean=None, sd=None, n=0, state=""):
    return {"ours": mean, "ours_sd": sd, "ours_n": n, "ours_state": state}


def gain(mean=None, low=None, high=None, n=0, state=""):
    return {"gain": mean, "gain_low": low, "gain_high": high, "gain_n": n, "gain_state": state}


def test_values_as_text():
    assert cell(score(94.123, 0.456, 3), "ours") == "94.12 ± 0.46 (3)"
    assert cell(score(94.123, math.nan, 1), "ours") == "94.12 (1)"
    assert cell(score(93.17, 1.41, 2, "2 of 3, 1 failed"), "ours") == "93.17 ± 1.41 (2 of 3, 1 failed)"
    assert (cell(score(state="failed"), "ours"), cell(score(math.nan, state="not run"), "ours")) == (
        "failed",
        "not run",
    )
    assert cell({"ours": math.nan}, "ours") == cell({}, "ours") == "–"
    assert cell(gain(-0.5, -0.75, -0.25, 3), "gain", "+.2f") == "−0.50 [−0.75 to −0.25] (3)"
    assert cell(gain(0.5, math.nan, math.nan, 1), "gain", "+.2f") == "+0.50 (1)"
    assert cell(gain(state="not run"), "gain", "+.2f") == "not run"
    assert (text(-0.0004, ".3f"), text(-0.001, "+.2f"), text(-0.0006, ".3f")) == ("0.000", "+0.00", "−0.001")
    assert (span([-0.474, 0.171]), span([0.99, 0.991]), span([1, 3], "d"), span([float("nan")])) == (
        "−0.47 to 0.17", "0.99", "1 to 3", "–"
    )  # fmt: skip
    assert text(-3.14159) == "−3.14" and text(None) == text(math.nan) == "–" and text(2693122.0, ",d") == "2,693,122"


EXAMPLE = Table(
    [Column("name", "a | b"), Column("ours", "ours"), Column("difference", "difference", "+.1f")],
    [
        {"name": "<GMM> & co | x", **score(94.5, 0.25, 3), "difference": -0.25},
        {"name": "plain", **score(state="failed"), "difference": None},
        {"name": "ELM", **score(state="not run"), "difference": math.nan},
    ],
    SMOKE,
)


def test_markdown_counts_what_was_not_run():
    note, empty, head, rule, *lines = EXAMPLE.md("example").splitlines()
    assert (note, empty) == (f"**{SMOKE}**", "")
    assert head == r"| a \| b | ours | difference |" and rule == "| --- | ---: | ---: |"
    assert lines == [
        r"| <GMM> & co \| x | 94.50 ± 0.25 (3) | −0.2 |",
        "| plain | failed | – |",
        "",
        "1 of 3 lines was not run; all are in [example.csv](example.csv).",
    ]


def test_a_published_table_is_printed_whole():
    line = {"model": "ViT", "published": 95.06, **score(state="not run")}
    assert "95.06" not in Table(["model", "published", "ours"], [line]).md()
    assert "| ViT | 95.06 | not run |" in Table(["model", "published", "ours"], [line], shown=True).md()


class Cells(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text.append(data)


def test_words_in_place_of_a_number_are_aligned_like_one_and_short_cells_stay_in_one_line():
    first = {"model": "ViT-S/16 (R)", "ours": 1.5, **gain(state="not run")}
    second = {"model": "a " * 30, **score(state="not run"), **gain()}
    table = Table(
        [Column("model", "model"), Column("ours", "ours"), Column("gain", "gain")], [first, second], shown=True
    )
    assert table.md().splitlines()[1] == "| --- | ---: | ---: |"
    written = table.html()
    assert written.count('<td class="number" style="text-align: right" nowrap>') == 4  # Jupyter broke "not run" in two
    assert written.count('<td style="text-align: left" nowrap>ViT-S/16 (R)<') == 1 and written.count("nowrap") == 5


def test_html_is_escaped():
    parser = Cells()
    parser.feed(EXAMPLE.html("example"))
    assert "gmm" not in parser.tags and parser.tags.count("td") == 6 and parser.tags.count("th") == 3
    assert "<GMM> & co | x" in parser.text and SMOKE in parser.text
    assert EXAMPLE._repr_html_() == EXAMPLE.html()


def test_csv_has_numbers_in_columns_of_numbers_and_states_in_their_own():
    first, second, third = csv.DictReader(io.StringIO(EXAMPLE.csv()))
    assert first == {
        "name": "<GMM> & co | x",
        "ours": "94.50",
        "ours_sd": "0.25",
        "ours_n": "3",
        "ours_state": "",
        "difference": "-0.2",
        "note": SMOKE,
    }
    assert (second["ours"], second["ours_n"], second["ours_state"], second["difference"]) == ("", "0", "failed", "")
    assert third["ours_state"] == "not run"
    read = pd.read_csv(io.StringIO(EXAMPLE.csv()))
    assert read.ours.dtype == read.difference.dtype == float and read.ours.count() == 1


def test_a_saved_table(tmp_path):
    EXAMPLE.save(tmp_path / "tables", "example")
    assert (tmp_path / "tables" / "example.md").read_text(encoding="utf-8") == EXAMPLE.md("example")
    assert (tmp_path / "tables" / "example.csv").read_text(encoding="utf-8") == EXAMPLE.csv()


def test_pivot_puts_data_sets_side_by_side():
    lines = [("3", "cifar10", 94.87, 94.0), ("5", "cifar10", 94.75, None), ("3", "cifar100", 76.64, None)]
    lines = pd.DataFrame(lines, columns=["K", "dataset", "published", "ours"])
    table = pivot(lines, "dataset", [Column("published"), Column("ours", "ours")], ["K"])
    assert [column.title for column in table.columns] == [
        "K",
        "cifar10 published",
        "cifar10 ours",
        "cifar100 published",
        "cifar100 ours",
    ]
    assert table.cells() == [["3", "94.87", "94.00", "76.64", "–"], ["5", "94.75", "–", "–", "–"]]
