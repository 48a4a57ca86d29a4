"""README and docs: their code runs, their commands and links lead somewhere, their numbers are those of the records."""

import json
import re
import shlex
import subprocess
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import gmmvit
from gmmvit.bench.harness import stock_speed
from gmmvit.cli import main, parser
from gmmvit.core.cost import cost
from gmmvit.paper import project, runs

ROOT = Path(__file__).parents[1]
PAGES = sorted(str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
STANDS_FOR = {"ROW": "smoke-cifar10-mini-vit-gmm-s0", "NAME": "cifar10"}  # words in capitals
MAKE = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.M)
DVC = ("commit", "config", "metrics", "params", "plots", "pull", "push", "repro", "stage")
RUN = [  # for real: what takes seconds and changes nothing
    ["data", "--check"],
    ["plan", "profiles/cpu.yaml"],
    ["results", "cpu"],
    ["models", "--attachable"],
    ["masks"],
]


def text(page):
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page, *languages):
    return [code for language, code in FENCE.findall(text(page)) if language in languages]


def commands(page):
    """The lines of shell of a page: of its blocks, and of what stands in backquotes."""
    lines = "".join(blocks(page, "sh", "")).replace("\\\n", " ").splitlines()
    lines += re.findall(r"`([^`\n]+)`", FENCE.sub("", text(page)))
    return [part.strip() for line in lines for part in re.split("; | > ", line.split(" #")[0])]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text(page))):
        if target.startswith("https://arxiv.org/abs/"):
            continue
        path, _, anchor = target.partition("#")
        found = ((ROOT / page).parent / path) if path else ROOT / page
        assert found.exists(), f"{page}: {target}"
        if anchor:
            heads = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}, target


