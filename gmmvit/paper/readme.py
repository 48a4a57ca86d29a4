"""The part of README.md that follows from the record of cpu: which prior to use, and what its gain is due to.

python -m gmmvit.paper.readme  # writes it anew, between its marks
"""

from __future__ import annotations

from ..core.masks import MASKS as REGISTERED
from . import controls, notebook, priors, project, runs
from .names import DATASETS, MODELS
from .tables import Column, Table

PROFILE = "cpu"
BEGIN, END = "<!-- made by python -m gmmvit.paper.readme -->", "<!-- what was made ends here -->"
COLUMNS = [
    Column("arm", "prior"),
    Column("layer", "numbers a layer", ",.0f"),
    Column("step", "time of a step", "+.1%"),
    Column("ours", "top-1"),
    Column("gain", "gain [95 %]", "+.2f"),
    Column("survives", "survives Holm"),
]


def part() -> str:
    """The Markdown between the marks."""
    every = runs.frame(PROFILE)
    rows = priors.whole(priors.arms(every))
    done = rows[rows.state == runs.DONE]
    if done.arm.nunique() < 2:
        return f"The {len(rows)} rows of the comparison are planned and not run yet.\n"
    table = priors.table(rows, notebook.bench("masks"), priors.sizes(priors.instrument(every), done["mask"].unique()))
    lines = [line | {"arm": _linked(line)} for line in table.lines if not _control(line["arm"])]
    told = [priors.answer(rows), priors.chance(priors.points(rows))]
    due = controls.told(controls.lines(rows, controls.GAIN_OR_SHAPE))
    parts = [" ".join(filter(None, told)), Table(COLUMNS, lines).md().rstrip(), _about(done, len(rows)), due]
    return "\n\n".join(filter(None, parts)) + "\n"


def _control(arm: str) -> bool:
    """Whether nobody would use it: it is there to tell what others' gains are due to."""
    return "," in arm or arm == priors.UNIFORM  # frozen, or with another start


def _linked(line: dict) -> str:
    """An arm's name; that of a mask leads to its page."""
    return f"[{line['arm']}](docs/{line['mask']}.md)" if line["mask"] in REGISTERED else line["arm"]


def _about(done, planned: int) -> str:
    """What the numbers are of."""
    epochs, dataset, model = (done[key].iloc[0] for key in ("length", "dataset", "model"))
    left = f"; {planned - len(done)} of {planned} rows are not run yet" if len(done) < planned else ""
    return (
        f"{DATASETS[dataset]}, {MODELS[model]} (0.46 M parameters), {epochs} epochs: mean ± sd (seeds); gains over "
        f"plain are paired over seeds, their spread told by all arms{left}. "
        f"[All figures](reports/{PROFILE}/index.html)."
    )


def written(text: str) -> str:
    """README.md with the part as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"README.md: expected the marks {BEGIN!r} and {END!r}, got no such pair")
    return f"{before}{BEGIN}\n{part()}{END}{after}"


if __name__ == "__main__":
    path = project.root() / "README.md"
    path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
