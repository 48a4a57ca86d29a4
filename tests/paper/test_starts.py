"""The cell that masks are trained in: where they begin and how fast they learn, and grids of such cells."""

from dataclasses import replace

import pytest
from frames import make

from gmmvit.paper import runs, starts
from gmmvit.train.layers import UNLEARNED

LOCAL = {"sigma_init": [2, 0.5], "alpha_init": [0.2, 0]}
STARTS = {"published": {}, "neutral": {"start": "neutral"}, "local": LOCAL}


def ran(*arms):
    """The frame of arms (rows by name, their accuracy, how far their masks moved or None)."""
    rows, found = {}, []
    for number, (alike, top1, moved) in enumerate(arms):
        for name, row in alike.items():
            name = f"{number}-{name}"
            rows[name] = replace(row, name=name)
            learned = {} if moved is None else {"moved": moved, "learned": moved >= 0.01}
            found.append({"row": vars(rows[name]), "top1": top1 + row.seed * (1 + 0.1 * number), **learned})
    return runs.of(rows, found)


def arm(top1, moved=None, mask="gmm", seeds=(0, 1), **settings):
    return make(mask, seeds, model="vit_xs", **settings), top1, moved


@pytest.fixture(scope="module")
def grid():
    """The profile `start`, run: masks move as far as their rate."""
    cells = [
        arm(59.0 + rate / 10 + (name == "local"), rate / 200, mask_lr=rate, **start)
        for name, start in STARTS.items()
        for rate in (1, 10, 60)
    ]
    return ran(arm(60.0, mask="none"), *cells)


def test_every_cell_is_a_line_and_says_where_masks_did_not_learn(grid):
    lines = starts.rates(grid)
    cells = [line[2:] for line in starts.rates_table(lines).cells()]
    assert [(line[0].split(" (")[0], line[1]) for line in cells] == [
        ("no mask", "–"),
        *[(name, rate) for name in STARTS for rate in ("1", "10", "60")],
    ]
    assert {line[1] for line in cells if line[2].endswith(UNLEARNED)} == {"1"}
    assert cells[0][2:] == ["60.50 ± 0.71 (2)", "–", "–"] and cells[3][4] == "0.300 ± 0.000 (2)"
    assert starts.rates_found(lines).startswith(f"In 3 of 9 cells the masks {UNLEARNED}: published (sigma 10 ± 10")
    assert "The highest accuracy is that of local (sigma 2 ± 0.5, alpha 0.2 ± 0), rate 60: 66.9" in starts.rates_found(
        lines
    )


def test_one_rate_is_no_grid(grid):
    one = grid[[row.set.get("mask_lr") != 1 and row.set.get("mask_lr") != 10 for row in grid.row]]
    assert starts.rates(one).empty and not starts.rates_table(starts.rates(one)) and not starts.rates_found(one[:0])


def test_a_cell_is_the_one_that_most_rows_are_in(grid):
    frozen = arm(1.0, 0.0, freeze_masks=True, seeds=range(9))
    frame = ran(arm(1.0, 0.5, mask_lr=60, **LOCAL), arm(1.0, 0.5, seeds=(0,)), arm(1.0, mask="none"), frozen)
    assert starts.usual(frame) == {
        "gmm": {"mask_lr": 60, "sigma_init": (2.0, 0.5), "alpha_init": (0.2, 0.0)},
        "none": {},
    }
    assert starts.told(frame) == (
        "Masks learn at 60 times the rate of the weights; where GMM begins: local (sigma 2 ± 0.5, alpha 0.2 ± 0)."
    )
    assert starts.told(frame[frame["mask"] == "none"]) == ""


def test_sigma_is_crossed_with_alpha_where_both_were_varied_together(grid):
    pairs = [(sigma, alpha) for sigma in ([1, 0], [3, 1], None) for alpha in ([0.2, 0], [0, 0.5], None)]
    settings = [{"sigma_init": sigma, "alpha_init": alpha} for sigma, alpha in pairs]
    arms = [
        arm(60.0 + number, 0.5 if number else 0.0, seeds=(0,), **{key: pair for key, pair in each.items() if pair})
        for number, each in enumerate(settings)
    ]
    table = starts.crossed_table(ran(*arms, arm(1.0, mask="none"), arm(1.0, 0.5, kernels=3)))
    assert [column.title for column in table.columns][3:] == [
        "sigma begins: mean ± sd", "alpha 0 ± 0.5", "alpha 0 ± 2", "alpha 0.2 ± 0",
    ]  # fmt: skip
    assert [line[3:] for line in table.cells()] == [
        ["1 ± 0", "61.00 (1)", "62.00 (1)", f"60.00 (1), {UNLEARNED}"],
        ["3 ± 1", "64.00 (1)", "65.00 (1)", "63.00 (1)"],
        ["10 ± 10", "67.00 (1)", "68.00 (1)", "66.00 (1)"],
    ]
    one_at_a_time = [each for each, pair in zip(arms, pairs, strict=True) if None in pair]
    assert not starts.crossed_table(ran(*one_at_a_time)) and not starts.crossed_table(grid)
