"""Which prior should one use? Every mask, and every start of the weights, under one recipe on one model.

An arm is a mask as its class has it, in the cell of the profile (gmmvit.paper.starts), or one of the controls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
from scipy import stats

from ..analysis.axes import MODELS
from ..train.rows import LENGTH, UNLEARNED, Row
from . import charts
from .names import DATASETS, MASKS
from .runs import DONE, NOT_RUN, WITHIN, gains, scores
from .starts import CELL, Cells, cell_of, is_published, start_of, usual
from .tables import AHEAD, BEHIND, Column, Table, gains_told, missing, text

PLAIN = "plain"
UNIFORM, RANDOM = "uniform attention", "random gain, frozen"
PUBLISHED_START = ", published start"  # of a mixture, where most rows begin otherwise
SAME = ("dataset", "model", "recipe", "length")
ERROR = 0.05  # the chance that any of all arms is marked although none does anything

# ---- arms -----------------------------------------------------------------------------------------------------------


def instrument(frame: pd.DataFrame) -> str:
    """The model that priors are compared on."""
    return next((model for model in MODELS if (frame.model == model).any()), MODELS[0])


def arms(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the comparison with their "arm" in words, their "share" of the images and their length in epochs."""
    frame = frame[(frame.kind == "classification") & (frame.model == instrument(frame))]
    return named(frame, usual(frame))


def named(frame: pd.DataFrame, cells: Cells) -> pd.DataFrame:
    """The rows that are an arm, with the same columns."""
    rows = frame.assign(arm=[arm_of(row, cells) for row in frame.row])
    rows = rows[rows.arm.notna()]
    settings = [row.recipe_settings for row in rows.row]
    return rows.assign(share=[each.fraction for each in settings], length=[each.total_epochs for each in settings])


def arm_of(row: Row, cells: Cells) -> str | None:
    """The arm of a row in words; None of a row of another question, such as the number of kernels."""
    said = {key: value for key, value in row.set.items() if key not in (*LENGTH, *CELL, "fraction")}
    frozen, weights = said.pop("freeze_masks", False), said.pop("init_weights", None)
    gain = said.pop("init", None) if row.mask == "temperature" else None
    cell, usual_cell = cell_of(row), cells.get(row.mask, {})
    start = "" if start_of(cell) == start_of(usual_cell) else PUBLISHED_START if is_published(cell) else None
    if said or start is None or not frozen and cell.get("mask_lr") != usual_cell.get("mask_lr"):
        return None
    if weights:
        return f"{weights} weights" if row.mask == "none" else None
    if gain is not None:
        mean, sd = gain
        return (UNIFORM if (mean, sd) == (0, 0) else RANDOM if sd else None) if frozen else None
    return MASKS.get(row.mask, row.mask) + start + ", frozen" * frozen


def whole(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows trained on all images."""
    return rows[rows.share == 1]


# ---- gains, and what survives so many of them -----------------------------------------------------------------------


def points(rows: pd.DataFrame) -> pd.DataFrame:
    """What each arm gains over no mask, paired over seeds (gmmvit.paper.runs.gains): with "label", "p", "holm".

    p is that of the two-sided t test with a spread that all arms tell together, for that of three differences alone is
    hardly known; holm is p corrected for all arms (Holm 1979).
    """
    rows = whole(rows)
    found = gains(rows, {"arm": PLAIN}, SAME, pooled=SAME) if len(rows) else rows.assign(gain=[], gain_n=[], verdict=[])
    p = [_p(point) for point in found.to_dict("records")]
    return found.assign(label=found.arm, p=p, holm=holm(p))


def _p(point: Mapping) -> float:
    """The probability of a mean so far from zero, were there no difference; NaN of fewer than two seeds."""
    gain, sd, n = (point[key] for key in ("gain", "gain_sd", "gain_n"))
    if n < 2 or missing(sd):
        return float("nan")
    return 2 * stats.t.sf(abs(gain) / (sd / n**0.5), point["gain_freedom"]) if sd else float(gain == 0)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's corrected p values: the k-th smallest of m times m - k + 1, and none below one before it; NaN stays."""
    known = sorted((value, place) for place, value in enumerate(p) if not missing(value))
    found, highest = [float("nan")] * len(p), 0.0
    for rank, (value, place) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * value))
        found[place] = highest
    return found


