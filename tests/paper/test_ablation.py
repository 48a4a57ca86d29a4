"""The GMM paper's ablations: which rows are which arm, and what stands beside them."""

import pytest
from frames import frame, make, ran

from gmmvit.paper import ablation, charts, kernels


def arms(rows):
    found = rows.assign(panel=rows.group.str.split(":").str[0]).groupby(["panel", "label", "series"])
    return {keys: alike.top1.to_list() for keys, alike in found}


def test_initial_values_are_arms_with_and_without_decay():
    found = arms(ablation.initialisations(ran(
        {},
        {"seed": 1, "sigma_init": [10, 10]},  # the default, spelt out
        {"sigma_init": [3, 3]},
        {"sigma_init": [3, 3], "decay_masks": True},
        {"alpha_init": [0.2, 0]},
        {"alpha_init": [0, 0.5], "kernels": 3},  # differs in two respects
        {"recipe": "gmm", "seed": 2},
    )))  # fmt: skip
    plain, decayed = "not decayed", "sigma and alpha decayed"
    assert found == {
        ("initial sigma", "3, 3", plain): [52.0],
        ("initial sigma", "3, 3", decayed): [53.0],
        ("initial sigma", "10, 10", plain): [50.0, 51.0],
        ("initial sigma", "10, 10", decayed): [56.0],
        ("initial alpha", "0, 2", plain): [50.0, 51.0],
        ("initial alpha", "0, 2", decayed): [56.0],
        ("initial alpha", "1/K, 0", plain): [54.0],
    }


def test_other_arms_and_their_published_numbers():
    lines = ablation.others(ran(
        {},
        {"mask": "none"},
        {"mask": "none", "readout": "token"},
        {"mask": "elm"},
        {"share_heads": True},
        {"where": "probabilities"},
        {"decay_masks": True},
    ))  # fmt: skip
    assert arms(lines) == {
        ("mask", "plain", ""): [51.0],
        ("mask", "ELM", ""): [53.0],
        ("mask", "GMM, shared by the heads", ""): [54.0],
        ("mask", "GMM, one for each head", ""): [50.0],
        ("place of the mask", "before the softmax", ""): [50.0],
        ("place of the mask", "after the softmax", ""): [55.0],
    }
    shown = {line[3]: line[5] for line in ablation.arms_table(lines).cells()}
    assert shown == {
        "plain": "94.17",
        "ELM": "not established",
        "GMM, shared by the heads": "94.75",
        "GMM, one for each head": "95.06",
        "before the softmax": "not established",
        "after the softmax": "not established",
    }


def test_depths_are_plain_and_masked():
    found = arms(ablation.depths(ran({}, {"mask": "none", "model": "vit_d15"}, {"model": "vit_d30_108"})))
    panel = "depth, width"
    assert found == {
        (panel, "9, 192", "GMM"): [50.0],
        (panel, "15, 144", "plain"): [51.0],
        (panel, "30, 108", "GMM"): [52.0],
    }


def test_the_ablation_is_told_apart_by_model():
    rows = make("elm", model="vit_xs") | make("gmm", model="vit_xs") | make("elm") | make("gmm")
    top1 = {name: 60.0 + row.seed + (row.mask == "gmm") * (1 + 0.1 * row.seed) for name, row in rows.items()}
    found = ablation.others(frame(rows, top1))
    told = ablation.others_found(found)
    assert "on CIFAR-10, ViT-XS +1.10" in told and "on CIFAR-10, ViT +1.10" in told
    compared, _ = ablation.compared(found)
    assert set(compared.group) == {"CIFAR-10, ViT: mask", "CIFAR-10, ViT-XS: mask"}
    depths = ablation.depths(frame(rows, top1))
    assert depths.model.unique().tolist() == ["vit"]  # the small one is no depth of the paper's


def test_arms_that_were_not_run_stay_in_the_table_and_out_of_the_figure():
    settings = {"share_heads": True}, {"where": "probabilities"}, {"dataset": "svhn"}, {"mask": "elm"}
    rows = ablation.others(ran({}, *settings, {"dataset": "svhn", "mask": "elm"}, only=(0, 3, 4, 5), failed=["row2"]))
    told = {(line[0], line[3]): line[6] for line in ablation.arms_table(rows).cells()}
    assert told["CIFAR-10", "GMM, shared by the heads"] == "not run"
    assert told["CIFAR-10", "after the softmax"] == "failed"
    compared, alone = ablation.compared(rows)
    assert set(compared.group) == {"CIFAR-10: mask", "SVHN: mask"} and compared.top1.notna().all()
    assert len(charts.arms(compared).axes) == 2
    assert alone == (
        "Not drawn, as one arm alone was run: CIFAR-10: place of the mask (before the softmax); "
        "SVHN: place of the mask (before the softmax)."
    )


def test_rows_that_no_arm_describes_are_left_out():
    rows = ran({"model": "swin"}, {"kernels": 7}, {"mask": "gab"}, {"sigma_init": [2, 2]})
    for panel in (ablation.initialisations, ablation.others, ablation.depths, kernels.arms):
        assert panel(rows).empty and ablation.arms_table(panel(rows)).lines == []


@pytest.mark.parametrize(
    ("more", "first", "second"),
    [
        ((1.9, 2.0, 2.2), ", as published", ", not as published"),
        ((-1.9, -2.0, -2.2), ", not as published", ", not as published"),
        (
            (-1.0, 1.0, 0.2),
            ", which cannot be told from zero",
            ", as published no difference to be told from the seeds'",
        ),
        ((2.0,), ", of one seed", ", of one seed"),
    ],
)
def test_what_the_paper_says_in_words_agrees_or_not(more, first, second):
    """One mask for each head gains `more` over ELM; behind the softmax it is as much better than before it."""
    seeds, behind = range(len(more)), {"where": "probabilities"}
    rows = make("elm", seeds) | make("gmm", seeds) | make("gmm", seeds, **behind)
    top1 = {f"cifar10-vit-elm-s{seed}": 60.0 for seed in seeds}
    top1 |= {f"cifar10-vit-gmm-s{seed}": 60.0 + more[seed] for seed in seeds}
    top1 |= {f"cifar10-vit-gmm-whereprobabilities-s{seed}": 60.0 + 2 * more[seed] for seed in seeds}
    told = ablation.others_found(ablation.others(frame(rows, top1)))
    assert told.startswith("Ours: GMM, one for each head against ELM on CIFAR-10 ")
    elm, place = told.removesuffix(".").split("; ")
    assert elm.endswith(first) and place.endswith(second)
    assert ablation.others_found(ablation.others(frame(make("elm"), {"cifar10-vit-elm-s0": 60.0}))) == ""
