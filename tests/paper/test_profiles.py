"""The profiles: grids whose rows can be run, are named after their contents, and are the ones that were planned."""

import dataclasses
import itertools
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from gmmvit.paper import ablation, gab, gmm, kernels, priors, project, runs, starts, transmix
from gmmvit.paper import dense as dense_paper
from gmmvit.paper.plan import plan
from gmmvit.paper.profiles import read
from gmmvit.train.checks import problems
from gmmvit.train.rows import Row, row_name

ROOT = Path(__file__).parents[2]
PROFILES = {path.stem: read(path) for path in sorted((ROOT / "profiles").glob("*.yaml"))}
SEEDS = {0, 1, 2}
MAIN = {(model, mask) for model in ("vit", "swin", "cait", "pit", "t2t") for mask in ("none", "gmm")}
SIGMAS = {(1, 1), (3, 3), (10, 0), (30, 10)}  # and (10, 10), which is the mask's own
ALPHAS = {(0, 0.5), (0.2, 0), (1, 0.2)}  # and (0, 2)

LOCAL, OWN = {"sigma_init": [2, 0.5], "alpha_init": [0.2, 0]}, {"sigma_init": [3, 2], "alpha_init": [1, 1]}
OF_MASKS = {"cpu": {"mask_lr": 10, **LOCAL}}  # what a profile's default says of masks, and names leave out

each_profile = pytest.mark.parametrize("profile", PROFILES)

TABLES = (  # what makes a table of rows, in the notebooks
    *(gmm.main_arms, starts.cells, priors.arms),
    *(kernels.arms, ablation.initialisations, ablation.others, ablation.depths),
    *(lambda rows: gab.heads(gab.arms(rows)), lambda rows: gab.sizes(gab.arms(rows))),
    *(transmix.comparisons, dense_paper.arms),
)
FITTED = {"paper-tiny-imagenet-vit_heat-elm-s0"}  # a mask that motivation.ipynb fits mixtures to


def arm(row):
    """A row without its seed and name."""
    return dataclasses.replace(row, seed=0, name="arm")


def arms(profile, **wanted):
    """The rows whose settings are exactly these, apart from those that all rows on their data set share."""
    return [row for row in PROFILES[profile].rows.values() if own_settings(row, profile) == wanted]


def own_settings(row, profile):
    """The settings of a row that not all rows on its data set have, without what the default says of masks."""
    alike = [other.set for other in PROFILES[profile].rows.values() if other.dataset == row.dataset]
    own = {key: value for key, value in row.set.items() if any(key not in each or each[key] != value for each in alike)}
    return {key: value for key, value in own.items() if OF_MASKS.get(profile, {}).get(key) != value}


@each_profile
def test_every_row_stands_in_a_table(profile):
    """Else it is trained in vain, and nobody misses it."""
    rows = runs.frame(profile)
    shown = {row.name for table in TABLES for row in table(rows).row}
    assert set(PROFILES[profile].rows) - shown <= FITTED


@each_profile
def test_a_row_is_named_after_the_profile_and_its_contents(profile):
    params = PROFILES[profile]
    assert params.profile == profile
    recipes = {}
    for row in params.rows.values():
        recipes.setdefault(row.dataset, set()).add(row.recipe)
    for name, row in params.rows.items():
        recipe = row.recipe if len(recipes[row.dataset]) > 1 else "short"  # where all share one it is left out
        contents = row_name(row.dataset, row.model, row.mask, row.seed, own_settings(row, profile), recipe)
        assert name == re.sub(r"(?<=\d)\.(?=\d)", "p", f"{profile}-{contents}").replace(".", "_")


@each_profile
def test_no_two_rows_are_the_same_and_their_data_sets_are_listed(profile):
    params = PROFILES[profile]
    contents = [repr(dataclasses.replace(row, name="row")) for row in params.rows.values()]
    assert len(set(contents)) == len(contents)
    for key, kinds in (("datasets", {"classification"}), ("dense_datasets", {"detection", "segmentation"})):
        used = {row.dataset for row in params.rows.values() if row.kind in kinds}
        assert sorted(used) == sorted(params.rest[key])