def survivors(found: pd.DataFrame) -> list[str]:
    """The arms whose gain or loss survives Holm's correction."""
    return found.label[found.holm < ERROR].to_list()


def chance(found: pd.DataFrame) -> str:
    """A sentence on how many intervals leave out zero by chance, how many do, and which survive the correction."""
    tested = found[found.p.notna()]
    if tested.empty:
        return ""
    beyond, left = int((tested.verdict != WITHIN).sum()), survivors(tested)
    survive = f"{len(left)} of these survive Holm's correction: {'; '.join(left)}" if left else "none survives Holm's"
    return (
        f"Of {len(tested)} arms {text(ERROR * len(tested), '.2g')} would have an interval without zero by chance, if "
        f"no prior did anything; {beyond or 'none'} of ours {'has' if beyond < 2 else 'have'}, and {survive}."
    )


def answer(rows: pd.DataFrame) -> str:
    """Which arm has the highest accuracy, what cannot be told from it, and whether it is ahead of none at all."""
    rows = whole(rows)
    means = rows[rows.state == DONE].groupby("arm", sort=False).top1.mean()
    if len(means) < 2 or PLAIN not in means:
        return ""
    best = means.idxmax()
    if best == PLAIN:
        return f"The model without a prior has the highest accuracy, {means[PLAIN]:.2f} %."
    over = gains(rows[rows.arm.isin(means.index)], {"arm": best}, SAME, pooled=SAME)
    alike = over.arm[(over.verdict == WITHIN) | (over.gain_n < 2)].to_list()
    told = f"The highest accuracy is that of {best}, {means[best]:.2f} % ({PLAIN}: {means[PLAIN]:.2f} %)"
    return f"{told}; {_and(alike)} cannot be told from it." if alike else f"{told}, ahead of every other arm."


def _and(words: Sequence[str]) -> str:
    """A list in words; what stands behind a comma in a name stands in brackets."""
    words = [f"{name} ({rest})" if rest else name for name, _, rest in (word.partition(", ") for word in words)]
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + [words[-1]])


def told(rows: pd.DataFrame) -> str:
    """The answer, the gains and losses larger than the seeds' spread, and what chance alone would make of so many."""
    found = points(rows)
    kinds = gains_told(found)
    larger = " ".join(f"{kind.capitalize()}: {'; '.join(kinds[kind])}." for kind in (AHEAD, BEHIND) if kinds[kind])
    return " ".join(each for each in (answer(rows), larger, chance(found)) if each)


# ---- the table ------------------------------------------------------------------------------------------------------


def table(rows: pd.DataFrame, bench: Mapping, sizes: Mapping[str, tuple[float, int]]) -> Table:
    """Every arm: parameters, cost of a step, accuracy, gain, what survives Holm, attention, whether its masks learned.

    `bench` is the record of `gmmvit bench masks`, `sizes` {mask: parameters of a layer, of all}.
    """
    rows = whole(rows)
    if rows.empty:
        return Table(["arm", "ours"], [])
    by = [*SAME, "mask", "arm"]
    lines = scores(rows, by, ours="top1", entropy="entropy", distance="distance", moved="moved")
    lines = lines.drop(columns=[key for key in lines if key.startswith(("entropy_", "distance_", "moved_"))])
    lines = lines.merge(points(rows).drop(columns=["label", "gain_note"]), on=[*SAME, "arm"], how="left")
    frozen = {row.arm for row in rows.itertuples() if row.row.recipe_settings.freeze_masks}
    lines = lines.assign(
        step=lines["mask"].map(bench.get("time", {})),
        layer=[sizes.get(mask, (0, 0))[0] for mask in lines["mask"]],
        parameters=[sizes.get(mask, (0, 0))[1] for mask in lines["mask"]],
        survives=["yes" if value < ERROR else "" if missing(value) else "no" for value in lines.holm],
        learned=[_learned(line, frozen) for line in lines.to_dict("records")],
    )
    columns = ["dataset", Column("arm", "prior"), Column("layer", "parameters of a layer", ",.0f")]
    columns += [Column("parameters", "of all layers"), Column("step", "time of a step", "+.1%"), "ours"]
    columns += [Column("gain", "gain over plain [95 % interval] (n)", "+.2f"), Column("p", "p", ".2g")]
    columns += [Column("survives", "survives Holm"), Column("entropy", "entropy (nats)")]
    columns += [Column("distance", "distance (patches)"), Column("learned", "did it learn?")]
    lines = lines.assign(dataset=lines.dataset.map(lambda name: DATASETS.get(name, name)))
    return Table(columns, lines.sort_values("ours", ascending=False, kind="stable"))


