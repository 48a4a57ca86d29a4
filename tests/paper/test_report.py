"""The report of a profile, from runs and executed notebooks that are made up here."""

import base64
import html
import json
import re
import shutil
import struct
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from gmmvit.cli import main
from gmmvit.paper import notebook, report
from gmmvit.paper.charts import throughput
from gmmvit.paper.profiles import Params
from gmmvit.paper.report_cells import page_size
from gmmvit.paper.report_rows import Line
from gmmvit.paper.tables import SMOKE, Column, Table
from gmmvit.train.rows import Row

ROOT = Path(__file__).parents[2]
VOID = {"meta", "img", "br", "hr", "input", "link"}
TIMING = {
    "images_per_second": 341.5, "seconds": 5400.0, "device": "cpu", "gpu": None, "processor": "Eight <fast> cores",
    "threads": 2, "processes": 1, "python": "3.11.2", "torch": "2.15.0", "timm": "1.0.31",
}  # fmt: skip


class Page(HTMLParser):
    """A page's elements and text; `problems` are tags that do not close in order."""

    def __init__(self, path):
        super().__init__()
        self.open, self.problems, self.elements, self.ids = [], [], [], []
        self.folder, self.source = path.parent, path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        self.problems += self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()
        elif tag not in VOID:
            self.problems.append(tag)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def links(self):
        return [element["href"] for element in self.all("a")]


def words(page):
    """What a reader sees, tags left out."""
    return " ".join(re.sub(r"<[^>]+>", " ", re.sub(r"(?s)<style>.*?</style>", "", page.source)).split())


def png(width=700, height=500, dpi=200):
    """A grey image as matplotlib writes one, with its density."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"pHYs", struct.pack(">IIB", *[round(dpi / 0.0254)] * 2, 1)),
        (b"IDAT", zlib.compress((b"\0" + b"\x80" * width) * height)),
        (b"IEND", b""),
    ]
    packed = (struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


PICTURE = base64.b64encode(png(dpi=150)).decode()


def write_run(folder, row, *, notebook=True, done=True, error="", timing=None, top1=61.234):
    """What a row leaves behind."""
    run = folder / "runs" / row.name
    run.mkdir(parents=True, exist_ok=True)
    if done:
        (run / "metrics.json").write_text(json.dumps({"row": vars(row), "top1": top1, "epochs": 5}))
        (run / "timing.json").write_text(json.dumps(TIMING | (timing or {})))
        (run / "history.csv").write_text("epoch,top1\n1,50.5\n2,61.234\n")
    picture = {"image/png": PICTURE, "text/plain": "<Figure>"}
    script = {"application/javascript": "alert(1)", "text/plain": "no script"}
    outputs = [new_output("stream", text="epoch 1\n"), new_output("display_data", picture)]
    outputs += [new_output("display_data", script)]
    outputs += [new_output("error", ename="ValueError", evalue=error, traceback=[f"ValueError: {error}"])] * bool(error)
    cells = [new_markdown_cell("## Learned <masks>"), new_code_cell("1 < 2", outputs=outputs)]
    if notebook:
        nbformat.write(new_notebook(cells=cells), run / "run.ipynb")


def shown(*calls):
    """The outputs of gmmvit.paper.notebook.show, as Jupyter keeps them."""
    outputs = []

    def display(made, raw=False, metadata=None):
        data = made if raw else {"text/markdown": made.data} if hasattr(made, "data") else {"image/png": PICTURE}
        outputs.append(new_output("display_data", data, metadata=metadata or {}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(notebook, "display", display)
        for call in calls:
            notebook.show(*call)
    return outputs


def a_table(ours="61.00 ± 1.00 (3)", **more):
    line = {"name": "<script>x</script> & co", "ours": ours, **more}
    return Table([Column(name, {"name": "a | <b>"}.get(name, name)) for name in line], [line])


def a_published_table():
    """A table of the paper's, of whose rows none was run."""
    lines = [{"name": "Dogs", "published": 81.5, "ours": None, "ours_n": 0, "ours_state": "not in this profile"}]
    return Table(["name", "published", "ours"], lines, shown=True)


