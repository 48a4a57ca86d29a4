"""The report of a profile, from runs, tables and figures that are made up here."""

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
from gmmvit.paper import report
from gmmvit.paper.profiles import Params
from gmmvit.paper.report_parts import Figure, MarkdownTable
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


def write_run(folder, row, *, notebook=True, done=True, error="", timing=None):
    """What a row leaves behind."""
    run = folder / "runs" / row.name
    run.mkdir(parents=True, exist_ok=True)
    if done:
        (run / "metrics.json").write_text(json.dumps({"row": vars(row), "top1": 61.234, "epochs": 5}))
        (run / "timing.json").write_text(json.dumps(TIMING | (timing or {})))
        (run / "history.csv").write_text("epoch,top1\n1,50.5\n2,61.234\n")
    picture = {"image/png": base64.b64encode(png(dpi=150)).decode(), "text/plain": "<Figure>"}
    script = {"application/javascript": "alert(1)", "text/plain": "no script"}
    outputs = [new_output("stream", text="epoch 1\n"), new_output("display_data", picture)]
    outputs += [new_output("display_data", script)]
    outputs += [new_output("error", ename="ValueError", evalue=error, traceback=[f"ValueError: {error}"])] * bool(error)
    cells = [new_markdown_cell("## Learned <masks>"), new_code_cell("1 < 2", outputs=outputs)]
    if notebook:
        nbformat.write(new_notebook(cells=cells), run / "run.ipynb")


def write_table(folder, name, note=""):
    columns = [Column("name", "a | <b>"), Column("ours", "ours")]
    Table(columns, [{"name": "<script>x</script> & co", "ours": 1.5}, {"name": "failed"}], note).save(folder, name)


@pytest.fixture
def made(tmp_path):
    """A profile with a row that is done, one that failed, one that broke off and one that was not run."""
    rows = {name: Row("cifar10", "vit", "gmm", seed=i, set={"kernels": 3}, name=name) for i, name in enumerate("abcd")}
    folder = tmp_path / "reports" / "cpu"
    write_run(folder, rows["a"])
    write_run(folder, rows["b"], done=False, error="expected a <finite> loss,\ngot nan")
    write_run(folder, rows["c"], done=False)
    write_table(folder / "tables", "main_results-table")
    (folder / "figures").mkdir()
    (folder / "figures" / "main_results-gains.png").write_bytes(png())
    (folder / "figures" / "main_results-gains.pdf").write_bytes(b"%PDF")
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
    path = folder / "runs" / "b" / "run.ipynb"
    notebook = nbformat.read(path, as_version=4)
    kinds = ("text/html", "text/markdown", "image/svg+xml")
    outputs = [new_output("display_data", {kind: HARMFUL, "text/plain": "no HTML"}) for kind in kinds]
    notebook.cells += [new_markdown_cell(HARMFUL), new_code_cell("1 < 2", outputs=outputs)]
    nbformat.write(notebook, path)
    report.write(params, folder)
    page = Page(folder / "rows" / "b.html")
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
    assert gains["alt"].startswith("Gain of a mask over the plain model")
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
    assert re.search(r"b failed – – – – short, kernels = 3 c not finished – .* d not run –", section)
    assert {"rows/a.html", "rows/b.html", "rows/c.html"} <= set(page.links()) and "rows/d.html" not in page.links()
    assert "b failed: ValueError: expected a &lt;finite&gt; loss, got nan" in words(page)
    half = words(Page(made[1] / "rows" / "b.html"))
    assert "Failed: ValueError" in half and "epoch 1" in half


def test_a_score_that_is_no_accuracy_is_named(tmp_path):
    rows = {"a": Row("cifar10", "vit", name="a"), "b": Row("coco", "resnet50", "none", "coco-3x", name="b")}
    for row in rows.values():
        write_run(tmp_path, row)
    path = tmp_path / "runs/b/metrics.json"
    path.write_text(json.dumps({"row": vars(rows["b"]), "box_AP": 33.337, "epochs": 2}))
    path.with_name("history.csv").write_text("epoch,box_AP\n1,30.0\n2,33.337\n")
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
    with pytest.raises(ValueError, match="unknown row in report_pages 'e'"):
        report.write(Params("cpu", params.rows, {"report_pages": ["e"]}), folder)


# ---- tables and figures ----------------------------------------------------------------------------------------------


