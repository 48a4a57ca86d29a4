"""What was found, before all else: every gain that a paper claims, in three sentences, a table and a figure."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping

import pandas as pd

from . import charts, gab, gmm, transmix
from .names import MODELS, readable
from .runs import NOT_RUN
from .tables import AHEAD, BEHIND, LEVEL, SINGLE, Column, Table, after, gains_told, not_run

NAMED = 6  # gains that a sentence names before it counts the rest
LETTERS = 28  # of a line of the figure's labels


def gains(rows: pd.DataFrame) -> pd.DataFrame:
    """Every gain of the papers that the rows of a frame measure, run or not: label, dataset, gain, published."""
    biased, mixed = gab.gain_points(gab.arms(rows)), transmix.gain_points(transmix.comparisons(rows))
    biased["label"] = [f"{MODELS.get(m, m)}, {arm}" for m, arm in zip(biased.model, biased.arm, strict=True)]
    mixed["label"] = [f"TransMix, {label}" for label in mixed.label]
    return readable(pd.concat([gmm.main_gains(rows), biased, mixed]))


def length(passes: Collection[int]) -> str:
    """How long the runs trained, beside the GMM paper's; empty where nothing was run."""
    if not passes:
        return ""
    short = max(passes) < gmm.PASSES
    return after(passes) + f"; the GMM paper makes {gmm.PASSES}, so this is no test of its claim" * short


def sentences(points: pd.DataFrame, rows: int, without: Mapping[str, int]) -> dict[str, str]:
    """Which gains are larger than the seeds' spread, which are not, and what was not run.

    Of so many rows those without a result are counted by their state.
    """
    label = [f"{label} on {dataset}" for label, dataset in zip(points.label, points.dataset, strict=True)]
    kinds = gains_told(points.assign(label=label))
    states = (f"{count} {not_run(count) if state == NOT_RUN else state}" for state, count in without.items())
    left, unknown = " and ".join(states), kinds.pop(NOT_RUN)
    have = "has" if len(unknown) == 1 else "have"
    gone = f"; {len(unknown)} of {len(points)} gains {have} no number: {_listed(unknown)}" if unknown else ""
    ran = len(points) - len(unknown)
    return {
        "larger": _sentence({kind: kinds[kind] for kind in (AHEAD, BEHIND)}, ran, f"none is {AHEAD}"),
        "not larger": _sentence({kind: kinds[kind] for kind in (LEVEL, SINGLE)}, ran, "each can be told from zero"),
        "not run": (f"Of {rows} rows {left}" if without else f"All {rows} rows have a result") + f"{gone}.",
    }


def _sentence(kinds: Mapping[str, list[str]], ran: int, none: str) -> str:
    """How many of the gains that were measured are of these kinds, and which."""
    kinds = {kind: found for kind, found in kinds.items() if found}
    told = [
        f"{len(found)} {'is' if len(found) == 1 else 'are'} {kind}: {_listed(found)}" for kind, found in kinds.items()
    ]
    return f"Of {ran} gain{'s' * (ran != 1)} measured, {'; '.join(told) or none}." if ran else "No gain was measured."


def _listed(words: list[str]) -> str:
    return "; ".join(words[:NAMED]) + f"; and {len(words) - NAMED} more" * (len(words) > NAMED)


def table(points: pd.DataFrame, note: str) -> Table:
    """The gains that were measured: published | ours with its 95 % interval | what that says."""
    columns = [Column("label", "gain of"), "gain", Column("published", "published gain", "+.2f"), "dataset", "verdict"]
    return Table(columns, points[points.gain_n > 0], note)


def figure(points: pd.DataFrame) -> charts.Figure | None:
    """The same gains with their 95 % intervals; None where fewer than two were measured."""
    return charts.gains(points.assign(label=[textwrap.fill(label, LETTERS) for label in points.label]))
