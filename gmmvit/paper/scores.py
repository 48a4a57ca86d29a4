"""What the rows of a profile came to: each arm with its gain over the plain model, and all curves in one file."""

from __future__ import annotations

import csv
import json
from collections.abc import Collection
from pathlib import Path

import pandas as pd

from ..train.checks import OF_MASKS
from ..train.rows import MASK_STARTS, Row, mask_hints, setting_name
from .names import SCORES
from .profiles import Params
from .runs import gains, history, its_own, runs, scores

WITHOUT_MASK = {
    "decay_masks",
    "transmix",
    *OF_MASKS,
    *MASK_STARTS,
}  # settings of a recipe that its plain counterpart does without
PLAIN = {"mask": "none", "own": "{}"}  # what an arm is set against: the same without mask and TransMix
SAME = ("dataset", "model", "recipe", "rest")
HEAD = ("data set", "model", "mask", "n", "score", "mean ± sd", "over plain, paired over seeds [95 % interval]")
CURVES = "epochs.csv"


def scores_table(frame: pd.DataFrame) -> list[tuple[str, ...]]:
    """Rows below HEAD for gmmvit.cli.table: the arms that were run, in the order of the profile."""
    both = [_settings(row) for row in frame.row]
    told = [_told(row, list(frame.row)) for row in frame.row]
    names = [row.recipe_settings.score for row in frame.row]
    values = [line.get(name) for line, name in zip(frame.to_dict("records"), names, strict=True)]
    own, rest = zip(*both, strict=True)
    rows = frame.assign(own=own, rest=rest, told=told, score=names, value=values)
    lines = scores(rows, [*SAME, *PLAIN, "told", "score"], ours="value")
    lines = lines.merge(gains(rows, PLAIN, SAME, "value"), on=[*SAME, *PLAIN], how="left")
    return [
        (each.dataset, each.model, each.mask + each.told, str(each.ours_state or each.ours_n),
         SCORES.get(each.score, each.score), _mean(each), _gain(each))
        for each in lines[lines.ours_n > 0].itertuples()
    ]  # fmt: skip


def _settings(row: Row) -> tuple[str, str]:
    """The row's settings of its mask and of TransMix, and the others, as texts."""
    own = WITHOUT_MASK | mask_hints(row.mask).keys()
    parts = ({key: value for key, value in row.set.items() if (key in own) == mine} for mine in (True, False))
    first, second = (json.dumps(part, sort_keys=True) for part in parts)
    return first, second


def _told(row: Row, rows: Collection[Row]) -> str:
    """What is said behind the mask: the recipe, and the settings that not all its rows on this data set share."""
    like = [each.set for each in rows if (each.dataset, each.recipe) == (row.dataset, row.recipe)]
    own = {key: value for key, value in row.set.items() if any(key not in s or s[key] != value for s in like)}
    words = [row.recipe] * (row.recipe != "short") + [setting_name(*setting) for setting in own.items()]
    return f" ({', '.join(words)})" if words else ""


def _mean(line) -> str:
    spread = f" ± {line.ours_sd:.2f}" if line.ours_n > 1 else ""
    return f"{line.ours:.2f}{spread}" + (f", {line.ours_note}" if line.ours_note else "")


def _gain(line) -> str:
    if not line.gain_n > 0:
        return ""
    return f"{line.gain:+.2f}" + (f" [{line.gain_low:+.2f}, {line.gain_high:+.2f}]" if line.gain_n > 1 else "")


def write_curves(params: Params, folder: Path) -> Path:
    """Every row's score by epoch as one CSV file, (row, epoch, score), for one chart of `dvc plots show`."""
    path = folder / CURVES
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("row", "epoch", "score"))
        for run in its_own(params.rows, runs(folder)):
            row, columns = params.rows[run["row"]["name"]], history(run["folder"])
            both = zip(columns["epoch"], columns[row.recipe_settings.score], strict=True)
            writer.writerows((row.name, f"{epoch:g}", score) for epoch, score in both)
    return path
