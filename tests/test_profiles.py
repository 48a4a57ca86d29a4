"""The profiles: whole params files, whose rows can be run and are named after their contents."""

import dataclasses
import subprocess
from pathlib import Path

import pytest

from gmmvit.checks import problems
from gmmvit.params import read
from gmmvit.plan import plan
from gmmvit.rows import row_name

ROOT = Path(__file__).parents[1]
PROFILES = {path.stem: read(path) for path in sorted((ROOT / "profiles").glob("*.yaml"))}
SEEDS = {0, 1, 2}
MAIN = {(model, mask) for model in ("vit", "swin", "cait", "pit", "t2t") for mask in ("none", "gmm")}
SIGMAS = {(1, 1), (3, 3), (10, 0), (30, 10)}  # and (10, 10), which is the mask's own
ALPHAS = {(0, 0.5), (0.2, 0), (1, 0.2)}  # and (0, 2)

each_profile = pytest.mark.parametrize("profile", PROFILES)


def arm(row):
    """A row without its seed and name."""
    return dataclasses.replace(row, seed=0, name="arm")


def arms(profile, **wanted):
    """The rows whose settings are exactly these, apart from those that all rows share."""
    shared = shared_settings(PROFILES[profile].rows)
    return [
        row
        for row in PROFILES[profile].rows.values()
        if {key: value for key, value in row.set.items() if key not in shared} == wanted
    ]


def shared_settings(rows):
    first, *others = rows.values()
    return {key for key, value in first.set.items() if all(row.set.get(key) == value for row in others)}


@each_profile
def test_a_row_is_named_after_the_profile_and_its_contents(profile):
    params = PROFILES[profile]
    assert params.profile == profile
    shared = shared_settings(params.rows)
    assert len({row.recipe for row in params.rows.values()}) == 1
    for name, row in params.rows.items():
        own = {key: value for key, value in row.set.items() if key not in shared}
        assert name == f"{profile}-{row_name(row.dataset, row.model, row.mask, row.seed, own)}".replace(".", "p")


@each_profile
def test_no_two_rows_are_the_same_and_their_data_sets_are_listed(profile):
    params = PROFILES[profile]
    contents = [repr(dataclasses.replace(row, name="row")) for row in params.rows.values()]
    assert len(set(contents)) == len(contents)
    assert sorted({row.dataset for row in params.rows.values()}) == sorted(params.rest["datasets"])


@each_profile
def test_every_row_can_be_run(profile):
    different = {repr(arm(row)): arm(row) for row in PROFILES[profile].rows.values()}
    assert {name: wrong for name, row in different.items() if (wrong := problems(row))} == {}


def committed(path):
    shown = subprocess.run(["git", "show", f"HEAD:{path}"], cwd=ROOT, capture_output=True)
    return shown.stdout if shown.returncode == 0 else pytest.skip(f"{path} has not been committed")


def test_smoke_is_the_profile_that_is_committed_as_params():
    assert committed("params.yaml") == committed("profiles/smoke.yaml")


@pytest.mark.parametrize("profile, datasets", [("cpu", 1), ("paper", 4)])
def test_the_main_grid_is_whole_with_three_seeds(profile, datasets):
    found = {}
    for row in arms(profile):
        found.setdefault((row.dataset, row.model, row.mask), set()).add(row.seed)
    grid = {key: seeds for key, seeds in found.items() if key[1:] in MAIN}
    assert len(grid) == datasets * len(MAIN) and set(map(frozenset, grid.values())) == {frozenset(SEEDS)}
    assert {mask for _, model, mask in found if model == "vit"} == {"none", "gmm", "elm", "gab"}
    assert {mask for _, model, mask in found if model == "vit_heat"} == {"none", "elm", "gmm"}


@pytest.mark.parametrize("profile, kernels", [("cpu", {1, 3, 10}), ("paper", {1, 2, 3, 4, 8, 10})])
def test_the_ablation_is_whole(profile, kernels):
    gmm = [row for row in PROFILES[profile].rows.values() if (row.model, row.mask) == ("vit", "gmm")]
    alone = [next(iter(row.set.items())) for row in gmm if len(row.set) == 1]
    for key, values in (("kernels", kernels), ("sigma_init", SIGMAS), ("alpha_init", ALPHAS)):
        assert {tuple(v) if isinstance(v, list) else v for k, v in alone if k == key} == values
    assert ("where", "probabilities") in alone and ("share_heads", True) in alone and ("readout", "token") in alone
    usual = profile == "paper"  # what the recipe does with sigma and alpha
    assert ("decay_masks", not usual) in alone


def test_the_cpu_profile_fits_into_a_day():
    assert plan(PROFILES["cpu"].rows).total.hours <= 24
