"""What README.md and docs/masks.md say of the record of cpu: which prior to use, what its gain is due to, our claims.

python -m gmmvit.paper.pages  # writes it anew: between the marks, and into README's table of claims
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd

from ..core.masks import MASKS as REGISTERED
from . import controls, gab, notebook, priors, project, runs, transmix
from .names import DATASETS, MODELS
from .starts import usual
from .tables import Column, Table, cell

PROFILE = "cpu"
BEGIN, END = "<!-- made by python -m gmmvit.paper.pages -->", "<!-- what was made ends here -->"
SHAPE = [each for each in controls.GAIN_OR_SHAPE if (each.arm, each.base) == ("GMM", "temperature")]  # README's
CLAIMS = {  # lines of README's table, by their first words: the model, the arm, and what it gains over
    "GMM on ViT, CIFAR-10, top-1": ("vit", "GMM", priors.PLAIN),
    "the same, begun as published": ("vit", f"GMM{priors.PUBLISHED_START}", priors.PLAIN),
    "ELM on the same ViT": ("vit", "ELM", priors.PLAIN),
    "GAB on the same ViT": ("vit", "GAB", priors.PLAIN),
    "GAB beside relative positions, ViT (R)": ("vit_relpos", "GAB shared by the heads", priors.PLAIN),
    "the same, for each head": ("vit_relpos", "GAB for each head", priors.PLAIN),
    "TransMix on ViT-XS": ("vit_xs", "TransMix", "Mixup + CutMix"),
}
CLAIMED_ON, SEEDS = {"model": "vit", "dataset": "cifar10"}, 3
COLUMNS = [
    Column("arm", "prior"),
    Column("layer", "numbers a layer", ",.0f"),
    Column("step", "time of a step", "+.1%"),
    Column("ours", "top-1"),
    Column("gain", "gain [95 %]", "+.2f"),
    Column("survives", "survives Holm"),
]


def which(every: pd.DataFrame) -> str:
    """README's answer: the arms that people can use, from the best to the worst, and what the mixture's shape does."""
    rows = priors.whole(priors.arms(every))
    done = rows[rows.state == runs.DONE]
    if done.arm.nunique() < 2:
        return _planned(rows)
    table = priors.table(rows, notebook.bench("masks"), priors.sizes(priors.instrument(every), done["mask"].unique()))
    lines = [_short(line) for line in table.lines if not _control(line["arm"])]
    due = controls.told(controls.lines(rows, SHAPE)) or "Whether GMM's shape does anything is not known yet."
    due += " [What else a gain is due to](docs/masks.md#which-one)."
    parts = [priors.answer(rows), Table(COLUMNS, lines).md().rstrip(), _about(rows), due]
    return "\n\n".join(parts) + "\n"


def why(every: pd.DataFrame) -> str:
    """The answer of docs/masks.md: the best arm, the papers' model, every control, and gains with less data."""
    rows = priors.arms(every)
    done = priors.whole(rows[rows.state == runs.DONE])
    if done.arm.nunique() < 2:
        return _planned(rows)
    told = " ".join(filter(None, (priors.answer(rows), priors.chance(priors.points(rows)))))
    decided = [controls.told([line]) for line in controls.lines(rows, controls.ALL)]
    parts = [f"{told} {_about(priors.whole(rows))}"]
    larger = [f"{line['arm']} {cell(line, 'gain', '+.2f')}" for line in on_vit(every) if line["gain_n"]]
    parts += [f"On the papers' ViT (2.7 M parameters) gains over plain are: {'; '.join(larger)}."] if larger else []
    for head, lines in (("What a gain is due to", decided), ("With less data", _less_data(rows))):
        parts += [f"{head}:\n\n" + "\n".join(f"- {line}" for line in lines if line)] if any(lines) else []
    return "\n\n".join(parts) + "\n"


def _planned(rows: pd.DataFrame) -> str:
    return f"The {len(rows)} rows of the comparison are planned and not run yet.\n"


def _less_data(rows: pd.DataFrame) -> list[str]:
    """What each arm gains over plain at each share of the images that was run."""
    found = priors.by_share(rows)
    found = found[found.gain_n > 0]
    lines = []
    for arm, at in found.groupby("arm", sort=False):
        gains = [f"{cell(line, 'gain', '+.2f')} at {100 * line['share']:g} %" for line in at.to_dict("records")]
        lines += [f"{arm} gains over plain {', '.join(gains)} of the images."] if at.share.nunique() > 1 else []
    return lines