@pytest.mark.slow
@each_profile
def test_every_row_can_be_run(profile):
    different = {repr(arm(row)): arm(row) for row in PROFILES[profile].rows.values()}
    assert {name: wrong for name, row in different.items() if (wrong := problems(row))} == {}


def committed(path):
    shown = subprocess.run(["git", "show", f"HEAD:{path}"], cwd=ROOT, capture_output=True)
    return shown.stdout if shown.returncode == 0 else pytest.skip(f"{path} has not been committed")


def test_smoke_is_the_profile_that_is_committed_as_params(tmp_path):
    (tmp_path / "smoke.yaml").write_bytes(committed("profiles/smoke.yaml"))
    assert committed("params.yaml").decode() == project.params_of(tmp_path / "smoke.yaml")


COUNTS = {  # rows by profile and recipe, counted by hand: arms x data sets x seeds
    ("smoke", "smoke"): 32,
    ("smoke", "coco-shapes"): 2,
    ("smoke", "ade20k-shapes"): 2,
    ("start", "short"): 2 * (1 + 3 * 3),
    # (a), (b) with two starts of the weights, (c), (i), (j); (d), (e), (f), (g); the third seed of one of (d); (h)
    ("cpu", "short"): 3 * (6 + 15 + 2 + 5 + 3 + 5) + 2 * (9 + 8 + 3 + 16) + 1 + 8,
    # main table, read-outs, shared heads, ELM and GAB, kernels on four data sets; underflow; the rest of the ablation;
    # depth; heat maps; the position MLP and mixing on two data sets
    ("paper", "gmm"): 3 * (4 * (10 + 2 + 1 + 2 + 6) + 2 + (4 + 3) + (1 + 4 + 3) + 1 + 12 + 2 * 3 + 2 * 20) + 3,
    ("paper", "gab-finetune"): 3 * 4 * (4 + 2 + 2),
    ("paper", "gab-imagenet"): 3 * 6,
    ("paper", "deit-transmix"): 4,
    ("paper", "coco-3x"): 2,
    ("paper", "ade20k-160k"): 2,
}


def test_the_grids_have_as_many_rows_as_were_planned():
    found = Counter((name, row.recipe) for name, params in PROFILES.items() for row in params.rows.values())
    assert found == COUNTS
    assert {name: len(params.rows) for name, params in PROFILES.items()} == {
        "smoke": 36,
        "start": 20,
        "cpu": 189,
        "paper": 605,
    }


