"""docs/gpu.md names settings that exist, and numbers that are those of the count."""

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gpu.md").read_text()
LINES = {"2.7 M ViT": "vit", "DeiT-S": "deit"}


def test_the_counted_columns_are_those_of_the_budget():
    counted = PAGE.split("<!-- counted")[1].split("<!-- end of counted")[0]
    budget, model, seen = json.loads((ROOT / "tests" / "budget.json").read_text()), "", 0
    for line in counted.splitlines():
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if name.startswith("+ ") or name.split(",")[0] in LINES:
            model = LINES.get(name.split(",")[0], model)
            expected = budget[model][name[2:].lower() if name.startswith("+ ") else "none"]
            assert cells[0] == f"{expected['kernels']:,}", f"{model}: {name}, of tests/budget.json: {expected}"
            assert cells[1] == f"{expected['gigabytes']:.1f}", f"{model}: {name}, of tests/budget.json: {expected}"
            seen += 1
    assert seen == sum(map(len, budget.values()))


def test_the_signals_and_settings_it_names_are_there():
    from gmmvit.train.recipes import Recipe

    for setting in re.findall(r"--set (\w+)=", PAGE):
        assert hasattr(Recipe, setting), setting
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert "gmmvit" in scripts and (ROOT / "gmmvit" / "core" / "ways.toml").exists()