def _control(arm: str) -> bool:
    """Whether nobody would use it: it is there to tell what others' gains are due to."""
    return "," in arm or arm == priors.UNIFORM  # frozen, or with another start


def _short(line: dict) -> dict:
    """A line whose accuracy is a mean alone, and whose arm, if a mask, leads to its page."""
    arm = f"[{line['arm']}](docs/{line['mask']}.md)" if line["mask"] in REGISTERED else line["arm"]
    return line | {"arm": arm, "ours_sd": None}


def _about(rows: pd.DataFrame) -> str:
    """What the numbers are of."""
    done = rows[rows.state == runs.DONE]
    epochs, dataset, model = (done[key].iloc[0] for key in ("length", "dataset", "model"))
    left = f"; {len(rows) - len(done)} of {len(rows)} rows are not run yet" if len(done) < len(rows) else ""
    return (
        f"{DATASETS[dataset]}, {MODELS[model]} (0.46 M parameters), {epochs} epochs: mean (seeds); gains over plain "
        f"are paired over seeds, their spread told by all arms{left}."
    )


# ---- the table of claims --------------------------------------------------------------------------------------------


def on_vit(every: pd.DataFrame) -> list[dict]:
    """What each arm gains on the papers' ViT (gmmvit.paper.runs.gains): the spread is each arm's own."""
    rows = every[runs.agree(every, CLAIMED_ON) & (every.kind == "classification")]
    rows = priors.whole(priors.named(rows, usual(every)))
    return runs.gains(rows, {"arm": priors.PLAIN}, priors.SAME).to_dict("records")


def _measured(every: pd.DataFrame) -> dict[tuple[str, str, str], dict]:
    """The gains on CIFAR-10 by model, arm and base."""
    rows = every[every.dataset == CLAIMED_ON["dataset"]]
    biased = gab.gain_points(gab.heads(gab.arms(rows)))
    mixed = transmix.gain_points(transmix.comparisons(rows))
    lines = [*on_vit(every), *biased.to_dict("records"), *mixed.to_dict("records")]
    return {(line["model"], line["arm"], line.get("base", priors.PLAIN)): line for line in lines}


def claims(every: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """The gain of each line of CLAIMS, and what was run of it, in words."""
    found = _measured(every)
    return {name: _claim(found.get(keys, {"gain_n": 0}), keys[-1]) for name, keys in CLAIMS.items()}


def _claim(line: Mapping, base: str) -> tuple[str, str]:
    ran = int(line["gain_n"])
    if ran < SEEDS:
        return "–", f"{ran} of {SEEDS} seeds, the others are not run" if ran else "rows are ready, not run"
    side = "ahead of" if line["gain"] > 0 else "behind"
    means = "cannot be told from" if line["verdict"] == runs.WITHIN else side
    gain = cell(line, "gain", "+.2f").removesuffix(f" ({ran})")
    return gain.replace(" to ", ", "), f"{ran} seeds; {means} {base}"


def claimed(text: str, every: pd.DataFrame) -> str:
    """README.md with the lines of CLAIMS as they are now; what was published, and the epochs, stay."""
    lines = text.splitlines()
    for name, (gain, state) in claims(every).items():
        number = next((n for n, line in enumerate(lines) if line.startswith(f"| {name} |")), None)
        if number is None:
            raise ValueError(f"README.md: expected a line | {name} | ... |, got none")
        _, published, _, epochs, _ = lines[number].strip("| ").split(" | ")
        short = "; too short a test" if published != "–" and gain != "–" else ""
        lines[number] = f"| {name} | {published} | {gain} | {epochs} | {state}{short} |"
    return "\n".join(lines) + "\n"


# ---- both pages -----------------------------------------------------------------------------------------------------

PAGES: dict[str, Callable[[pd.DataFrame], str]] = {"README.md": which, "docs/masks.md": why}


def written(page: str, text: str, every: pd.DataFrame) -> str:
    """A page with what is made of the record as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{page}: expected the marks {BEGIN!r} and {END!r}, got no such pair")
    text = f"{before}{BEGIN}\n{PAGES[page](every)}{END}{after}"
    return claimed(text, every) if page == "README.md" else text


if __name__ == "__main__":
    frame = runs.frame(PROFILE)
    for name in PAGES:
        path = project.root() / name
        path.write_text(written(name, path.read_text(encoding="utf-8"), frame), encoding="utf-8")