SPOTS = {  # what a row is trained with: of its recipe (all that is named), its mask and its start
    "smoke-cifar10-mini-vit_xs-gmm-sigma_init10_0-s0": {
        "recipe": {"epochs": 1, "epoch_steps": 5, "warmup_epochs": 0.2, "batch": 128, "lr": 1e-3, "final_lr": 1e-5}
        | {"drop_path": 0.0},
        "mask": {"sigma_init": (10.0, 0.0)},
    },
    "smoke-coco-shapes-swin_micro-gab-s0": {
        "recipe": {"epochs": 2, "epoch_steps": 10, "batch": 4, "lr": 2e-3, "milestones": (4,), "warmup_steps": 25}
        | {"width": 64, "regions": 64, "drop_path": 0.0, "final_lr": 1e-6, "precision": "bfloat16", "short": 800},
    },
    "smoke-ade20k-shapes-swin_micro-none-s0": {
        "recipe": {"epochs": 2, "epoch_steps": 10, "batch": 8, "lr": 4e-4, "warmup_steps": 40, "width": 64}
        | {"drop_path": 0.0, "weight_decay": 0.01, "warmup_start": 1e-6},
    },
    "cpu-cifar10-vit_xs-temperature-epochs7-freeze_masks-init0_4p7-s2": {
        "recipe": {"epochs": 7, "freeze_masks": True, "mask_lr": 10, "fraction": 1},
        "mask": {"init": (0.0, 4.7)},
    },
    "start-cifar10-vit_xs-gmm-alpha_init0p2_0-mask_lr10-sigma_init2_0p5-s1": {
        "recipe": {"epochs": 5, "mask_lr": 10, "freeze_masks": False},
        "mask": {"sigma_init": (2.0, 0.5), "alpha_init": (0.2, 0.0)},
    },
    "cpu-cifar10-vit_xs-none-cutmix1-mixup0p8-readout_token-switch_prob0p8-transmix-s2": {
        "recipe": {"epochs": 5, "mixup": 0.8, "cutmix": 1.0, "switch_prob": 0.8, "mix_prob": 1.0, "transmix": True},
        "model": {"readout": "token"},
    },
    "paper-cifar10-vit-gmm-alpha_init0p2_0-no_decay_masks-s1": {
        "recipe": {"epochs": 100, "passes": 3, "decay_masks": False, "decay_all": True, "mixup": 1.0, "mix_prob": 0.5},
        "mask": {"alpha_init": (0.2, 0.0)},
    },
    "paper-dogs-vit_relpos_small_patch16_224-gab-reset_positions-no_share_heads-s2": {
        "recipe": {"epochs": 200, "optimizer": "sgd", "lr": 0.01, "select": "validation"},
        "mask": {"share_heads": False},
        "start": {"pretrained": True, "reset_positions": True},
    },
    "paper-imagenet-deit_base_patch16_224-none-deit-transmix-no_transmix-warmup_epochs5-weight_decay0p05-s0": {
        "recipe": {"epochs": 300, "weight_decay": 0.05, "warmup_epochs": 5.0, "transmix": False, "batch": 1024},
    },
    "paper-ade20k-swin_small_patch4_window7_224_ms_in1k-gab-s0": {
        "recipe": {"epochs": 10, "epoch_steps": 16_000, "batch": 16, "lr": 6e-5, "width": 512, "drop_path": 0.3},
        "start": {"pretrained": True},
    },
}


@pytest.mark.parametrize("name", SPOTS)
def test_a_row_of_a_grid_is_trained_with_these_settings(name):
    row, wanted = PROFILES[name.partition("-")[0]].rows[name], {"model": {}, "mask": {}, "start": {}} | SPOTS[name]
    recipe = dataclasses.asdict(row.recipe_settings)
    assert {key: recipe[key] for key in wanted["recipe"]} == wanted["recipe"]
    found = {"model": row.model_options, "mask": row.mask_options, "start": row.start_options}
    assert found == {key: wanted[key] for key in found}


GRID = """\
profile: x
threads: 2
arms:
  default: {dataset: cifar10, model: vit, mask: gmm, seed: [0, 1]}
  masks: {mask: [none, gmm]}
  sigma: {sigma_init: [[10, 0], [1, 1.5]], seed: 3}
  shapes: {dataset: coco-shapes, model: swin_micro, recipe: coco-shapes, mask: gab, seed: 0}
"""


def written(tmp_path, text):
    (tmp_path / "x.yaml").write_text(text)
    return tmp_path / "x.yaml"


def test_a_grid_is_every_combination_and_what_it_prints_reads_the_same(tmp_path):
    grid = read(written(tmp_path, GRID))
    assert list(grid.rows) == [
        *("x-cifar10-vit-none-s0", "x-cifar10-vit-none-s1", "x-cifar10-vit-gmm-s0", "x-cifar10-vit-gmm-s1"),
        *("x-cifar10-vit-gmm-sigma_init10_0-s3", "x-cifar10-vit-gmm-sigma_init1_1p5-s3"),
        "x-coco-shapes-swin_micro-gab-s0",
    ]
    assert grid.rows["x-cifar10-vit-gmm-sigma_init1_1p5-s3"] == Row(
        "cifar10", "vit", "gmm", "short", 3, {"sigma_init": [1, 1.5]}, "x-cifar10-vit-gmm-sigma_init1_1p5-s3"
    )
    assert (grid.threads, grid.rest["datasets"], grid.rest["dense_datasets"]) == (2, ["cifar10"], ["coco-shapes"])
    printed = tmp_path / "params.yaml"
    printed.write_text(project.params_of(tmp_path / "x.yaml"))
    assert "arms" not in printed.read_text() and read(printed) == grid


