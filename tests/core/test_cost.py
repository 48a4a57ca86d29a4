"""The cost of a model against the published numbers, and the table of published numbers itself."""

import pytest
import timm
import torch
import torch.nn as nn

from gmmvit.core.cost import cost
from gmmvit.models import create_model
from gmmvit.paper import published

# name, image size, classes, read-out: MACs by the paper's count, with the attention products (both in millions), depth.
COSTS = {
    ("vit", 32, 10, "mean"): (170.911, 184.62, 9),
    ("vit", 32, 10, "token"): (173.57, 187.72, 9),
    ("swin", 32, 10, "mean"): (236.931, 240.95, 12),
    ("cait", 32, 10, "token"): (305.897, 358.51, 26),
    ("pit", 32, 10, "token"): (239.079, 274.39, 12),
    ("t2t", 32, 10, "mean"): (417.421, 450.12, 13),
    ("vit", 64, 200, "mean"): (172.72, 186.42, 9),
    ("vit", 64, 200, "token"): (175.38, 189.52, 9),
    ("swin", 64, 200, "mean"): (237.89, 241.90, 12),
    ("cait", 64, 200, "token"): (306.91, 359.52, 26),
    ("pit", 64, 200, "token"): (240.04, 275.35, 12),
    ("t2t", 64, 200, "mean"): (462.65, 629.26, 14),
}
VARIANTS = {  # the paper's count in millions, mean read-out, 32 px and 10 classes
    "vit_d6": 196.25,
    "vit_d15": 160.26,
    "vit_d30": 80.41,
    "vit_d30_108": 180.33,
    "vit_d30_192": 568.32,
    "vit_d60": 160.60,
    "vit_wide": 1076.64,
    "vit_heat": 606.15,
    "vit_xs": 28.76,
}


@pytest.mark.parametrize(("name", "size", "classes", "readout"), COSTS)
def test_cost_of_the_backbones(name, size, classes, readout):
    model = create_model(name, size, classes, readout="mean" if name in ("cait", "pit") else readout)
    paper, full, depth = COSTS[name, size, classes, readout]
    measured = cost(model)
    assert measured.macs_paper / 1e6 == pytest.approx(paper, abs=0.02)
    assert measured.macs_full / 1e6 == pytest.approx(full, abs=0.006)
    assert measured.depth == depth
    assert measured.parameters == sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("name", VARIANTS)
def test_macs_of_the_depth_variants(name):
    assert cost(create_model(name)).macs_paper / 1e6 == pytest.approx(VARIANTS[name], abs=0.1)


@pytest.mark.parametrize("name", ["vit", "swin", "cait", "pit", "t2t"])
def test_the_published_columns_are_met(name):
    row = next(row for row in published.table("gmm_main")["rows"] if row["model"] == name)
    measured = cost(create_model(name))
    assert measured.macs_paper / 1e6 == pytest.approx(row["macs_M"], abs=0.1)
    assert round(measured.parameters / 1e6, 1) == row["parameters_M"]
    assert measured.depth == row["depth"]


def test_a_mask_costs_parameters_and_no_macs():
    plain, masked = cost(create_model("vit")), cost(create_model("vit", mask="gmm"))
    assert masked.parameters - plain.parameters == 2 * 5 * 12 * 9
    assert (masked.macs_paper, masked.macs_full, masked.depth) == (plain.macs_paper, plain.macs_full, plain.depth)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_any_timm_vit_by_the_closed_form(fused, frozen):
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=3, num_classes=5).requires_grad_(not frozen)
    for block in model.blocks:
        block.attn.fused_attn = fused
    n, d = 17, 192
    products = n * (3 * d * d + d * d + 2 * 4 * d * d)
    others = (3 * d + d + 4 * d + d) + n * 4 * d + 2 * n * d  # biases once, GELU, LayerNorm
    patches, head = 16 * d * 3 * 16 * 16, 5 * d
    measured = cost(model)
    assert measured.macs_paper == patches + 16 * d + 3 * (products + others) + n * d + head + 5
    assert measured.macs_full == patches + 3 * (products + 2 * n * n * d) + head
    assert measured.depth == 3
    assert measured.parameters == (0 if frozen else sum(p.numel() for p in model.parameters()))


def test_half_precision_and_larger_images():
    convolution = nn.Conv2d(3, 8, 3, padding=1, bias=False).bfloat16()
    assert cost(convolution, 16).macs_full == 8 * 3 * 9 * 16 * 16
    assert cost(convolution, (16, 32)).macs_paper == 8 * 3 * 9 * 16 * 32


def test_a_convolution_in_groups():
    assert cost(nn.Conv2d(3, 6, 3, groups=3), 10).macs_paper == 6 * 8 * 8 * (9 + 1)


def test_the_model_is_left_as_it_was():
    model = timm.create_model("levit_128s", num_classes=3).train()
    model.stages[0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}  # BatchNorm statistics among them
    modes = [module.training for module in model.modules()]
    with torch.no_grad():
        cost(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_failing_model_keeps_its_mode_and_no_hooks():
    model = create_model("vit").train()
    with pytest.raises(AssertionError):
        cost(model, 48)
    assert model.training and not any(module._forward_hooks for module in model.modules())


def test_a_model_that_does_not_tell_its_size():
    with pytest.raises(ValueError, match="img_size: expected a size in pixels, got None, and Conv2d does not tell"):
        cost(nn.Conv2d(3, 8, 3))


# ---- published numbers ---------------------------------------------------------------


@pytest.mark.parametrize("name", published.tables())
def test_every_published_table_has_its_source_and_whole_rows(name):
    table = published.table(name)
    assert all(isinstance(table[part], str) and table[part] for part in ("title", "source", "note"))
    assert table["rows"] and all(row.keys() == table["rows"][0].keys() for row in table["rows"])


def test_published_tables_agree_where_they_repeat_each_other():
    def accuracies(table, **which):
        [row] = [row for row in published.table(table)["rows"] if which.items() <= row.items()]
        return {key: row[key] for key in ("cifar10", "cifar100", "svhn", "tiny_imagenet")}

    assert accuracies("gmm_kernels", mask="none") == accuracies("gmm_main_first", mask="none")
    assert accuracies("gmm_kernels", kernels=5) == accuracies("gmm_main_first", mask="gmm")
    main, first = (accuracies(table, model="vit", mask="none") for table in ("gmm_main", "gmm_main_first"))
    assert {key for key in main if main[key] != first[key]} == {"cifar10"}  # the mixed row of erratum G1


def test_an_unknown_published_table():
    with pytest.raises(ValueError, match="unknown published table 'gmm_mian'.*nearest is 'gmm_main'"):
        published.table("gmm_mian")
