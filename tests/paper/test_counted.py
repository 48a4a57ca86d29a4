"""counted.json: of rows and backbones it says what a fresh count says, and it knows every row of the profiles."""

import json
from pathlib import Path

import pytest

from gmmvit.paper import backbones, counted, profiles
from gmmvit.train.rows import Row

ROOT = Path(__file__).parents[2]
RENEW = "python -m gmmvit.paper.counted writes it anew"
ROWS = [row for file in sorted((ROOT / "profiles").glob("*.yaml")) for row in profiles.read(file).rows.values()]


def counted_anew(rows):
    """The rows that a table and a fresh count of their models differ in."""
    return [counted.arm(row) for row in rows if counted.macs(row) != counted.count(row)]


def test_it_knows_the_rows_of_the_profiles_and_no_others():
    assert set(counted.rows()) == {counted.arm(row) for row in [Row("cifar10", "vit"), *ROWS]}, RENEW


def test_what_a_row_costs_is_what_its_model_costs():
    kinds = {row.model: row for row in ROWS if row.dataset == "cifar10-mini"}
    assert counted_anew([kinds[model] for model in ("vit_xs", "swin")]) == [], RENEW


@pytest.mark.slow
def test_so_it_is_with_every_model_of_the_profiles():
    kinds = {(row.model, row.kind, *row.model_options.values()): row for row in ROWS}
    assert counted_anew(kinds.values()) == [], RENEW


def test_a_row_that_is_not_known_is_counted_and_its_settings_tell_what_it_costs(monkeypatch):
    row = Row("ade20k-shapes", "swin_micro", recipe="ade20k-160k", set={"width": 16, "epochs": 3})
    wider = Row("ade20k-shapes", "swin_micro", recipe="ade20k-160k", set={"width": 32, "epochs": 3})
    assert counted.arm(row) not in counted.rows() and counted.macs(row) < counted.macs(wider)
    monkeypatch.setattr(counted, "rows", lambda: {counted.arm(row): 7})
    assert counted.macs(row) == 7
    assert counted.arm(Row("svhn", "vit", seed=1)) == counted.arm(Row("svhn", "vit", name="another"))
    assert len({counted.arm(Row("svhn", "vit", set={"epochs": epochs})) for epochs in (1, 2)}) == 2


def test_the_table_of_backbones_is_a_fresh_one():
    table = {line[0]: line for line in counted.backbones()}
    for line in backbones.costs(["vit_xs"]):
        assert table[line[0]] == list(line), RENEW


@pytest.mark.slow
def test_the_whole_table_of_backbones_is_a_fresh_one():
    assert counted.backbones() == json.loads(json.dumps(backbones.costs())), RENEW