def test_what_the_default_says_of_masks_is_said_of_those_that_can_have_it_and_left_out_of_names(tmp_path):
    default = "seed: 0, mask_lr: 60, sigma_init: [[2, 0.5]]}"
    grid = GRID.replace("seed: [0, 1]}", default).replace("[none, gmm]}", "[none, gmm, elm]}\n  slow: {mask_lr: 1}")
    rows = read(written(tmp_path, grid)).rows
    assert {name.removeprefix("x-cifar10-vit-"): row.set for name, row in rows.items() if row.model == "vit"} == {
        "none-s0": {},
        "gmm-s0": {"mask_lr": 60, "sigma_init": [2, 0.5]},
        "elm-s0": {"mask_lr": 60},
        "gmm-mask_lr1-s0": {"mask_lr": 1, "sigma_init": [2, 0.5]},
        "gmm-sigma_init10_0-s3": {"sigma_init": [10, 0], "mask_lr": 60},
        "gmm-sigma_init1_1p5-s3": {"sigma_init": [1, 1.5], "mask_lr": 60},
    }
    with pytest.raises(ValueError, match="arms: expected each row once, got x-cifar10-vit-gmm-s0 twice"):
        read(written(tmp_path, grid.replace("mask_lr: 1}", "mask_lr: 60}")))


@pytest.mark.parametrize(
    "old, new, told",
    [
        ("{mask: [none, gmm]}", "[none]", "arms: expected settings by name in each arm, got"),
        ("{mask: [none, gmm]}", "{mask: [gmm, gmm]}", "arms: expected each row once, got x-cifar10-vit-gmm-s0 twice"),
        ("mask: [none, gmm]", "mask: [none, [gmm]]", "arms: masks has 1 problem:\nmask: expected a text, got ['gmm']"),
        ("dataset: cifar10", "dataste: cifar10", "dataset: expected a name, got nothing"),
        ("seed: 3", f"seed: {list(range(200))}, lr: {list(range(200))}", "expected at most 20,000 rows in sigma"),
        ("profile: x", "profile: ../x", "profile: expected letters"),
        ("profile: x\n", "", "profile: expected a name, got None"),
        ("arms:", "arms: []\nold:", "arms: expected settings by name"),
    ],
)
def test_a_bad_grid_is_refused_in_a_sentence(tmp_path, old, new, told):
    assert old in GRID
    with pytest.raises(ValueError, match=re.escape(told)):
        read(written(tmp_path, GRID.replace(old, new)))


def block(model, **wanted):
    """{mask: seeds} of the rows of a model in the profile cpu with these settings and no others, and their epochs."""
    found, epochs = {}, set()
    for row in PROFILES["cpu"].rows.values():
        own = {key: value for key, value in row.set.items() if key not in ("epochs", "mask_lr")}
        if row.model == model and own == {"gmm": LOCAL, "gmb": OWN}.get(row.mask, {}) | wanted:
            assert row.mask == "none" or row.set["mask_lr"] == 10  # one cell of profiles/start.yaml throughout
            found.setdefault(row.mask, set()).add(row.seed)
            epochs.add(row.recipe_settings.epochs)
    return found, epochs


