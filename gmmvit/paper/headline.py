"""What was found, before all else: every gain that a paper claims, in three sentences, a table and a figure."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Mapping

from ..train.rows import Row
from . import gab_arms, gab_tables, main_table, plots, transmix_tables
from .figures import Figure
from .names import BACKBONES, MASKS, named
from .seeds import Gain
from .tables import Column, Table, span, text

NAMED = 6  # gains that a sentence names before it counts the rest
LETTERS = 28  # of a line of the figure's labels
LARGER, LOSS = "larger than the seeds' spread", "below zero by more than the seeds' spread"
LEVEL, SINGLE = "within the seeds' spread, not to be told from zero", "of one seed, of which nothing can be said"


def gains(rows: Mapping[str, Row], runs: list[dict]) -> list[dict]:
    """Every gain of the papers that rows of classification measure, run or not: label, dataset, gain, published."""
    masked = main_table.main_groups(rows, runs, masks=MASKS)
    found = [
        point | {"label": f"{BACKBONES[point['model']]}, {point['arm']}"}
        for point in main_table.gain_points(masked, main_table.published_main())
    ]
    biased = gab_tables.gain_points(gab_arms.gab_groups(rows, runs))
    found += [point | {"label": f"{point['model']}, {point['label']}"} for point in biased]
    mixed = transmix_tables.gain_points(transmix_tables.comparisons(rows, runs))
    found += [point | {"label": f"TransMix, {point['label']}"} for point in mixed]
    return [point | {"dataset": named(point)["dataset"]} for point in found]


def length(passes: Collection[int]) -> str:
    """How long the runs trained, beside the GMM paper's; empty where nothing was run."""
    if not passes:
        return ""
    short = max(passes) < main_table.PASSES
    told = f"after {span(passes, 'd')} pass{'es' * (max(passes) > 1)} over the images"
    return told + f"; the GMM paper makes {main_table.PASSES}, so this is no test of its claim" * short


def sentences(points: Iterable[Mapping], rows: int, without: Mapping[str, int]) -> dict[str, str]:
    """Which gains are larger than the seeds' spread, which are not, and what was not run.

    Of so many rows those without a result are counted by their state.
    """
    kinds: dict[str, list[str]] = {kind: [] for kind in (LARGER, LOSS, LEVEL, SINGLE, "")}
    for point in points:
        kinds[_kind(point["gain"])].append(_words(point))
    missing = kinds.pop("")
    ran = sum(map(len, kinds.values()))
    states = " and ".join(
        f"{count} {'were not run' if state == 'not run' else state}" for state, count in without.items()
    )
    left = f"Of {rows} rows {states}" if without else f"All {rows} rows have a result"
    gone = f"; {len(missing)} of {ran + len(missing)} gains have no number: {_listed(missing)}" if missing else ""
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


def _kind(gain: Gain) -> str:
    if not gain.n:
        return ""
    return {True: LARGER if gain.mean > 0 else LOSS, False: LEVEL, None: SINGLE}[gain.beyond_spread]


def _words(point: Mapping) -> str:
    words, published = f"{point['label']} on {point['dataset']}", point.get("published")
    if not point["gain"].n:
        return words
    return f"{words} {text(point['gain'], '+.2f')}" + (
        "" if published is None else f", published {text(published, '+.2f')}"
    )


def _listed(words: list[str]) -> str:
    return "; ".join(words[:NAMED]) + f"; and {len(words) - NAMED} more" * (len(words) > NAMED)


def table(points: Iterable[Mapping], note: str) -> Table:
    """The gains that were measured: published | ours with its 95 % interval | what that says."""
    columns = [
        Column("label", "gain of"),
        Column("gain", "our gain [95 % interval] (n)", "+.2f"),
        Column("published", "published gain", "+.2f"),
        Column("dataset", "data set"),
        Column("said", "our gain is"),
    ]
    return Table(columns, [point | {"said": _kind(point["gain"])} for point in points if point["gain"].n], note)


def figure(points: Iterable[Mapping]) -> Figure | None:
    """The same gains with their 95 % intervals; None where fewer than two were measured."""
    return plots.gains(point | {"label": textwrap.fill(point["label"], LETTERS)} for point in points)
