"""A training step on CUDA launches no more kernels and moves no more bytes than budget.json has: that may only fall."""

import json

import budget
import pytest
from pretend import backward_works, environment

ALLOWED = json.loads(budget.TABLE.read_text())
TELL = "python tests/budget.py > tests/budget.json"


@pytest.mark.pretend
@pytest.mark.parametrize(
    ("model", "mask"),
    [
        pytest.param(model, mask, marks=() if (model, mask) == ("vit", "gmm") else pytest.mark.slow)
        for model in budget.MODELS
        for mask in budget.MASKS
    ],
)
def test_a_step_stays_within_its_budget_and_uses_it(model, mask):
    if not backward_works():
        pytest.skip(environment()[1])
    counted = budget.total(budget.count(model, mask))
    for what, allowed in ALLOWED[model][mask].items():
        assert counted[what] <= allowed, f"{what}: more than before"
        assert counted[what] >= 0.99 * allowed, f"{what}: less than before; note it: {TELL}"