def test_tables_and_figures_stand_under_their_claims_and_the_rest_is_not_run(made):
    page = Page(report.write(*made))
    text = words(page)
    for part in (part for notebook in report.listed() for part in notebook["parts"]):
        assert len(part["claim"].split()) > 5
        there = part.get("table") == "main_results-table" or part.get("figure") == "main_results-gains"
        after = text.split(report_text(f"{part['title']} {part['claim']} "))[1]
        assert after.startswith("not run") != there
    assert "a | &lt;b&gt; ours &lt;script&gt;x&lt;/script&gt; &amp; co 1.50" in text
    assert {"tables/main_results-table.csv", "figures/main_results-gains.pdf"} <= set(page.links())


def report_text(words):
    return words.replace("&", "&amp;").replace("'", "&#39;").replace("<", "&lt;")


def test_a_table_nobody_listed_is_shown_too(made):
    write_table(made[1] / "tables", "gmm_ablation-other_things")
    assert "gmm_ablation-other_things-table" in Page(report.write(*made)).ids


def test_all_that_the_notebooks_make_is_listed():
    listed = {part.get("table", part.get("figure")) for notebook in report.listed() for part in notebook["parts"]}
    for notebook in report.listed():
        path = ROOT / "notebooks" / f"{notebook['name']}.ipynb"
        source = "\n".join(cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code")
        named = set(re.findall(rf'"({notebook["name"]}-\w+)"', source))
        assert named and named <= listed


def test_a_table_is_read_as_it_was_written(tmp_path):
    columns = [Column("x", "a | b"), Column("y", "n", "+.1f")]
    table = Table(columns, [{"x": "*_<p> \\ | é", "y": -1.25}, {"x": "", "y": None}], "a note")
    table.save(tmp_path, "t")
    read = MarkdownTable.read(tmp_path / "t.md")
    assert (read.note, read.head, read.numeric) == ("a note", ["a | b", "n"], [False, True])
    assert read.body == table.cells()


def test_a_damaged_table_or_figure_is_named(tmp_path):
    (tmp_path / "t.md").write_text("| a | b |\n| --- | --- |\n| 1 |\n")
    (tmp_path / "f.png").write_bytes(b"GIF89a")
    with pytest.raises(ValueError, match="t.md: expected a Markdown table"):
        MarkdownTable.read(tmp_path / "t.md")
    with pytest.raises(ValueError, match="f.png: expected a PNG"):
        Figure.read(tmp_path / "f.png")


def test_figures_of_one_size_are_shown_in_one_size(tmp_path):
    for dpi in (150, 200, 300):
        (tmp_path / "f.png").write_bytes(png(7 * dpi, 2 * dpi, dpi))
        figure = Figure.read(tmp_path / "f.png")
        assert (figure.width, figure.height) == pytest.approx((805, 230), abs=1)


# ---- profiles --------------------------------------------------------------------------------------------------------


def test_the_smoke_profile_alone_carries_a_banner(made):
    params, folder = made
    report.write(params, folder)
    for page in pages(folder):
        assert "smoke" not in words(page).lower() and {"class": "banner", "role": "note"} not in page.all("p")
    write_table(folder / "tables", "main_results-spread", SMOKE)
    report.write(Params("smoke", params.rows, {}), folder)
    for page in pages(folder):
        banner = next(attributes for tag, attributes in page.elements if tag == "p")
        assert banner["class"] == "banner" and words(page).lower().count(SMOKE) >= 1
    assert words(Page(folder / "index.html")).count(SMOKE) == 2  # below the table that says so, and below the rows


def test_a_partial_report_shows_what_was_made_without_the_failed_rows(made):
    params, folder = made
    write_table(folder / "partial" / "tables", "main_results-spread")
    path = report.write(params, folder, partial=True)
    page = Page(path)
    assert path == folder / "partial" / "index.html" and not (folder / "index.html").exists()
    assert "Partial report." in words(page) and "tables/main_results-spread.md" in page.links()
    assert not any("main_results-table" in link for link in page.links())
    assert (folder / "partial" / "rows" / "b.html").is_file() and "rows/b.html" in page.links()


def test_the_command(made, tmp_path, monkeypatch, capsys):
    params, folder = made
    (tmp_path / "dvc.yaml").touch()
    lines = [f"  {name}: {{dataset: cifar10, model: vit, mask: gmm, seed: {row.seed}, set: {{kernels: 3}}}}\n"
             for name, row in params.rows.items()]  # fmt: skip
    (tmp_path / "params.yaml").write_text("profile: cpu\nrows:\n" + "".join(lines))
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "index.html")
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
  const seen = (selector) => [...inside.querySelectorAll(selector)].filter(shown).length;
  const first = inside.querySelector(".box td:first-child, .box tbody th:first-child");
  const box = first.closest(".box"); box.scrollLeft = 200;
  const stays = first.getBoundingClientRect().left - box.getBoundingClientRect().left;
  const told = {{found, wide: seen("td.wide"), idle: seen("tr.idle"), stays, scrolled: box.scrollLeft}};
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
    """A report with a wide figure and a wide table of which one row was run."""
    params, folder = made
    (folder / "figures" / "main_results-gains.png").write_bytes(png(1400, 500))
    names = ["data set", "attention", "ours: mean ± sd (n)", "parameters", "depth", "published", "once more"]
    ran = {names[0]: "CIFAR-10", names[1]: "GMM, shared by the heads", names[2]: "61.00 ± 1.00 (3)", "depth": 9}
    ran |= dict.fromkeys(names[-2:], 12345678.25)
    lines = [ran, ran | {names[2]: "not run", "depth": None}]
    Table([Column(name, name) for name in names], lines).save(folder / "tables", "main_results-table")
    (folder / "tables" / "main_results-gains.txt").write_text("Ours, after 5 passes. <b>GAB</b> +1.45.\n")
    return report.write(params, folder)


