"""The part of README.md that is made of the record."""

import pytest
from frames import make

from gmmvit.paper import project, readme, runs

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


def test_the_readme_has_what_the_record_says_now():
    text = (project.root() / "README.md").read_text(encoding="utf-8")
    assert readme.written(text) == text, "python -m gmmvit.paper.readme"


def test_it_names_the_best_prior_and_what_was_not_run(monkeypatch):
    frame = ran(none=(60.0, 61.1, 61.9), gab=(62.0, 63.0, 64.1), alibi=(61.0, 62.3), gmm=None)
    monkeypatch.setattr(runs, "frame", lambda profile: frame)
    text = readme.part()
    assert text.startswith("The highest accuracy is that of GAB, 63.03 % (plain: 61.00 %)")
    assert "| [GAB](docs/gab.md) | 2 | " in text and "| plain | 0 | – | 61.00 ± 0.95 (3) | – |" in text
    assert "[GMM]" not in text and "1 of 4 lines were not run." in text
    assert "CIFAR-10, ViT-XS (0.46 M parameters), 7 epochs" in text and "; 4 of 12 rows are not run yet" in text


def test_controls_are_told_and_stand_in_no_line(monkeypatch):
    arms = [(make(mask, **XS, **more), 60.0 + n) for n, (mask, more) in enumerate(CONTROLS)]
    rows = {name: row for each, _ in arms for name, row in each.items()}
    found = [{"row": vars(row), "top1": top1 + row.seed / 9} for each, top1 in arms for row in each.values()]
    monkeypatch.setattr(runs, "frame", lambda profile: runs.of(rows, found))
    text = readme.part()
    assert "| [GMM](docs/gmm.md) |" in text and "uniform attention |" not in text and "frozen |" not in text
    assert "GMM against GMM, frozen +3.00" in text


def test_a_record_of_nothing_says_so(monkeypatch):
    monkeypatch.setattr(runs, "frame", lambda profile: ran(none=(60.0, 61.0, 62.0), gmm=None))
    assert readme.part() == "The 6 rows of the comparison are planned and not run yet.\n"


def test_a_readme_without_the_marks_is_told():
    with pytest.raises(ValueError, match="README.md: expected the marks"):
        readme.written("# gmmvit\n")
