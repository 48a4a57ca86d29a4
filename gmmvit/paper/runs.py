"""The records of runs as a pandas DataFrame, a line for every planned row; means over seeds, gains, published numbers.

from gmmvit.paper.runs import frame
frame("cpu").groupby("mask").top1.agg(["mean", "std"])
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from ..train.rows import UNLEARNED, Row
from . import project
from .names import DATASETS

DONE, FAILED, NOT_RUN = "done", "failed", "not run"  # states of a row
FIELDS = ("dataset", "model", "mask", "recipe", "seed", "kind")
LOOKED = ("entropy", "distance", "moved", "learned")  # of the layers of a run; older records have none of it
LARGER, WITHIN = "larger than the seeds' spread", "within the seeds' spread"  # what a gain's interval says


def frame(profile: str) -> pd.DataFrame:
    """A line for each planned row of a profile, by its name: settings, state (done, failed, not run), metrics, timing.

    "row" is the gmmvit.train.rows.Row itself, "folder" where its record lies; what is not known is NaN.
    """
    rows, folder = project.rows(profile).rows, project.reports(profile)
    wrong = unsound(folder)
    failed = [name for name in rows if name in wrong or _broke_off(folder / "runs" / name / "run.ipynb")]
    return of(rows, runs(folder), failed)


def of(rows: Mapping, runs: Iterable[Mapping], failed: Collection[str] = ()) -> pd.DataFrame:
    """The frame of rows {name: Row}, of the runs there are of them, and of the names of those that failed."""
    there, lines = {run["row"]["name"]: run for run in its_own(rows, runs)}, []
    for name, row in rows.items():
        run = there.get(name, {})
        state = DONE if run else FAILED if name in failed else NOT_RUN
        options = {key: tuple(value) if isinstance(value, list) else value for key, value in row.set.items()}
        measured = {key: value for key, value in run.items() if key not in ("row", "timing")}
        unknown = dict.fromkeys(("top1", *LOOKED), math.nan)
        known = {key: getattr(row, key) for key in FIELDS} | options | {"state": state} | unknown | measured
        lines.append({"name": name} | known | (run.get("timing") or {}) | {"row": row})
    empty = None if lines else ["name", *FIELDS, "state", "top1", *LOOKED, "row"]
    return pd.DataFrame(lines or None, columns=empty).set_index("name")


def its_own(rows: Mapping[str, Row], runs: Iterable[Mapping]) -> Iterator[Mapping]:
    """The runs that are of one of these rows as it stands now: what was trained otherwise is no record of it."""
    for run in runs:
        row = rows.get(run["row"]["name"])
        if row and all(_plain(value) == _plain(getattr(row, key, None)) for key, value in run["row"].items()):
            yield run


def _plain(value: object) -> object:
    """A value as JSON gives it back: a pair is a list."""
    return json.loads(json.dumps(value))


def recorded(profile: str) -> set[str]:
    """The rows of a profile that the engine which is here has trained, wherever their weights are."""
    from ..train.engine import made_by  # which loads torch

    rows = project.rows(profile).rows
    done = {run["row"]["name"]: run for run in its_own(rows, runs(project.reports(profile)))}
    return {name for name, run in done.items() if run.get("engine") == made_by(rows[name].kind)}


# ---- files ----------------------------------------------------------------------------------------------------------


def runs(profile_folder: str | Path) -> list[dict]:
    """The metrics of every run below `runs/`, by name, each with its "timing" (None if there is none) and "folder".

    Records whose numbers are none are not among them: `unsound` names these.
    """
    found = []
    for path in sorted(Path(profile_folder).glob("runs/*/metrics.json")):
        metrics, timing = _json(path), path.with_name("timing.json")
        if not _wrong_number(metrics):
            found.append(metrics | {"timing": _json(timing) if timing.exists() else None, "folder": path.parent})
    return found


def unsound(profile_folder: str | Path) -> dict[str, str]:
    """A sentence for each run, by the name of its folder, that has recorded a number which is none or cannot be."""
    paths = sorted(Path(profile_folder).glob("runs/*/metrics.json"))
    return {path.parent.name: wrong for path in paths if (wrong := _wrong_number(_json(path)))}


def _wrong_number(metrics: Mapping) -> str:
    for name, value in metrics.items():
        if isinstance(value, (int, float)) and not math.isfinite(value):
            return f"its record is not finite: {name} is {value}"
        if name.endswith(("top1", "top5")) and not 0 <= value <= 100:
            return f"its record is none: {name} is {value}, expected 0 to 100"
    return ""


def history(run_folder: str | Path) -> dict[str, list[float]]:
    """The columns of a run's history.csv: {name: one number for each epoch}."""
    with open(Path(run_folder) / "history.csv", newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    return {name: [float(line[name]) for line in lines] for name in (lines[0] if lines else ())}


def _json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: expected JSON, got a file that breaks off or is damaged ({error})") from error


def _broke_off(notebook: Path) -> bool:
    """Whether papermill saw an exception in a notebook."""
    return notebook.is_file() and bool(_json(notebook)["metadata"].get("papermill", {}).get("exception"))


# ---- arms: rows that agree in some columns and differ in their seed alone -------------------------------------------


def where(rows: pd.DataFrame, test: Callable[[Row], bool]) -> pd.DataFrame:
    """The rows whose Row passes a test."""
    return rows[rows.row.map(test).astype(bool)]


def filled(rows: pd.DataFrame, **values: object) -> pd.DataFrame:
    """The rows with the value of those that do not name a setting: `mask="none", kernels=5`."""
    known = {key: rows[key].astype(object) if key in rows else pd.Series(math.nan, rows.index) for key in values}
    return rows.assign(**{key: known[key].astype(object).where(known[key].notna(), values[key]) for key in values})


def agree(rows: pd.DataFrame, keys: Mapping) -> pd.Series:
    """Which rows have all these values."""
    return pd.DataFrame({key: rows[key] == value for key, value in keys.items()}, rows.index).all(axis=1)


def ordered(rows: pd.DataFrame, **orders: Iterable) -> pd.DataFrame:
    """The rows sorted by some columns, each in the order given; rows that are alike stay in theirs."""
    places = {key: {value: place for place, value in enumerate(order)} for key, order in orders.items()}
    return rows.sort_values(list(orders), key=lambda column: column.map(places[column.name]), kind="stable")


def scores(rows: pd.DataFrame, by: Sequence[str], **metrics: str) -> pd.DataFrame:
    """A line for each arm: its keys, and of each metric <name>, <name>_sd (n - 1), <name>_n, <name>_state, <name>_note.

    `metrics` are {name: metric}; without any, ours="top1". The state is empty where all rows were run; else "not run",
    "failed", "2 of 3" or "2 of 3, 1 failed". The note says of which rows the mask did not learn.
    """
    groups, lines = _arms(rows, by), []
    failed = groups.state.agg(lambda states: (states == FAILED).sum())
    notes = _notes(rows, by)
    for name, metric in (metrics or {"ours": "top1"}).items():
        found = _arms(rows.assign(value=_numbers(rows, metric)), by).value.agg(["mean", "std", "count"])
        states = list(map(_state, found["count"], groups.size(), failed))
        found["state"] = pd.Series(states, found.index, object)
        found["note"] = notes
        lines.append(found.set_axis([name, *(f"{name}_{part}" for part in ("sd", "n", "state", "note"))], axis=1))
    return pd.concat(lines, axis=1).reset_index()


def _state(n: int, planned: int, failed: int) -> str:
    if not n:
        return FAILED if failed else NOT_RUN
    return "" if n == planned else f"{n} of {planned}" + (f", {failed} failed" if failed else "")


def _notes(rows: pd.DataFrame, by: Sequence[str]) -> pd.Series:
    """Of each arm, UNLEARNED where that is so of all its masks, "1 of 3 did not learn" where of some, or ""."""
    learned = rows.learned.astype(object) if "learned" in rows else pd.Series(None, rows.index, object)
    still = learned.map({True: 0.0, False: 1.0})
    known = _arms(rows.assign(learned=still), by).learned.agg(["sum", "count"])
    words = [UNLEARNED if some == n else f"{some:.0f} of {n} {UNLEARNED}" for some, n in known.itertuples(index=False)]
    return pd.Series(words, known.index, object).where(known["sum"] > 0, "")


def gains(
    rows: pd.DataFrame, base: Mapping, same: Sequence[str], metric: str = "top1", pooled: Sequence[str] = ()
) -> pd.DataFrame:
    """What each arm gains over its base, paired over seeds: its keys, gain, gain_sd, gain_n, gain_low, gain_high, ...

    gain_low and gain_high are the 95 % t interval of the mean difference, "verdict" says whether it leaves out 0. The
    base of an arm agrees with it in the columns `same` and has the values of `base`, such as {"mask": "none"}. The
    spread of a difference is its own, with n - 1 degrees of freedom (gain_freedom), or what all arms that agree in the
    columns `pooled`, the first ones of `same`, tell together.
    """
    rows, same = rows.assign(value=_numbers(rows, metric)), list(same)
    plain = rows[agree(rows, base)]
    arms = rows.drop(plain.index).merge(plain[same].drop_duplicates(), on=same)
    over = arms.merge(plain[[*same, "seed", "value"]], on=[*same, "seed"], how="left", suffixes=("", "_base"))
    found = _arms(over.assign(value=over.value - over.value_base), [*same, *base]).value.agg(["mean", "std", "count"])
    found = found.set_axis(["gain", "gain_sd", "gain_n"], axis=1).assign(gain_state="")
    found["gain_freedom"] = found.gain_n - 1.0
    if pooled and len(found):
        told = {key: spread(group, same, [*base]) for key, group in rows.groupby([*pooled], sort=False, dropna=False)}
        found[["gain_sd", "gain_freedom"]] = [told[key[: len(pooled)]] for key in found.index]
    mean, n = found.gain, found.gain_n
    half = stats.t.ppf(0.975, found.gain_freedom) * found.gain_sd / n**0.5
    found = found.assign(gain_low=mean - half, gain_high=mean + half)
    found["gain_note"] = _notes(over, [*same, *base])
    found.loc[n == 0, "gain_state"] = NOT_RUN
    beyond = (found.gain_low > 0) | (found.gain_high < 0)
    return found.assign(verdict=beyond.map({True: LARGER, False: WITHIN}).where(n > 1, "–")).reset_index()


def spread(rows: pd.DataFrame, same: Sequence[str], arm: Sequence[str]) -> tuple[float, float]:
    """The standard deviation of two arms' difference at one seed, and its degrees of freedom, as all arms tell it.

    That of an analysis of variance in two ways: value = arm + seed + error, so the difference has twice its variance.
    Arms and seeds have effects of their own for each value of the columns `same`.
    """
    known = rows[rows.value.notna()]
    effects = [
        pd.get_dummies(known.groupby(keys, sort=False, dropna=False).ngroup())
        for keys in ([*same, *arm], [*same, "seed"])
    ]
    design = pd.concat(effects, axis=1).to_numpy(float)
    rank = np.linalg.matrix_rank(design) if len(known) else 0
    if len(known) <= rank:
        return math.nan, math.nan
    errors = known.value - design @ np.linalg.lstsq(design, known.value, rcond=None)[0]
    return (2 * (errors**2).sum() / (len(known) - rank)) ** 0.5, float(len(known) - rank)


def _numbers(rows: pd.DataFrame, metric: str) -> pd.Series:
    return (rows[metric] if metric in rows else pd.Series(math.nan, rows.index)).astype(float)


def _arms(rows: pd.DataFrame, by: Sequence[str]):
    """Groups in the order of their first rows."""
    alike = rows[rows.duplicated([*by, "seed"], keep=False)]
    if len(alike):
        which = alike.groupby([*by, "seed"], sort=False, dropna=False).ngroup()
        first, second, *_ = [each.name for each in alike.row[which == which.iloc[0]]]
        raise ValueError(
            f"expected rows that differ in {', '.join(by)} or their seed, got {first!r} and {second!r}, which "
            f"differ in something else: group by that as well, or leave one out"
        )
    return rows.groupby(list(by), sort=False, dropna=False)


def beside(rows: pd.DataFrame, numbers: pd.DataFrame, on: Sequence[str], name: str = "published") -> pd.DataFrame:
    """The rows with a column of published numbers (of `numbers`), of those that agree in `on`."""
    theirs = numbers[[*on, "published"]].rename(columns={"published": name}).astype(dict.fromkeys(on, object))
    rows = rows.drop(columns=name, errors="ignore").astype(dict.fromkeys(on, object))
    found = rows.merge(theirs, on=list(on), how="left")
    return found.set_axis(rows.index)


def numbers(rows: list[dict]) -> pd.DataFrame:
    """The numbers of published rows one by one: their keys, "dataset" and "published", data set after data set."""
    names = {name.replace("-", "_"): name for name in DATASETS}
    found = pd.DataFrame(rows)
    places = [column for column in found if column in names]
    found = found.melt([column for column in found if column not in names], places, "dataset", "published")
    return found.assign(dataset=found.dataset.map(names)).dropna(subset="published")