def write_notebook(folder, name, sections, error=""):
    """An executed notebook: {heading and prose: outputs}."""
    cells = []
    for prose, outputs in sections.items():
        cells.append(new_markdown_cell(prose))
        printed = new_output("stream", text="printed by the way\n")
        cells.append(new_code_cell("secret_code()", outputs=[printed, *outputs]))
    if error:
        tagged = {"tags": ["papermill-error-cell-tag"]}
        cells.insert(0, new_markdown_cell("<a href='#papermill-error-cell'>In [5]</a>", metadata=tagged))
        cells.append(new_code_cell("", outputs=[new_output("error", ename="KeyError", evalue=error, traceback=["x"])]))
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=cells), folder / f"{name}.ipynb")


@pytest.fixture
def made(tmp_path):
    """A profile with a row that is done, one that failed, one that broke off and one that was not run."""
    rows = {name: Row("cifar10", "vit", "gmm", seed=i, set={"kernels": 3}, name=name) for i, name in enumerate("abcd")}
    folder = tmp_path / "reports" / "cpu"
    write_run(folder, rows["a"])
    write_run(folder, rows["b"], done=False, error="expected a <finite> loss,\ngot nan")
    write_run(folder, rows["c"], done=False)
    sections = {
        "# Accuracy with a mask\n\nThe *claim* of a paper.": [],
        "## Published and ours\n\nNumbers & <words>.": shown((a_table(), folder, "main_results-table")),
        "## The gains": shown(
            (throughput({"a": 1.0, "b": 2.0}), folder, "main_results-gains", "", "Ours: <b>GAB</b>.")
        ),
        "## Where it looks": shown((None, folder, "main_results-heat")),
        "## Published alone": shown((a_published_table(), folder, "main_results-elsewhere")),
    }
    write_notebook(folder / "notebooks", "main_results", sections)
    return Params("cpu", rows, {}), folder


def pages(folder):
    return [Page(path) for path in sorted(folder.rglob("*.html"))]


# ---- every page ------------------------------------------------------------------------------------------------------


def test_pages_load_nothing_and_run_nothing(made):
    report.write(*made)
    found = pages(made[1])
    assert len(found) == 4  # the report and three notebooks
    for page in found:
        assert {tag for tag, _ in page.elements} & {"script", "link", "iframe", "object", "base"} == set()
        sources = [value for _, attributes in page.elements for key, value in attributes.items() if key == "src"]
        assert all(source.startswith("data:image/png;base64,") for source in sources)
        assert re.search(r"url\(|@import|srcset|https?://", page.source) is None
        assert not any(key.startswith("on") for _, attributes in page.elements for key in attributes)
        policy = next(meta["content"] for meta in page.all("meta") if "http-equiv" in meta)
        assert policy.startswith("default-src 'none'")


HARMFUL = """<script>alert(1)</script><form action="https://x.example"><input></form><base href="https://x.example">
<meta http-equiv="refresh" content="0;url=https://x.example"><iframe src="data:text/html,x"></iframe>
<p onclick="run()" style="background: url(https://x.example)">harmless words</p><a href="javascript:run()">a link</a>
<table><caption>ours</caption><thead><tr><th class="number">n</th></tr></thead>
<tbody><tr><td>7</td></tr></tbody></table>
"""


def test_what_a_notebook_says_in_html_neither_runs_nor_loads_nor_sends_nor_leads_away(made):
    params, folder = made
    kinds = ("text/html", "text/markdown", "image/svg+xml")
    outputs = [new_output("display_data", {kind: HARMFUL, "text/plain": "no HTML"}) for kind in kinds]
    for path in (folder / "runs" / "b" / "run.ipynb", folder / "notebooks" / "main_results.ipynb"):
        executed = nbformat.read(path, as_version=4)
        executed.cells += [new_markdown_cell(HARMFUL), new_code_cell("1 < 2", outputs=outputs)]
        nbformat.write(executed, path)
    report.write(params, folder)
    check_harmless(Page(folder / "rows" / "b.html"))
    check_harmless(Page(folder / "index.html"))


def check_harmless(page):
    assert {tag for tag, _ in page.elements} & {"script", "form", "input", "base", "iframe", "svg", "object"} == set()
    assert [meta.get("http-equiv") for meta in page.all("meta") if "http-equiv" in meta] == ["Content-Security-Policy"]
    names = {name for _, attributes in page.elements for name in attributes}
    assert "onclick" not in names and not any("javascript:" in (link.get("href") or "") for link in page.all("a"))
    assert "x.example" not in str(page.elements) and page.problems == []
    assert words(page).count("harmless words") == 3  # the Markdown cell and two outputs; a drawing may hold programs
    assert page.all("caption") and {"class": "number"} in page.all("th")  # our own tables stay as they are
    policy = page.all("meta")[3]["content"]
    assert "form-action 'none'" in policy and "base-uri 'none'" in policy


