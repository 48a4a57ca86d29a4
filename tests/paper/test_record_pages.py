"""What README.md and docs/masks.md have that is made of the record."""

import pytest
from frames import make

from gmmvit.core.masks import MASKS
from gmmvit.paper import pages, project, runs

XS = {"model": "vit_xs", "epochs": 7}
CONTROLS = [
    ("none", {}),
    ("gmm", {"freeze_masks": True}),
    ("temperature", {"init": [0, 4.7], "freeze_masks": True}),
    ("temperature", {"init": [0, 0], "freeze_masks": True}),
    ("gmm", {}),
]


def ran(**arms):
    """The frame of masks with these accuracies, by seed; those of None are planned."""
    rows = {mask: make(mask, **XS) for mask in arms}
    records = [
        {"row": vars(row), "top1": value}
        for mask, values in arms.items()
        for row, value in zip(rows[mask].values(), values or (), strict=False)
    ]
    return runs.of({name: row for each in rows.values() for name, row in each.items()}, records)


def text(page):
    return (project.root() / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", pages.PAGES)
def test_the_pages_have_what_the_record_says_now(page):
    assert pages.written(page, text(page), runs.frame("cpu")) == text(page), "python -m gmmvit.paper.pages"


def test_the_readme_names_the_best_prior_and_what_was_not_run():
    told = pages.which(ran(none=(60.0, 61.1, 61.9), gab=(62.0, 63.0, 64.1), alibi=(61.0, 62.3), gmm=None))
    assert told.startswith("The highest accuracy is that of GAB, 63.03 % (plain: 61.00 %)")
    assert "| [GAB](docs/gab.md) | 2 | " in told and "| plain | 0 | – | 61.00 (3) | – |" in told
    assert "[GMM]" not in told and "1 of 4 lines was not run." in told
    assert "CIFAR-10, ViT-XS (0.46 M parameters), 7 epochs" in told and "; 4 of 12 rows are not run yet" in told


def controlled():
    arms = [(make(mask, **XS, **more), 60.0 + n) for n, (mask, more) in enumerate(CONTROLS)]
    rows = {name: row for each, _ in arms for name, row in each.items()}
    found = [{"row": vars(row), "top1": top1 + row.seed / 9} for each, top1 in arms for row in each.values()]
    return runs.of(rows, found)


def test_controls_stand_in_no_line_of_the_readme_and_are_told_in_the_page_of_masks():
    told = pages.which(controlled())
    assert "| [GMM](docs/gmm.md) |" in told and "uniform attention |" not in told and "frozen |" not in told
    assert "\n- GMM against GMM, frozen +3.00" in pages.why(controlled())


def test_the_page_of_masks_has_the_gains_with_less_data():
    arms = [make(mask, **XS, **more) for mask in ("none", "gab") for more in ({}, {"fraction": 0.05})]
    rows = {name: row for each in arms for name, row in each.items()}
    top1 = {
        name: 60.0 + row.seed + (row.mask == "gab") * (3 if row.set.get("fraction") else 1)
        for name, row in rows.items()
    }
    found = runs.of(rows, [{"row": vars(row), "top1": top1[name]} for name, row in rows.items()])
    assert "- GAB gains over plain +3.00 [+3.00 to +3.00] (3) at 5 %, +1.00 [+1.00 to +1.00] (3) at 100 %" in pages.why(
        found
    )


def test_a_record_of_nothing_says_so():
    frame = ran(none=(60.0, 61.0, 62.0), gmm=None)
    assert {make(frame) for make in pages.PAGES.values()} == {
        "The 6 rows of the comparison are planned and not run yet.\n"
    }


def test_the_readme_stays_one_that_is_read_when_every_prior_was_run():
    top1 = {mask: (60.0 + n, 61.0 + n, 60.5 + n / 3) for n, mask in enumerate(["none", *MASKS])}
    rows = {name: row for mask in top1 for name, row in make(mask, **XS).items()}
    rows |= {name: row for way in ("mimetic", "impulse") for name, row in make(**XS, init_weights=way).items()}
    top1 |= dict.fromkeys(("mimetic", "impulse"), (60.1, 60.2, 60.3))
    found = [{"row": vars(row), "top1": top1[row.set.get("init_weights", row.mask)][row.seed]} for row in rows.values()]
    whole = pages.written("README.md", text("README.md"), runs.of(rows, found))
    assert (
        "| mimetic weights | " in whole
        and all(f"docs/{mask}.md) | " in whole for mask in MASKS)
        and len(whole) <= 7_000
    )


def test_claims_are_told_of_whole_arms_alone():
    start = {"sigma_init": [2, 0.5], "alpha_init": [0.2, 0]}
    arms = [make("none"), make("gmm", **start), make("gmm", epochs=3, **start), make("elm"), make("gab")]
    rows = {name: row for each in arms for name, row in each.items()}
    gains = {"none": (0, 0, 0), "gmm": (1, 2, 3), "elm": (-1, -1.1, -0.9), "gab": (1,)}
    found = [
        {"row": vars(row), "top1": 60 + row.seed + gain}
        for row in rows.values()
        for gain in gains[row.mask][row.seed : row.seed + 1]
        if "epochs" not in row.set
    ]
    told = pages.claims(runs.of(rows, found))
    assert told["GMM on ViT, CIFAR-10, top-1"] == ("+2.00 [−0.48, +4.48]", "3 seeds; cannot be told from plain")
    assert told["ELM on the same ViT"] == ("−1.00 [−1.25, −0.75]", "3 seeds; behind plain")
    assert told["GAB on the same ViT"] == ("–", "1 of 3 seeds, the others are not run")
    assert told["the same, begun as published"] == ("–", "rows are ready, not run")


def test_claims_of_each_model_are_told_of_that_model_and_over_the_base_that_they_name():
    mixing = {"Mixup + CutMix": {}, "TransMix": {"transmix": True}, "CutMix": {"mixup": 0.0}}
    both = {"mixup": 0.8, "cutmix": 1.0, "mix_prob": 1.0, "switch_prob": 0.8, **XS}
    arms = {arm: make(**both | more) for arm, more in mixing.items()}
    arms |= {"no GAB": make(model="vit_relpos"), "GAB": make("gab", model="vit_relpos")}
    arms |= {"by head": make("gab", model="vit_relpos", share_heads=False)}
    gains = {"TransMix": (1, 2, 3), "GAB": (-1, -1.1, -0.9), "by head": (1, -1, 0.5)}
    rows = {name: row for each in arms.values() for name, row in each.items()}
    found = [
        {"row": vars(row), "top1": 60 + row.seed + gains.get(arm, (0, 0, 0))[row.seed]}
        for arm, each in arms.items()
        for row in each.values()
    ]
    told = pages.claims(runs.of(rows, found))
    assert told["TransMix on ViT-XS"] == ("+2.00 [−0.48, +4.48]", "3 seeds; cannot be told from Mixup + CutMix")
    assert told["GAB beside relative positions, ViT (R)"] == ("−1.00 [−1.25, −0.75]", "3 seeds; behind plain")
    assert told["the same, for each head"][1] == "3 seeds; cannot be told from plain"
    assert told["GAB on the same ViT"] == ("–", "rows are ready, not run")


def test_the_page_of_masks_has_the_gains_on_the_papers_model_as_well():
    arms = [make("none"), make("gmb"), make("none", **XS), make("gab", **XS)]
    rows = {name: row for each in arms for name, row in each.items()}
    top1 = {"none": (60, 61, 62), "gmb": (62, 64, 66), "gab": (61, 62, 63)}
    found = runs.of(rows, [{"row": vars(row), "top1": float(top1[row.mask][row.seed])} for row in rows.values()])
    assert "gains over plain are: GMB +3.00 [+0.52 to +5.48] (3).\n" in pages.why(found)


def test_a_page_without_its_marks_is_told():
    with pytest.raises(ValueError, match="README.md: expected the marks"):
        pages.written("README.md", "# gmmvit\n", ran(none=(60.0, 61.0, 62.0)))
    with pytest.raises(ValueError, match="expected a line | GMM on ViT, CIFAR-10, top-1 | ... |, got none"):
        pages.claimed("# gmmvit\n", ran(none=(60.0, 61.0, 62.0)))