@pytest.mark.slow
def test_on_a_phone_nothing_is_wider_than_the_page_but_tables_that_scroll(made, tmp_path):
    path = wide_report(made)
    phone, desk = looks(path, tmp_path), looks(path, tmp_path, 1400)
    assert phone["found"] == [] and desk["found"] == []
    assert (phone["wide"], desk["wide"] > 0) == (0, True)  # columns of little use are left out
    assert phone["scrolled"] > 0 and phone["stays"] == pytest.approx(0, abs=1.5)  # the first column does not go
    assert phone["idle"] == desk["idle"] == 0  # behind "Show 1 row of which nothing was run"


def test_figures_shrink_to_the_page_and_tables_keep_their_first_column(made):
    """What the style sheet says, where there is no browser to ask."""
    css = re.search(r"(?s)<style>(.*?)</style>", Page(wide_report(made)).source)[1]
    desk, phone = css.split("@media (max-width: 40rem)")
    rules = {selector.strip(): rule for selector, rule in re.findall(r"([^{}]+)\{([^{}]*)\}", desk)}
    assert "max-width: 100%" in rules[".plate img"] and "max-width: 100%" in rules[".notebook img"]
    assert "position: sticky; left: 0;" in rules[".box th:first-child, .box td:first-child"]
    assert " local" in desk and " scroll," in desk  # the shade at an edge where a table goes on
    assert ".wide { display: none; }" in phone


def test_what_came_out_is_told_at_the_top_and_beside_its_figure(made):
    page = Page(wide_report(made))
    text = words(page)
    told = "Ours, after 5 passes. &lt;b&gt;GAB&lt;/b&gt; +1.45."
    assert text.count(told) == 2 and text.index(told) < text.index("1 of 4 done")
    assert "#main_results-gains-figure" in page.links() and "main_results-gains-figure" in page.ids


def test_rows_of_which_nothing_was_run_do_not_hide_ours(made):
    page = Page(wide_report(made))
    text = words(page)
    assert text.count("Show 1 row of which nothing was run") == 2  # of the table, and of all rows
    assert [attributes.get("class") for attributes in page.all("tr")].count("idle") == 2
    closed = [attributes["id"] for attributes in page.all("details")]
    assert "main_results-spread-table" in closed and "main_results-table-table" not in closed


def test_a_row_is_idle_when_its_columns_of_ours_are_empty():
    head = ["model", "published", "our gain", "ours: R²", "hours"]
    table = MarkdownTable("", head, [False] * 5, [["a", "1", "–", "not run", "2"], ["b", "1", "–", "failed", "2"]])
    assert table.idle == [True, False] and table.ran  # who reads "hours" is not told of ours
    assert MarkdownTable("", ["layer", "R²"], [False] * 2, [["1", "–"]]).idle == [False]
    arms = MarkdownTable("", ["data set", "CutMix"], [False] * 2, [["Pets", "not run"], ["CIFAR-10", "90.00 (1)"]])
    assert arms.idle == [True, False]
    assert not MarkdownTable("", head, [False] * 5, [["a", "1", "–", "not in this profile", "2"]]).ran