def test_pages_are_whole(made):
    report.write(*made)
    for page in pages(made[1]):
        assert page.problems == [] and len(page.ids) == len(set(page.ids))
        assert page.source.startswith("<!doctype html>") and page.all("html") == [{"lang": "en"}]


def test_links_lead_to_files_and_places_that_are_there(made):
    report.write(*made)
    for page in pages(made[1]):
        for link in page.links():
            path, _, place = link.partition("#")
            target = (page.folder / unquote(path)) if path else None
            assert target is None or target.is_file(), link
            assert not place or place in (page if target is None else Page(target)).ids
    assert len(Page(made[1] / "index.html").links()) > 10


def test_every_image_is_described_and_sized(made):
    report.write(*made)
    for page in pages(made[1]):
        for image in page.all("img"):
            assert image["alt"].strip() and "No description" not in image["alt"]
            assert int(image["width"]) * 5 == pytest.approx(int(image["height"]) * 7, abs=7)
    (gains,) = Page(made[1] / "index.html").all("img")
    assert gains["alt"] == "The gains"
    (curve,) = Page(made[1] / "rows" / "a.html").all("img")
    assert curve["alt"] == "Learned <masks> (run a)"


def test_equal_inputs_make_equal_bytes(made, tmp_path):
    report.write(*made, tmp_path / "reports" / "one")
    report.write(*made, tmp_path / "reports" / "two")
    one, two = (sorted((tmp_path / "reports" / name).rglob("*.html")) for name in ("one", "two"))
    assert len(one) == 4 and [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


# ---- what was run ----------------------------------------------------------------------------------------------------


def test_what_was_run(made):
    params, folder = made
    write_run(folder, params.rows["d"], timing={"seconds": 30.0, "threads": 1})
    text = words(Page(report.write(params, folder)))
    assert "2 of 4 done, 1 failed, 1 not finished" in text
    assert "1.5 h of training in all; 1.5 h for the longest row" in text
    assert "cpu: Eight &lt;fast&gt; cores, 2 threads, 1 process (1 row)" in text
    assert "Python 3.11.2, torch 2.15.0, timm 1.0.31" in text and "no commit known" in text


def test_nothing_was_timed_where_every_row_failed(tmp_path):
    rows = {"a": Row("cifar10", "vit", name="a"), "b": Row("cifar10", "vit", seed=1, name="b")}
    write_run(tmp_path, rows["a"], done=False, error="no such luck")
    write_notebook(tmp_path / "notebooks", "main_results", {"# Accuracy": []})
    text = words(Page(report.write(Params("cpu", rows, {}), tmp_path)))
    assert "0 of 2 done, 1 failed, 1 not run" in text and "nothing is timed" in text


def test_lengths_of_time():
    assert [report.duration(seconds) for seconds in (47.2, 750, 12240)] == ["47 s", "12 min", "3.4 h"]


def test_the_device_is_the_one_that_was_used():
    cuda = TIMING | {"device": "cuda", "gpu": "A100", "processes": 4}
    assert report.device(cuda) == "cuda: A100, 2 threads, 4 processes"
    assert report.device(TIMING | {"gpu": "A100"}).startswith("cpu: Eight")


def test_the_commit_is_the_one_of_the_code():
    last = ["git", "-C", str(ROOT), "log", "-1", "--abbrev=10", "--format=%h", "--", "gmmvit", "notebooks"]
    assert report.commit(ROOT).split()[1] == subprocess.run(last, capture_output=True, text=True).stdout.strip()
    assert re.fullmatch(r"commit [0-9a-f]{10}( with changes that are not committed)?", report.commit(ROOT))


# ---- rows ------------------------------------------------------------------------------------------------------------


def test_rows_say_what_became_of_them(made):
    page = Page(report.write(*made))
    section = words(page).split("All rows")[-1]
    assert re.search(r"a done 61\.23 5 341\.5 90 min|a done 61\.23 5 341\.5 1\.5 h", section)
    assert re.search(r"b failed – – – – short, kernels = 3 c not finished – .* 1 of 4 rows was not run.* d ", section)
    assert {"rows/a.html", "rows/b.html", "rows/c.html"} <= set(page.links()) and "rows/d.html" not in page.links()
    assert "b failed: ValueError: expected a &lt;finite&gt; loss, got nan" in words(page)
    half = words(Page(made[1] / "rows" / "b.html"))
    assert "Failed: ValueError" in half and "epoch 1" in half and "1 &lt; 2" not in half  # no code


def test_a_row_with_the_longest_name_that_a_file_may_have_has_its_page(tmp_path):
    row = Row("cifar10", "vit", "gmm", name="gmm-" + "a" * 200)
    write_run(tmp_path, row)
    write_notebook(tmp_path / "notebooks", "main_results", {"# Accuracy": []})
    page = Page(report.write(Params("cpu", {row.name: row}, {}), tmp_path))
    assert f"rows/{row.name}.html" in page.links()
    assert "Learned" in words(Page(tmp_path / "rows" / f"{row.name}.html"))


def test_a_score_that_is_no_accuracy_is_named(tmp_path):
    rows = {"a": Row("cifar10", "vit", name="a"), "b": Row("coco", "resnet50", "none", "coco-3x", name="b")}
    for row in rows.values():
        write_run(tmp_path, row)
    path = tmp_path / "runs/b/metrics.json"
    path.write_text(json.dumps({"row": vars(rows["b"]), "box_AP": 33.337, "epochs": 2}))
    path.with_name("history.csv").write_text("epoch,box_AP\n1,30.0\n2,33.337\n")
    write_notebook(tmp_path / "notebooks", "main_results", {"# Accuracy": []})
    text = words(Page(report.write(Params("cpu", rows, {}), tmp_path)))
    assert "top-1, or as named (%)" in text and "a done 61.23" in text and "b done AP box 33.34" in text


def test_an_error_after_the_training_is_told(made):
    params, folder = made
    write_run(folder, params.rows["d"], error="no masks")
    assert "d failed after training: ValueError: no masks" in words(Page(report.write(params, folder)))


def test_without_notebooks_only_pages_that_came_along_are_linked(made):
    params, folder = made
    for name in "ac":
        (folder / "runs" / name / "run.ipynb").unlink()
    (folder / "rows").mkdir()
    (folder / "rows" / "gone.html").write_text("<!doctype html>")  # of a row that is not in the profile any more
    for name in "ad":  # d has no run: its page would be of another time
        (folder / "rows" / f"{name}.html").write_text("<!doctype html><title>kept</title>")
    links = Page(report.write(params, folder)).links()
    assert [link for link in links if "rows/" in link] == ["rows/b.html", "rows/a.html", "rows/b.html"]
    assert "kept" in (folder / "rows" / "a.html").read_text()
    assert sorted(path.stem for path in (folder / "rows").iterdir()) == ["a", "b"]


def test_a_notebook_that_was_cut_short_is_none(made):
    params, folder = made
    (folder / "runs" / "c" / "run.ipynb").write_text('{"cells": [')
    assert "rows/c.html" not in Page(report.write(params, folder)).links()


def test_a_profile_chooses_the_notebooks_that_become_pages(made):
    params, folder = made
    write_run(folder, params.rows["d"])
    report.write(Params("cpu", params.rows, {"report_pages": ["d"]}), folder)
    assert sorted(path.stem for path in (folder / "rows").iterdir()) == ["b", "c", "d"]  # a has nothing to explain


# ---- the notebooks ---------------------------------------------------------------------------------------------------


def test_the_report_is_made_of_the_executed_notebooks_without_their_code(made):
    page = Page(report.write(*made))
    text = words(page)
    told = [
        "Accuracy with a mask",
        "The claim of a paper.",
        "Published and ours Numbers &amp; &lt;words&gt;.",
        "a | &lt;b&gt; ours",
    ]
    told += ["&lt;script&gt;x&lt;/script&gt; &amp; co 61.00 ± 1.00 (3)", "csv md", "The gains", "pdf png"]
    text = text.split("What was run", 2)[2]
    places = [text.find(each) for each in told]
    assert -1 not in places and places == sorted(places)
    assert "secret_code" not in page.source and "printed by the way" not in text
    files = {f"tables/main_results-table.{kind}" for kind in ("csv", "md")}
    assert files | {f"figures/main_results-gains.{kind}" for kind in ("pdf", "png")} <= set(page.links())
    assert "main_results" in page.ids and "#main_results" in page.links()


def test_what_was_not_run_is_one_line_to_be_opened(made):
    page = Page(report.write(*made))
    closed = re.search(r'(?s)<details class="idle" id="main_results-3">(.*?)</details>', page.source)[1]
    assert "Where it looks" in closed and "main_results-heat: not run" in closed
    published = re.search(r'(?s)<details class="idle" id="main_results-4">(.*?)</details>', page.source)[1]
    assert "81.50" in published and "not in this profile" in published
    assert 'id="main_results-2"' in page.source and '<details class="idle" id="main_results-2"' not in page.source


def test_what_was_found_stands_beside_its_figure(made):
    source = Page(report.write(*made)).source
    found, figure = source.index("Ours: <b>GAB</b>."), source.index('alt="The gains"')
    assert source.rindex('<div class="found">', 0, found) and found < figure


def test_a_notebook_that_dvc_yaml_does_not_name_is_shown_too_and_one_that_was_not_executed_is_named(made):
    write_notebook(made[1] / "notebooks", "another", {"# One more": []})
    text = words(Page(report.write(*made)))
    assert text.index("Accuracy with a mask") < text.index("One more")
    assert re.search(r"Not executed: the notebooks priors .*, motivation .*, gab_heads", text)


def test_a_notebook_that_broke_off_is_told_and_shown_as_far_as_it_came(made):
    params, folder = made
    sections = {"# Fields": [], "## Fitted": shown((a_table("seen"), folder, "erf_rpe-fits"))}
    write_notebook(folder / "notebooks", "erf_rpe", sections, error="'no such key'")
    page = Page(report.write(params, folder))
    assert "The notebook erf_rpe broke off: KeyError: 'no such key'" in html.unescape(words(page)).replace("  ", " ")
    assert "seen" in words(page) and "papermill-error-cell" not in page.source and page.problems == []


def test_without_executed_notebooks_the_report_that_is_there_stays(made):
    params, folder = made
    path = report.write(params, folder)
    before = path.read_bytes()
    shutil.rmtree(folder / "notebooks")
    with pytest.raises(FileNotFoundError, match="notebooks: expected the executed notebooks"):
        report.write(params, folder)
    assert path.read_bytes() == before


def test_figures_of_one_size_are_shown_in_one_size():
    for dpi in (150, 200, 300):
        size = page_size(base64.b64encode(png(7 * dpi, 2 * dpi, dpi)).decode())
        assert size == pytest.approx({"width": 805, "height": 230}, abs=1)


# ---- what was found --------------------------------------------------------------------------------------------------


ACCURACY = {  # of three seeds, on CIFAR-10
    ("vit", "none"): (60.0, 60.5, 61.0),
    ("vit", "gab"): (62.0, 62.6, 63.1),  # gains 2.0, 2.1, 2.1
    ("vit", "gmm"): (58.0, 58.4, 59.1),  # loses 2.0, 2.1, 1.9
    ("vit", "elm"): (61.0, 59.5, 61.5),  # +1.0, -1.0, +0.5
    ("swin", "none"): (70.0, None, None),
    ("swin", "gmm"): (71.0, None, None),
    ("pit", "none"): (50.0, 50.0, 50.0),
    ("pit", "gmm"): (None, None, None),
}


def profile_of(accuracy, folder, name="cpu"):
    """A profile with these rows, run where there is a number."""
    rows = {}
    for (model, mask), numbers in accuracy.items():
        for seed, top1 in enumerate(numbers):
            row = Row("cifar10", model, mask, seed=seed, name=f"{model}-{mask}-s{seed}")
            rows[row.name] = row
            if top1 is not None:
                write_run(folder, row, notebook=False, top1=top1)
    write_notebook(folder / "notebooks", "main_results", {"# Accuracy": []})
    return Params(name, rows, {}), folder


def opening(page):
    return words(page).split("What was found")[2].split("What was run")[0]


def test_it_opens_with_which_gains_are_larger_than_the_spread_which_are_not_and_what_was_not_run(tmp_path):
    page = Page(report.write(*profile_of(ACCURACY, tmp_path)))
    text = opening(page)
    larger, rest = html.unescape(text).split(" not larger ")
    level, missing = rest.split(" not run ", 1)
    assert "after 5 passes over the images; the GMM paper makes 300, so this is no test of its claim" in larger
    assert "Of 4 gains measured, 1 is ahead by more than the seeds' spread: ViT, GAB on CIFAR-10 +2.07 [" in larger
    assert "+1.92 to +2.21] (3); 1 is behind by more than the seeds' spread: ViT, GMM" in larger
    assert "ViT, GMM on CIFAR-10 −2.00 [−2.25 to −1.75] (3), published +0.89." in larger
    assert "ELM" not in larger and "Swin" not in larger
    assert "1 is not to be told from zero: ViT, ELM on CIFAR-10 +0.17 [" in html.unescape(level)
    assert "1 is of one seed, of which nothing can be said: Swin, GMM on CIFAR-10 +1.00 (1)." in level
    assert missing.startswith("Of 24 rows 7 were not run; 1 of 5 gains has no number: PiT, GMM on CIFAR-10.")
    assert "#not-run" in page.links() and "not-run" in page.ids
    (figure,) = page.all("img")
    assert figure["alt"].startswith("Every gain that was measured")


def test_a_profile_that_was_run_wholly_says_so(tmp_path):
    accuracy = {key: values for key, values in ACCURACY.items() if key[0] == "vit" and key[1] in ("none", "gab")}
    page = Page(report.write(*profile_of(accuracy, tmp_path)))
    text = html.unescape(opening(page))
    assert "Of 1 gain measured, 1 is ahead by more than the seeds' spread" in text
    assert "Of 1 gain measured, each can be told from zero" in text and "All 6 rows have a result." in text
    assert "#not-run" not in page.links() and not page.all("img")  # one gain is no figure


def test_where_nothing_was_run_nothing_was_found(tmp_path):
    text = html.unescape(opening(Page(report.write(*profile_of(dict.fromkeys(ACCURACY, (None,) * 3), tmp_path)))))
    assert "No gain was measured." in text and "Of 24 rows 24 were not run; 5 of 5 gains have no number" in text


def test_a_long_list_of_gains_is_counted(tmp_path):
    many = {
        (model, mask): (60.0 + 2 * (mask == "gmm"), 61.0 + 2.1 * (mask == "gmm"))
        for model in ("vit", "swin", "cait", "pit", "t2t")
        for mask in ("none", "gmm", "elm", "gab")
    }
    text = opening(Page(report.write(*profile_of(many, tmp_path))))
    assert "Of 15 gains measured, 5 are ahead" in text and "; and 4 more." in text


# ---- profiles --------------------------------------------------------------------------------------------------------


def test_the_smoke_profile_alone_carries_a_banner(tmp_path):
    params, folder = profile_of(ACCURACY, tmp_path)
    write_run(folder, params.rows["vit-none-s0"])
    report.write(params, folder)
    for page in pages(folder):
        assert "smoke" not in words(page).lower() and {"class": "banner", "role": "note"} not in page.all("p")
    report.write(Params("smoke", params.rows, {}), folder)
    for page in pages(folder):
        banner = next(attributes for tag, attributes in page.elements if tag == "p")
        assert banner["class"] == "banner" and words(page).lower().count(SMOKE) >= 1
    assert words(Page(folder / "index.html")).lower().count(SMOKE) == 4  # banner, sentences, table, rows


def test_a_partial_report_shows_what_was_made_without_the_failed_rows(made):
    params, folder = made
    partial = folder / "partial"
    made_anew = shown((a_table(), partial, "main_results-spread"))
    write_notebook(partial, "main_results", {"# Accuracy": [], "## Spread": made_anew})
    path = report.write(params, folder, partial=True)
    page = Page(path)
    assert path == partial / "index.html" and not (folder / "index.html").exists()
    assert "Partial report." in words(page) and "tables/main_results-spread.md" in page.links()
    assert not any("main_results-table" in link for link in page.links())
    assert (partial / "rows" / "b.html").is_file() and "rows/b.html" in page.links()


def test_the_command(made, tmp_path, monkeypatch, capsys):
    params, folder = made
    (tmp_path / "dvc.yaml").touch()
    lines = [f"  {name}: {{dataset: cifar10, model: vit, mask: gmm, seed: {row.seed}, set: {{kernels: 3}}}}\n"
             for name, row in params.rows.items()]  # fmt: skip
    (tmp_path / "params.yaml").write_text("profile: cpu\nrows:\n" + "".join(lines))
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "index.html")
    shutil.copytree(folder / "notebooks", folder / "partial")
    assert main(["report", "cpu", "--partial", "--out", "elsewhere"]) == 0
    assert "Partial report." in words(Page(tmp_path / "elsewhere" / "index.html"))
    assert main(["report", "nosuch"]) == 1 and "nosuch" in capsys.readouterr().err


