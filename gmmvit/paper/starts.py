"""Where masks begin and how fast they learn: which cell a profile's arms are in, and grids of cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pandas as pd

from ..train.rows import LENGTH, UNLEARNED, Row
from .names import readable
from .runs import gains, scores, where
from .tables import Column, Table, cell, missing, pivot, text

KEYS = ("start", "sigma_init", "alpha_init")  # settings that say where a mixture begins
CELL = ("mask_lr", *KEYS)
Cells = Mapping[str, Mapping[str, object]]  # of each mask, its usual cell
PUBLISHED = {"sigma_init": (10.0, 10.0), "alpha_init": (0.0, 2.0)}  # mean and sd
LOCAL = {"sigma_init": (2.0, 0.5), "alpha_init": (0.2, 0.0)}  # sigma 1 to 3, alpha 1/K of five kernels
PAIRS = ("sigma", "alpha")


def cell_of(row: Row) -> dict[str, object]:
    """What a row says of the rate and the start of its mask."""
    said = {key: row.set[key] for key in CELL if key in row.set}
    return said | {key: value for key, value in row.mask_options.items() if key in KEYS}


def usual(frame: pd.DataFrame) -> Cells:
    """The cell that most rows of each mask are in, but for frozen ones: the one its other settings are compared in."""
    found: dict[str, Counter] = {}
    for row in frame.row:
        cells = found.setdefault(row.mask, Counter())
        cells[tuple(cell_of(row).items())] += 0 if row.set.get("freeze_masks") else 1
    return {mask: dict(cells.most_common(1)[0][0]) for mask, cells in found.items()}


def told(frame: pd.DataFrame) -> str:
    """A sentence on the cell of the arms of a mixture; empty where there are none."""
    cells = usual(frame)
    if "gmm" not in cells:
        return ""
    rate = cells["gmm"].get("mask_lr", 1)
    rate = "at the rate" if rate == 1 else f"at {text(rate, 'g')} times the rate"
    return f"Masks learn {rate} of the weights; where GMM begins: {start_of(cells['gmm'])}."


def start_of(cell: Mapping) -> str:
    """Where a mixture begins, in words."""
    pairs = PUBLISHED | {key: cell[key] for key in PUBLISHED if key in cell}
    if cell.get("start") == "neutral":
        return "neutral (every weight 1)"
    name = "published" if pairs == PUBLISHED else "local" if pairs == LOCAL else ""
    means = [f"{key.removesuffix('_init')} {_pair(pairs[key])}" for key in PUBLISHED]
    return f"{name} ({', '.join(means)})" if name else ", ".join(means)


def is_published(cell: Mapping) -> bool:
    """Whether a mixture begins as its paper has it."""
    return start_of(cell).startswith("published")


def _pair(pair: tuple[float, float]) -> str:
    return f"{pair[0]:g} ± {pair[1]:g}"


# ---- grids of cells -------------------------------------------------------------------------------------------------

SAME = ("dataset", "model", "length")
UNMASKED = {"mask": "none", "start": "no mask", "rate": 0.0}


def cells(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of GMM that differ in their cell alone, and those without a mask: "start", "rate", "sigma", "alpha"."""
    frame = frame[(frame.kind == "classification") & frame["mask"].isin(("none", "gmm"))]
    rows = where(frame, lambda row: row.set.keys() <= {*LENGTH, *CELL})
    return rows.assign(**{key: [_line(row)[key] for row in rows.row] for key in ("length", *UNMASKED, *PAIRS)})


def _line(row: Row) -> dict[str, object]:
    cell, length = cell_of(row), row.recipe_settings.total_epochs
    if row.mask == "none":
        return {"length": length, **UNMASKED, **dict.fromkeys(PAIRS, "")}
    pairs = {name: _pair((PUBLISHED | cell)[f"{name}_init"]) for name in PAIRS}
    return {"length": length, "mask": row.mask, "start": start_of(cell), "rate": float(cell.get("mask_lr", 1)), **pairs}


def rates(frame: pd.DataFrame) -> pd.DataFrame:
    """A line for each start and rate of masks, of models with several rates: accuracy, gain, how far they moved."""
    rows = cells(frame)
    several = rows[rows["mask"] != "none"].groupby("model").rate.nunique()
    rows = rows[rows.model.isin(several[several > 1].index)]
    if rows.empty:
        return rows
    lines = scores(rows, [*SAME, *UNMASKED], ours="top1", moved="moved")
    found = gains(rows, UNMASKED, SAME)
    lines = lines.merge(found, on=[*SAME, *UNMASKED], how="left").assign(moved_note="")
    lines.loc[lines["mask"] == "none", ["moved_state", "gain_state"]] = ""
    return lines


def rates_table(lines: pd.DataFrame) -> Table:
    """The lines of `rates`: every cell."""
    lines = lines.assign(rate=lines.rate.where(lines.rate > 0)) if len(lines) else lines
    columns = ["dataset", "model", Column("start", "sigma and alpha begin: mean ± sd")]
    columns += [Column("rate", "rate of masks", "g"), "ours", "gain", Column("moved", "moved, of their spread", ".3f")]
    return Table(columns, readable(lines))


def rates_found(lines: pd.DataFrame) -> str:
    """A sentence on the cells: in which masks did not learn, and which has the highest accuracy."""
    run = lines[(lines["mask"] != "none") & (lines.ours_n > 0)] if len(lines) else lines
    if run.empty:
        return ""
    names = [f"{start}, rate {text(rate, 'g')}" for start, rate in zip(run.start, run.rate, strict=True)]
    still = [name for name, note in zip(names, run.ours_note, strict=True) if note == UNLEARNED]
    best = run.assign(name=names, gain_note="").loc[run.ours.idxmax()].to_dict()
    told = f"In {len(still) or 'none'} of {len(run)} cells the masks {UNLEARNED}{': ' * bool(still)}{'; '.join(still)}."
    over = f", {cell(best, 'gain', '+.2f')} over no mask" if not missing(best["gain"]) else ""
    return f"{told} The highest accuracy is that of {best['name']}: {cell(best, 'ours')}{over}."


def crossed_table(frame: pd.DataFrame) -> Table:
    """Accuracy by the initial sigma (a line each) and alpha (a column each), of models on which both were varied."""
    rows = cells(frame)
    rows = where(rows[rows["mask"] != "none"], lambda row: cell_of(row).get("start") != "neutral")
    rows = rows.sort_values(list(PAIRS), key=lambda column: column.map(_size), kind="stable")
    keys = ["dataset", "model", "length", "rate"]
    counts = rows.assign(both=rows.sigma + rows.alpha).groupby(keys)[[*PAIRS, "both"]].transform("nunique")
    rows = rows[counts.both >= counts.sigma + counts.alpha]  # fewer are varied one at a time
    if rows.empty:
        return Table(["sigma"], [])
    lines = readable(scores(rows, [*keys, *PAIRS])).drop(columns="length")
    lines = lines.assign(alpha="alpha " + lines.alpha)
    index = ["dataset", "model", Column("rate", "rate of masks", "g"), Column("sigma", "sigma begins: mean ± sd")]
    return pivot(lines, "alpha", [Column("ours", "")], index)


def _size(pair: str) -> tuple[float, ...]:
    return tuple(map(float, pair.split(" ± ")))