def test_the_readme_is_one_that_is_read():
    assert len(text("README.md")) <= 7_000


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in text(page)])
def test_python_runs_as_it_stands(page, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    names = {"__name__": "__main__"}
    for code in blocks(page, "python"):
        exec(compile(code, page, "exec"), names)


@pytest.mark.parametrize("page", PAGES)
def test_shell_is_shell_and_names_what_there_is(page):
    for code in blocks(page, "sh"):
        checked = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
    for command in commands(page):
        words = [STANDS_FOR.get(word, word) for word in re.split(r"\s+", command)]
        if re.match(r"(make|gmmvit|dvc) [a-z]|(\S+ )*(python|torchrun .*) -m ", command):
            assert _known(words), f"{page}: {command}"


def _known(words):
    """Whether the words call something that there is."""
    if "-m" in words and words[0] != "gmmvit":
        module, rest = words[words.index("-m") + 1], words[words.index("-m") + 2 :]
        return find_spec(module) is not None and (module != "gmmvit" or _known(["gmmvit", *rest]))
    if words[0] == "make":
        return {word for word in words[1:] if re.fullmatch("[a-z]+", word)} <= set(MAKE)
    if words[0] == "dvc":
        return words[1] in DVC or words[1:3] == ["exp", "run"] or words[1:3] == ["remote", "add"]
    said = " ".join(words[1:]).split(" [")[0].replace("...", "").strip("'")
    if said == "bench":
        return True
    try:
        parser().parse_args(shlex.split(said))
    except SystemExit as refused:
        return not refused.code
    return True


def test_the_page_of_each_mask_is_that_of_the_registry():
    found = spec_from_file_location("mask_pages", ROOT / "docs" / "mask_pages.py")
    module = module_from_spec(found)
    found.loader.exec_module(module)
    for name in gmmvit.MASKS:
        assert text(f"docs/{name}.md") == module.page(name), "python docs/mask_pages.py"
        assert f"[`{name}`]({name}.md)" in text("docs/masks.md") and (ROOT / f"docs/images/{name}.png").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("words", RUN, ids=" ".join)
def test_commands_that_only_look_run(words, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert main(words) in (0, 1) and capsys.readouterr().out  # 1: a set is not here


def signed(value, digits=2):
    return f"{value:+.{digits}f}".replace("-", "−")


def test_the_table_of_claims_says_what_the_records_say():
    """Gains paired over the seeds, from the runs themselves, of arms whose three seeds were run."""
    from scipy import stats

    top1, published = {}, {"sigma_init": [10, 10], "alpha_init": [0, 2]}
    planned = project.rows("cpu").rows
    for run in runs.its_own(planned, runs.runs(ROOT / "reports/cpu")):
        row = run["row"]
        if (row["dataset"], row["model"]) == ("cifar10", "vit"):
            own = {key: value for key, value in row["set"].items() if key in published}
            top1[row["mask"] + ", as published" * (own == published), row["seed"]] = run["top1"]
    names = {"gmm": "GMM on ViT", "gmm, as published": "the same, begun", "elm": "ELM on the", "gab": "GAB on the"}
    for mask, name in names.items():
        (line,) = [line for line in text("README.md").splitlines() if line.startswith(f"| {name}")]
        if not all((arm, seed) in top1 for arm in (mask, "none") for seed in range(3)):
            assert "| – |" in line and "not run" in line, line
            continue
        gains = [top1[mask, seed] - top1["none", seed] for seed in range(3)]
        low, high = stats.t.interval(0.95, 2, sum(gains) / 3, stats.sem(gains))
        told = f"{signed(sum(gains) / 3)} [{signed(low)}, {signed(high)}]"
        assert f"| {told} |" in line, told


def test_the_table_of_starts_is_the_record():
    top1 = {}
    for path in sorted((ROOT / "reports/start/runs").glob("*/metrics.json")):
        metrics = json.loads(path.read_text())
        said = metrics["row"]["set"]
        start = said.get("start") or ("local" if "sigma_init" in said else metrics["row"]["mask"])
        top1.setdefault((start, said.get("mask_lr")), []).append(metrics["top1"])
    assert len(top1) == 10 and {len(seeds) for seeds in top1.values()} == {2}
    means = {cell: f"{sum(seeds) / 2:.1f}" for cell, seeds in top1.items()}
    for start, words in {"gmm": "of its paper", "neutral": "neutral", "local": "local"}.items():
        (line,) = [line for line in text("docs/training.md").splitlines() if line.startswith(f"| {words}:")]
        assert line.endswith(f"| {' | '.join(means[start, rate] for rate in (1, 10, 60))} |")
    assert f"Without a mask it is {means['none', None]}." in text("docs/training.md")


def test_the_hours_that_cpu_took_are_those_of_its_records():
    took = [json.loads(path.read_text())["seconds"] for path in (ROOT / "reports/cpu/runs").glob("*/timing.json")]
    hours = sum(took) / 2 / 3600  # two rows side by side
    assert f"| cpu | {len(took)} | 13.8; it took {hours:.1f}" in text("docs/pipeline.md")
    assert f"all {len(took)} took {hours:.1f} hours" in text("profiles/cpu.yaml")


def test_the_tables_of_overheads_are_the_record():
    record, page = json.loads((ROOT / "reports/bench/masks.json").read_text()), text("docs/costs.md")
    assert record["time"].keys() == gmmvit.MASKS.keys()
    for found in (record, *record["backbones"].values()):
        name, over = found["model"].removeprefix("gmmvit_"), found["time"]
        for mask in over:
            told = f"| {name} | {mask} | {found['images_per_second'][mask]:.0f} | {signed(100 * over[mask], 1)} % |"
            assert f"{told} {signed(100 * found['bytes'][mask], 1)} % |" in page, told
        without = found["images_per_second"][found["without"]]
        assert f"| {name} | none | {without:.0f} | ± {100 * found['spread']:.1f} % | |" in page


def test_the_table_of_speeds_is_the_record():
    record = json.loads((ROOT / "reports/bench/train.json").read_text())["backbones"]
    for name, found in record.items():
        speed, over, more = found["images_per_second"], found["over_stock"], found["over_ours"]
        arms = [f"{speed[arm]:.0f} | {over[arm]:.2f}" for arm in ("ours", "gmm")]
        costs = [f"{signed(100 * more[mask], 1)} %" for mask in ("gmm", "elm")]
        told = f"| {name} | {stock_speed(speed):.0f} | {' | '.join(arms)} | {' | '.join(costs)} |"
        told += f" ± {100 * found['spread']:.1f} % | {100 * found['share_of_peak']:.0f} % |"
        assert told in text("docs/costs.md"), f"{name}: {told}"


def test_the_sentences_on_costs_are_the_records():
    names = ("train", "masks-vit_relpos_small_patch16_224", "mix", "dense", "data")
    train, relpos, mix, dense, data = (json.loads((ROOT / f"reports/bench/{n}.json").read_text()) for n in names)
    timm = [train["backbones"][name]["timm_over_stock"]["timm"] for name in ("vit", "swin")]
    transmix = [signed(100 * mix["models"][name]["time"], 1) for name in ("gmmvit_vit", "deit_small_patch16_224")]
    page = " ".join(text("docs/costs.md").split())
    assert f"timm's own ViT and Swin of the same widths run at {timm[0]:.2f} and {timm[1]:.2f} times its speed" in page
    differ = f"(batch 64), where two equal steps differ by {100 * relpos['spread']:.1f} %"
    assert f"GAB adds {100 * relpos['time']['gab']:.1f} % to a training step {differ}" in page
    assert f"**TransMix** costs {transmix[0]} % (2.7 M ViT) and {transmix[1]} % (DeiT-S)" in page
    assert f"**GAB in Mask R-CNN** adds {100 * dense['time']['step']:.1f} % to a step" in page
    share, speed = data["share_of_a_step"]["gmm"], data["images_per_second_of_a_worker"]["gmm"]
    assert f"Augmenting takes {100 * share:.1f} % of a step" in page
    assert f"one core augments {round(speed, -2):,} CIFAR-10 images/s" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "swin", "cait", "pit", "t2t"])
def test_the_table_of_backbones_is_what_they_cost(name):
    plain, masked = (cost(gmmvit.create_model(name, mask=mask)) for mask in (None, "gmm"))
    (line,) = [each for each in text("docs/library.md").splitlines() if re.match(rf"\| {name}( \(|\s\|)", each)]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    macs = [f"{value / 1e6:.1f} M" for value in (plain.macs_paper, plain.macs_full)]
    assert [cells[1], cells[2]] == [f"{plain.parameters:,}", f"{masked.parameters:,}"]
    assert [cells[4], cells[6], cells[7]] == [*macs, str(plain.depth)]