# ---- the look --------------------------------------------------------------------------------------------------------

PHONE = 390  # pixels
MEASURE = """<!doctype html><body style="margin: 0">
<iframe id="page" style="border: 0; width: {width}px; height: 3000px" srcdoc="{page}"></iframe>
<pre id="found"></pre><script>
const page = document.getElementById("page"), found = [];
page.onload = () => {{
  const inside = page.contentDocument, width = {width} + 1;
  if (inside.documentElement.scrollWidth > width) found.push("the page itself");
  for (const element of inside.body.querySelectorAll("*")) {{
    if (element.closest("table, pre")) continue;  // these scroll
    if (element.getBoundingClientRect().right > width) found.push(element.outerHTML.slice(0, 80));
  }}
  const shown = (element) => element.getBoundingClientRect().width;
  const first = [...inside.querySelectorAll(".box td:first-child")].find(shown);
  const box = first.closest(".box"); box.scrollLeft = 200;
  const stays = first.getBoundingClientRect().left - box.getBoundingClientRect().left;
  const told = {{found, stays, scrolled: box.scrollLeft}};
  document.getElementById("found").textContent = JSON.stringify(told);
}};
</script>"""


def looks(path, folder, width=PHONE):
    """What Chromium lays out at this width: elements wider than the page, columns and rows that are shown."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not browser:
        pytest.skip("no Chromium here: the page is not laid out")
    page = html.escape(path.read_text(encoding="utf-8"), quote=True)
    (folder / "frame.html").write_text(MEASURE.format(page=page, width=width), encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'browser'}"]
    command += ["--virtual-time-budget=5000", "--dump-dom", (folder / "frame.html").as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    return json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', dom)[1]))


def wide_report(made):
    """A report with a wide figure and a wide table."""
    params, folder = made
    names = ["ours: mean ± sd (n)", "parameters", "depth", "published", "once more"]
    table = a_table("GMM, shared by the heads", **dict.fromkeys(names, 12345678.25))
    sections = {"# Accuracy": [], "## Wide": shown((table, folder, "main_results-table"))}
    picture = {"image/png": base64.b64encode(png(1400, 500)).decode()}
    sections["## A picture"] = [new_output("display_data", picture, metadata={})]
    sections["## Long words"] = [new_output("display_data", {"text/markdown": f"`{'a_long_name_' * 12}`"}, metadata={})]
    write_notebook(folder / "notebooks", "main_results", sections)
    return report.write(params, folder)


@pytest.mark.slow
def test_on_a_phone_nothing_is_wider_than_the_page_but_tables_that_scroll(made, tmp_path):
    path = wide_report(made)
    phone, desk = looks(path, tmp_path), looks(path, tmp_path, 1400)
    assert phone["found"] == [] and desk["found"] == []
    assert phone["scrolled"] > 0 and phone["stays"] == pytest.approx(0, abs=1.5)  # the first column does not go


def test_figures_shrink_to_the_page_and_tables_keep_their_first_column(made):
    """What the style sheet says, where there is no browser to ask."""
    css = re.search(r"(?s)<style>(.*?)</style>", Page(wide_report(made)).source)[1]
    desk = css.split("@media (max-width: 40rem)")[0]
    rules = {selector.strip(): rule for selector, rule in re.findall(r"([^{}]+)\{([^{}]*)\}", desk)}
    assert "max-width: 100%" in rules[".plate img"]
    assert "position: sticky; left: 0;" in rules[".box th:first-child, .box td:first-child"]
    assert " local" in desk and " scroll," in desk  # the shade at an edge where a table goes on


@pytest.mark.parametrize(
    "learned, said", [({"learned": False}, "61.23, did not learn"), ({"learned": True}, "61.23"), ({}, "61.23")]
)
def test_a_row_says_that_its_masks_did_not_learn(learned, said):
    assert Line(Row("cifar10", "vit", "gmm"), {"top1": 61.234, **learned}, None, "", False).result == said