def test_the_cpu_grid_is_the_one_that_was_asked_for():
    def three(*masks):
        return dict.fromkeys(masks, SEEDS)

    priors = ("temperature", "diagonal", "alibi", "slope", "manhattan", "kerple", "relbias", "relmlp", "gpsa", "rope")
    papers = ("none", "gmm", "elm", "gab", "gmb")
    assert block("vit") == (three(*papers), {5})
    assert block("vit_xs") == (three(*papers, *priors), {7})
    assert block("vit_xs", freeze_masks=True) == (three("gmm", "gab"), {7})
    for init in ([0, 4.7], [0, 0]):
        assert block("vit_xs", init=init, freeze_masks=True) == (three("temperature"), {7})
    for weights in ("mimetic", "impulse"):
        assert block("vit_xs", init_weights=weights) == (three("none"), {7})
    two = {"gmm": {0, 1}}, {7}
    for sigma, alpha in itertools.product(([1, 0], [3, 1], [10, 10]), ([0.2, 0], [0, 0.5], [0, 2])):
        paper = (sigma, alpha) == ([10, 10], [0, 2])
        assert block("vit_xs", sigma_init=sigma, alpha_init=alpha) == ((three("gmm"), {7}) if paper else two)
    published = {"sigma_init": [10, 10], "alpha_init": [0, 2]}
    assert block("vit", **published) == (three("gmm"), {5})
    assert block("vit_xs", **published, freeze_masks=True) == (three("gmm"), {7})
    for settings in ({"where": "probabilities"}, {"share_heads": True}, {"decay_masks": True}):
        assert block("vit_xs", **settings) == two
    for count, height in ((1, 1), (2, 0.5), (3, 0.333), (10, 0.1)):
        assert block("vit_xs", kernels=count) == ({"gmb": {0, 1}}, {7})
        assert block("vit_xs", kernels=count, alpha_init=[height, 0]) == two
    for share in (0.01, 0.05, 0.1, 0.5):
        masks = dict.fromkeys(("none", "gmm", "gab", "gmb"), {0, 1})
        assert block("vit_xs", fraction=share) == (masks, {7})
    for model in ("swin", "cait", "pit", "t2t"):
        assert block(model) == ({"none": {0}, "gmm": {0}}, {2})
    assert block("vit_relpos") == (three("none", "gab"), {2})
    assert block("vit_relpos", share_heads=False) == (three("gab"), {2})
    assert block("vit_xs", readout="token") == (three("none"), {5})


def test_the_grid_of_starts_is_every_rate_by_every_start():
    found = {}
    for row in PROFILES["start"].rows.values():
        start = row.attached["start"], row.mask_options.get("sigma_init"), row.mask_options.get("alpha_init")
        found.setdefault((row.mask, start), set()).add((row.set.get("mask_lr"), row.seed))
    local = ("paper", (2.0, 0.5), (0.2, 0.0))
    assert found.pop(("none", ("paper", None, None))) == {(None, 0), (None, 1)}
    assert found == {
        ("gmm", start): set(itertools.product((1, 10, 60), (0, 1)))
        for start in (("paper", None, None), ("neutral", None, None), local)
    }


@pytest.mark.parametrize("profile, datasets", [("paper", 4)])
def test_the_main_grid_is_whole_with_three_seeds(profile, datasets):
    found = {}
    for row in arms(profile):
        found.setdefault((row.dataset, row.model, row.mask), set()).add(row.seed)
    grid = {key: seeds for key, seeds in found.items() if key[1:] in MAIN}
    assert len(grid) == datasets * len(MAIN) and set(map(frozenset, grid.values())) == {frozenset(SEEDS)}
    assert {mask for _, model, mask in found if model == "vit"} == {"none", "gmm", "elm", "gab"}
    assert {mask for _, model, mask in found if model == "vit_heat"} == {"none", "elm", "gmm"}


@pytest.mark.parametrize("profile, kernels", [("paper", {1, 2, 3, 4, 8, 10})])
def test_the_ablation_is_whole(profile, kernels):
    gmm = [row for row in PROFILES[profile].rows.values() if (row.model, row.mask) == ("vit", "gmm")]
    alone = [next(iter(row.set.items())) for row in gmm if len(row.set) == 1]
    for key, values in (("kernels", kernels), ("sigma_init", SIGMAS), ("alpha_init", ALPHAS)):
        assert {tuple(v) if isinstance(v, list) else v for k, v in alone if k == key} == values
    assert ("where", "probabilities") in alone and ("share_heads", True) in alone and ("readout", "token") in alone
    usual = profile == "paper"  # what the recipe does with sigma and alpha
    assert ("decay_masks", not usual) in alone