def _learned(line: Mapping, frozen: set[str]) -> str:
    """What became of the masks of an arm, in words."""
    if line["arm"] in frozen:
        return "frozen"
    if line["mask"] == "none":
        return "no mask"
    if missing(line["moved"]):
        return "" if line["ours_state"] == NOT_RUN else "nothing to learn"
    return f"{'no' if line['ours_note'] == UNLEARNED else 'yes'}: moved {text(line['moved'], '.3f')} of its spread"


def sizes(model: str, masks: Iterable[str]) -> dict[str, tuple[float, int]]:
    """{mask: parameters of a layer, of all layers} of masks on a model, counted now."""
    from ..core.attach import masks_of
    from ..models import create_model

    plain, found = sum(each.numel() for each in create_model(model).parameters()), {}
    for mask in masks:
        if mask != "none":
            masked = create_model(model, mask=mask)
            added = sum(each.numel() for each in masked.parameters()) - plain
            found[mask] = added / max(1, len(masks_of(masked))), added
    return found


# ---- less data ------------------------------------------------------------------------------------------------------


def by_share(rows: pd.DataFrame) -> pd.DataFrame:
    """What arms gain over no mask by the share of the images, of those with two shares or more.

    Two seeds at one share know little of their spread, so that of all shares is taken.
    """
    keys = [*SAME, "share"]
    if rows.empty:
        return rows.assign(gain=[], gain_n=[])
    several = rows.groupby("arm").share.transform("nunique") > 1
    found = gains(rows[several], {"arm": PLAIN}, keys, pooled=SAME)
    return found.sort_values("share", kind="stable")


def shares_table(rows: pd.DataFrame) -> Table:
    """Accuracy and gain of each arm at each share of the images."""
    keys = [*SAME, "share"]
    if rows.empty:
        return Table(["arm", "ours"], [])
    several = rows[rows.groupby("arm").share.transform("nunique") > 1]
    lines = scores(several, [*keys, "arm"])
    lines = lines.merge(by_share(rows), on=[*keys, "arm"], how="left") if len(several) else lines
    lines = lines.assign(share=100 * lines.share.astype(float))
    columns = [Column("share", "images (%)", "g"), Column("arm", "prior"), "ours"]
    return Table(
        [*columns, Column("gain", "gain over plain [95 % interval] (n)", "+.2f")],
        lines.sort_values("share", kind="stable"),
    )


def figure(found: pd.DataFrame) -> charts.Figure | None:
    """The gains of the table, the largest first; a star behind those that survive Holm's correction."""
    if found.empty:
        return None
    found = found.sort_values("gain", ascending=False, kind="stable")
    meant = found.label.str.endswith(", frozen") | (found.label == UNIFORM)  # their names say that they do not learn
    words = zip(found.label, found.holm < ERROR, found.gain_note.where(~meant, ""), strict=True)
    labels = [label + " *" * survives + f", {note}" * bool(note) for label, survives, note in words]
    return charts.gains(found.assign(label=labels))
