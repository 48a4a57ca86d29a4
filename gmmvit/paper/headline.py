"""What was found, before all else: every gain that a paper claims, in three sentences, a table and a figure."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping

import pandas as pd

from . import charts, gab, gmm, transmix
from .names import MODELS, readable
from .runs import LARGER as BEYOND
from .runs import WITHIN
from .tables import Column, Table, cell, missing, span, text

NAMED = 6  # gains that a sentence names before it counts the rest
LETTERS = 28  # of a line of the figure's labels
LARGER, LOSS = "larger than the seeds' spread", "below zero by more than the seeds' spread"
LEVEL, SINGLE = "within the seeds' spread, not to be told from zero", "of one seed, of which nothing can be said"


def gains(rows: pd.DataFrame) -> pd.DataFrame:
    """Every gain of the papers that the rows of a frame measure, run or not: label, dataset, gain, published, said."""
    biased, mixed = gab.gain_points(gab.arms(rows)), transmix.gain_points(transmix.comparisons(rows))
    biased["label"] = [f"{MODELS.get(m, m)}, {arm}" for m, arm in zip(biased.model, biased.arm, strict=True)]
    mixed["label"] = [f"TransMix, {label}" for label in mixed.label]
    found = pd.concat([gmm.main_gains(rows), biased, mixed])
    return readable(found.assign(said=[_kind(point) for point in found.to_dict("records")]))


def length(passes: Collection[int]) -> str:
    """How long the runs trained, beside the GMM paper's; empty where nothing was run."""
    if not passes:
        return ""
    short = max(passes) < gmm.PASSES
    told = f"after {span(passes, 'd')} pass{'es' * (max(passes) > 1)} over the images"
    return told + f"; the GMM paper makes {gmm.PASSES}, so this is no test of its claim" * short


def sentences(points: pd.DataFrame, rows: int, without: Mapping[str, int]) -> dict[str, str]:
    """Which gains are larger than the seeds' spread, which are not, and what was not run.

    Of so many rows those without a result are counted by their state.
    """
    kinds: dict[str, list[str]] = {kind: [] for kind in (LARGER, LOSS, LEVEL, SINGLE, "")}
    for point in points.to_dict("records"):
        kinds[point["said"]].append(_words(point))
    unknown = kinds.pop("")
    ran = sum(map(len, kinds.values()))
    states = " and ".join(
        f"{count} {'were not run' if state == 'not run' else state}" for state, count in without.items()
    )
    left = f"Of {rows} rows {states}" if without else f"All {rows} rows have a result"
    gone = f"; {len(unknown)} of {ran + len(unknown)} gains have no number: {_listed(unknown)}" if unknown else ""
    return {
        "larger": _sentence(kinds, (LARGER, LOSS), ran),
        "not larger": _sentence(kinds, (LEVEL, SINGLE), ran),
        "not run": f"{left}{gone}.",
    }


def _sentence(kinds: Mapping[str, list[str]], of: tuple[str, str], ran: int) -> str:
    """How many of the gains that were measured are of these kinds, and which."""
    if not ran:
        return "No gain was measured."
    told = [
        f"{len(kinds[kind])} {'is' if len(kinds[kind]) == 1 else 'are'} {kind}: {_listed(kinds[kind])}"
        for kind in of
        if kinds[kind]
    ]
    return f"Of {ran} gain{'s' * (ran != 1)} measured, {'; '.join(told) or f'none is {of[0]}'}."


def _kind(point: Mapping) -> str:
    if not point["gain_n"]:
        return ""
    return {BEYOND: LARGER if point["gain"] > 0 else LOSS, WITHIN: LEVEL}.get(point["verdict"], SINGLE)


def _words(point: Mapping) -> str:
    words, published = f"{point['label']} on {point['dataset']}", point.get("published")
    if not point["gain_n"]:
        return words
    told = f"{words} {cell(point, 'gain', '+.2f')}"
    return told + ("" if missing(published) else f", published {text(published, '+.2f')}")


def _listed(words: list[str]) -> str:
    return "; ".join(words[:NAMED]) + f"; and {len(words) - NAMED} more" * (len(words) > NAMED)


def table(points: pd.DataFrame, note: str) -> Table:
    """The gains that were measured: published | ours with its 95 % interval | what that says."""
    columns = [Column("label", "gain of"), "gain", Column("published", "published gain", "+.2f"), "dataset"]
    return Table([*columns, Column("said", "our gain is")], points[points.gain_n > 0], note)


def figure(points: pd.DataFrame) -> charts.Figure | None:
    """The same gains with their 95 % intervals; None where fewer than two were measured."""
    return charts.gains(points.assign(label=[textwrap.fill(label, LETTERS) for label in points.label]))