@pytest.mark.parametrize("profile, datasets", [("smoke", 1), ("cpu", 1), ("paper", 2)])
def test_gaussian_bias_is_compared_head_shared_and_head_wise(profile, datasets):
    found = {}
    for row in PROFILES[profile].rows.values():
        if row.model == "vit_relpos":
            found.setdefault((row.dataset, row.mask, row.mask_options.get("share_heads", True)), set()).add(row.seed)
    assert {key[1:] for key in found} == {("none", True), ("gab", True), ("gab", False)}
    assert len(found) == 3 * datasets and set(map(frozenset, found.values())) == {
        frozenset({0} if profile == "smoke" else SEEDS)
    }


def test_the_paper_profile_fine_tunes_in_the_papers_arms_and_the_one_it_leaves_out():
    found = {}
    for row in PROFILES["paper"].rows.values():
        if row.recipe == "gab-finetune":
            assert row.start_options["pretrained"] is True
            size = row.model.split("_")[2]
            kind = row.mask, row.mask_options.get("share_heads", True), row.start_options.get("reset_positions", False)
            found.setdefault((row.dataset, size), {}).setdefault(kind, set()).add(row.seed)
    both = {("none", True, True), ("gab", True, True)}
    small = both | {("none", True, False), ("gab", False, True)}
    assert {dataset for dataset, _ in found} == {"pets", "caltech101", "cars", "dogs"} and len(found) == 12
    for (_, size), kinds in found.items():
        assert set(kinds) == (small if size == "small" else both) and all(seeds == SEEDS for seeds in kinds.values())


@pytest.mark.parametrize("profile, groups", [("cpu", {("cifar10", "vit_xs", "none")}), ("paper", None)])
def test_mixing_is_compared_under_one_recipe(profile, groups):
    groups = groups or {
        (d, model, mask) for d in ("cifar10", "cifar100") for model in ("vit", "cait") for mask in ("none", "gmm")
    }
    for dataset, model, mask in groups:
        found = {}
        for row in PROFILES[profile].rows.values():
            read = row.model_options.get("readout") == "token" or model == "cait"
            if (row.dataset, row.model, row.mask) == (dataset, model, mask) and read:
                mixing = row.recipe_settings
                if mixing.mix_prob == 1.0 or not mixing.mixes:
                    kind = mixing.mixup, mixing.cutmix, mixing.transmix
                    others = dataclasses.replace(mixing, mixup=0, cutmix=0, mix_prob=1, switch_prob=0, transmix=False)
                    found.setdefault(kind, set()).add((row.seed, repr(others), str(row.mask_options)))
        plain = {each for each in found[0, 0, False] if each[2] == "{}"}  # others vary their mask
        assert len({settings for _, settings, _ in plain}) == 1
        assert set(found) == {(0, 0, False), (0.8, 0, False), (0, 1, False), (0.8, 1, False), (0.8, 1, True)}
        for kind, arms in found.items():
            assert plain == (arms if kind != (0, 0, False) else plain), kind


def test_the_paper_profile_has_table_4_as_published_and_smoke_both_heads_in_both_arms():
    dense = {name: [row for row in PROFILES[name].rows.values() if row.kind != "classification"] for name in PROFILES}
    arms = {"none", "gab"}
    assert not dense["cpu"]
    for name, datasets in (("paper", ("coco", "ade20k")), ("smoke", ("coco-shapes", "ade20k-shapes"))):
        assert {(row.dataset, row.mask) for row in dense[name]} == {(d, mask) for d in datasets for mask in arms}
    rows = dense_paper.arms(runs.of({row.name: row for row in dense["paper"]}, []))
    assert len(rows) == 4
    states = [line[f"{which}_state"] for line in dense_paper.table_4(rows).lines for which in ("without", "with")]
    assert states == ["not run"] * 8  # each has its row


def test_the_cpu_profile_fits_into_fourteen_hours_and_its_starts_into_three_quarters_of_one():
    """At 360 images/s of the plain vit, which two cores train; at the plan's own 350 too."""
    assert plan(PROFILES["cpu"].rows, 350).total.hours <= 14
    assert plan(PROFILES["start"].rows, 360).total.hours <= 0.75
