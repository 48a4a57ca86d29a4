"""What the rows of a profile came to: each arm with its gain over the plain model, and all curves in one file."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..train.rows import Row, mask_hints, setting_name
from .names import SCORES
from .profiles import Params
from .runs import group, history, runs
from .seeds import Gain, Summary, paired_gain, summary

KEYS = ("dataset", "model", "mask", "recipe", "set")  # rows that agree in these differ in their seed alone
WITHOUT_MASK = {"decay_masks", "transmix"}  # settings of a recipe that its plain counterpart does without
HEAD = ("data set", "model", "mask", "n", "score", "mean ± sd", "over plain, paired over seeds [95 % interval]")
CURVES = "epochs.csv"


@dataclass(frozen=True)
class Arm:
    """Rows that differ in their seed alone and of which at least one was run."""

    row: Row  # the first of them
    settings: str  # that not all rows of the recipe on this data set share
    planned: int
    score: str
    result: Summary
    gain: Gain | None  # over the rows without a mask; None where there are none


def arms(params: Params, folder: Path) -> list[Arm]:
    """The arms of a profile that were run, in the order of its rows."""
    groups = group(params.rows, runs(folder), **dict.fromkeys(KEYS))
    known = {_key(each.keys): each for each in groups}
    found = []
    for each in (each for each in groups if each.runs):
        row = params.rows[each.rows[0]]
        score, base = row.recipe_settings.score, known.get(_key(_plain(row)))
        ours, theirs = each.by_seed(score), base.by_seed(score) if base and base is not each else {}
        gain = paired_gain(ours, theirs) if ours.keys() & theirs.keys() else None
        result = summary(ours.values())
        found.append(Arm(row, _settings(row, params.rows), len(each.rows), score, result, gain))
    return found


def _key(keys: Mapping) -> str:
    return json.dumps([keys[key] for key in KEYS], sort_keys=True)


def _plain(row: Row) -> dict:
    """The keys of the arm that a row is set against: the same without mask and TransMix."""
    own = WITHOUT_MASK | mask_hints(row.mask).keys()
    return vars(row) | {"mask": "none", "set": {key: value for key, value in row.set.items() if key not in own}}


def _settings(row: Row, rows: Mapping[str, Row]) -> str:
    like = [each.set for each in rows.values() if (each.dataset, each.recipe) == (row.dataset, row.recipe)]
    own = {key: value for key, value in row.set.items() if any(key not in s or s[key] != value for s in like)}
    return ", ".join(setting_name(*setting) for setting in own.items())


def scores_table(found: list[Arm]) -> list[tuple[str, ...]]:
    """Rows below HEAD for gmmvit.cli.table."""
    lines = []
    for arm in found:
        words = [arm.row.recipe] * (arm.row.recipe != "short") + [arm.settings] * bool(arm.settings)
        mask = arm.row.mask + (f" ({', '.join(words)})" if words else "")
        n = f"{arm.result.n}" if arm.result.n == arm.planned else f"{arm.result.n} of {arm.planned}"
        name = SCORES.get(arm.score, arm.score)
        lines.append((arm.row.dataset, arm.row.model, mask, n, name, _mean(arm.result), _gain(arm.gain)))
    return lines


def _mean(found: Summary) -> str:
    return f"{found.mean:.2f}" + ("" if found.sd is None else f" ± {found.sd:.2f}")


def _gain(gain: Gain | None) -> str:
    if gain is None:
        return ""
    return f"{gain.mean:+.2f}" + ("" if gain.low is None else f" [{gain.low:+.2f}, {gain.high:+.2f}]")


def write_curves(params: Params, folder: Path) -> Path:
    """Every row's score by epoch as one CSV file, (row, epoch, score), for one chart of `dvc plots show`."""
    path = folder / CURVES
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("row", "epoch", "score"))
        for run in runs(folder):
            if row := params.rows.get(run["row"]["name"]):
                columns = history(run["folder"])
                both = zip(columns["epoch"], columns[row.recipe_settings.score], strict=True)
                writer.writerows((row.name, f"{epoch:g}", score) for epoch, score in both)
    return path
