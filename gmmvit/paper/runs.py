"""The records of runs: read, grouped over seeds, set beside published numbers and beside their plain counterparts."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .seeds import Summary, paired_gain, summary


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


def missing(rows: Iterable[str], runs: Iterable[Mapping]) -> list[str]:
    """The names of the rows that have no run."""
    there = {run["row"]["name"] for run in runs}
    return [name for name in rows if name not in there]


def _json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: expected JSON, got a file that breaks off or is damaged ({error})") from error


# ---- rows that differ in their seed alone ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Score(Summary):
    """Mean and sd of the n rows of a group that were run, of all that were planned; so many failed."""

    planned: int
    failed: int


@dataclass(frozen=True)
class Group:
    """Rows that differ in their seed alone."""

    keys: dict
    rows: tuple[str, ...]  # names
    runs: tuple[dict, ...]
    failed: int

    def by_seed(self, metric: str = "top1") -> dict[int, float]:
        """{seed: number}, for gmmvit.paper.seeds.paired_gain."""
        return {run["row"]["seed"]: run[metric] for run in self.runs}

    def score(self, metric: str = "top1") -> Score:
        """Mean, sd and n of a metric."""
        found = summary(run[metric] for run in self.runs)
        return Score(found.mean, found.sd, found.n, len(self.rows), self.failed)

    def one(self, metric: str) -> int | float | None:
        """A metric that all runs of the group share (parameters, MACs); None where there is no run."""
        return self.runs[0][metric] if self.runs else None


def group(rows: Mapping, runs: Iterable[dict], failed: Collection[str] = (), /, **keys) -> list[Group]:
    """Rows {name: row} grouped by keys, each with the value of rows that do not name it: `mask="none", kernels=5`.

    A row is a dict, or an object, with dataset, model, mask, recipe, seed and set; a key is one of these or one of the
    settings in `set`. Groups come in the order of their first rows.
    """
    there = {run["row"]["name"]: run for run in runs}
    groups: dict[str, dict[int, str]] = {}  # the keys' values as JSON: {seed: name}
    for name, row in rows.items():
        fields = row if isinstance(row, Mapping) else vars(row)
        known = {**keys, **(fields.get("set") or {}), **fields}
        seeds = groups.setdefault(json.dumps([known[key] for key in keys]), {})
        other = seeds.setdefault(fields.get("seed", 0), name)
        if other != name:
            raise ValueError(
                f"expected rows that differ in {', '.join(keys)} or their seed, got {other!r} and {name!r}, which "
                f"differ in something else: group by that as well, or leave one out"
            )
    return [
        Group(
            dict(zip(keys, json.loads(values), strict=True)),
            tuple(seeds.values()),
            tuple(there[name] for name in seeds.values() if name in there),
            sum(name in failed and name not in there for name in seeds.values()),
        )
        for values, seeds in groups.items()
    ]


def compare(groups: Iterable[Group], published: Iterable[Mapping], metric: str = "top1") -> list[dict]:
    """A line for each group: its keys, published, ours (a Score), difference, parameters, MACs, depth.

    The published number is in the column of the group's data set, in the row that agrees with all keys it has.
    """
    published, lines = list(published), []
    for each in groups:
        ours = each.score(metric)
        theirs = look_up(published, each.keys, str(each.keys.get("dataset")))
        difference = None if ours.mean is None or theirs is None else ours.mean - theirs
        cost = {name: each.one(name) for name in ("parameters", "macs_paper", "macs", "depth")}
        lines.append(each.keys | {"published": theirs, "ours": ours, "difference": difference} | cost)
    return lines


def look_up(published: Iterable[Mapping], keys: Mapping, dataset: str) -> float | None:
    """The number in a data set's column of published rows, from the first row that has it and agrees with the keys."""
    column = dataset.replace("-", "_")
    for row in published:
        if column in row and all(row[key] == value for key, value in keys.items() if key in row):
            return row[column]
    return None


def gains(groups: Iterable[Group], base: Mapping, same: Iterable[str], metric: str = "top1") -> list[dict]:
    """What each group gains over its base, paired over seeds: its keys and "gain" (a gmmvit.paper.seeds.Gain).

    The base of a group agrees with it in the keys `same`, and has the values of `base`, such as {"mask": "none"}.
    """
    groups, same = list(groups), list(same)
    bases = {
        json.dumps([each.keys[key] for key in same]): each
        for each in groups
        if all(each.keys[key] == value for key, value in base.items())
    }
    lines = []
    for each in groups:
        against = bases.get(json.dumps([each.keys[key] for key in same]))
        if against is not None and against is not each:
            lines.append(each.keys | {"gain": paired_gain(each.by_seed(metric), against.by_seed(metric))})
    return lines
