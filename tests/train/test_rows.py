"""Rows: their names, what their settings reach, and the models they build."""

import re

import torch

from gmmvit.core.masks import MASKS
from gmmvit.data import find
from gmmvit.train.checks import SAFE_NAME, check, problems
from gmmvit.train.rows import MODEL_OPTIONS, Row, mask_hints, recipe_hints, row_name, split_counts
from gmmvit.train.start import unmasked_model


def test_overrides_reach_recipe_mask_and_model():
    settings = {"epochs": 2, "lr": 1, "kernels": 3, "sigma_init": [10, 0], "share_heads": True, "readout": "token"}
    row = check(Row("cifar10-mini", "vit", "gmm", set=settings))
    assert (row.recipe_settings.epochs, row.recipe_settings.lr, row.recipe_settings.batch) == (2, 1.0, 128)
    assert type(row.recipe_settings.lr) is float
    assert row.mask_options == {"kernels": 3, "sigma_init": (10.0, 0.0), "share_heads": True}
    assert row.model_options == {"readout": "token"}
    model = unmasked_model(row)
    assert model.cls_token is not None and model.num_classes == 10


def test_masks_options_have_no_name_of_a_recipe_s_setting():
    for mask in MASKS:
        assert not set(mask_hints(mask)) & {*recipe_hints("short"), *MODEL_OPTIONS}
    own = {"kernels", "share_heads", "sigma_init", "alpha_init", "where", "underflow", "base"}
    assert set(mask_hints("gmm")) == own
    row = Row("cifar10", "vit", "gmm", set={"sigma_init": [1, 2]})
    assert row.mask_options == {"sigma_init": (1.0, 2.0)} and not problems(row)
    assert set(mask_hints("gab")) == {"share_heads", "amplitude", "sigma", "base"}


def test_pooled_sets_are_split_as_published():
    assert split_counts(find("caltech101")) == {"train": 6_400, "val": 1_371, "test": 1_371}
    assert split_counts(find("dogs")) == {"train": 14_405, "val": 3_087, "test": 3_087}  # 20,580 * 0.7 is below 14,406


def test_timm_models_are_built_for_the_data_set():
    for name in ("deit_tiny_patch16_224", "pvt_v2_b0"):  # one takes an image size, the other any image
        model = unmasked_model(check(Row("cifar10-mini", name)))
        assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_names_are_readable_stable_and_safe():
    assert row_name("cifar10", "vit", "gmm", 0, {}) == "cifar10-vit-gmm-s0"
    assert row_name("cifar10", "vit", "gmm", 0, {"kernels": 3}) == "cifar10-vit-gmm-kernels3-s0"
    assert row_name("cifar10", "vit", "gmm", 0, {}, recipe="gmm") == "cifar10-vit-gmm-gmm-s0"
    settings = {"share_heads": False, "lr": 1e-3, "alpha_init": [-1, 0.5], "readout": "token"}
    name = row_name("cifar10", "vit", "gmm", 2, settings)
    assert name == "cifar10-vit-gmm-alpha_init-1_0.5-lr0.001-readout_token-no_share_heads-s2"
    assert name == row_name("cifar10", "vit", "gmm", 2, dict(reversed(settings.items())))
    assert row_name("cifar10", "vit", set={"where": "a/b c"}) == "cifar10-vit-none-where_a_b_c-s0"
    close = {row_name("cifar10", "vit", set={"lr": lr}) for lr in (1e-3, 0.00100000001, 1, 1.0, 1e20)}
    assert len(close) == 4 and all(re.fullmatch(SAFE_NAME, name) for name in close)
