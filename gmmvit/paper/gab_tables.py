"""The GAB paper's tables: shared by the heads or not, transfer and ImageNet, and what became of A and sigma."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from ..train import learned
from .gab_arms import BASE, arm, head_groups, named, printed_arms, the_group
from .main_table import VERDICTS, gains_table
from .published import table as published_table
from .runs import Group, gains, look_up
from .seeds import paired_gain
from .tables import ABSENT, NOT_RUN, Column, Table

SCALARS = ("amplitude", "sigma")

# ---- accuracies -----------------------------------------------------------------------------------------------------


def heads_table(groups: Iterable[Group]) -> Table:
    """Validation and test, published | ours, of the arms on data sets and models with a GAB for each head."""
    published, lines = published_table("gab_heads")["rows"], []
    for each in head_groups(groups):
        line = named(each.keys)
        for split, metric in (("val", "val_top1"), ("test", "top1")):
            line[f"{split}_published"] = look_up(published, each.keys | {"split": split}, each.keys["dataset"])
            line[split] = each.score(metric) if split == "test" or each.keys["validation"] else None
        if each.runs and line["test_published"] is not None:
            line["difference"] = line["test"].mean - line["test_published"]
        lines.append(line)
    columns = [
        Column("dataset", "data set"),
        Column("model", "model"),
        Column("arm", "arm"),
        Column("val_published", "validation: published", ".3f"),
        Column("val", "validation: ours, mean ± sd (n)"),
        Column("test_published", "test: published", ".3f"),
        Column("test", "test: ours, mean ± sd (n)"),
        Column("difference", "difference", "+.2f"),
    ]
    return Table(columns, lines)


def published_heads() -> Table:
    """Supplement, Table 4: validation and test of the three arms on four data sets."""
    rows, lines = published_table("gab_heads")["rows"], []
    for keys in printed_arms("gab_heads", split="test"):
        line, plain = named(keys), keys | {"mask": "none", "share_heads": True}
        for split in ("val", "test"):
            line[split], without = (look_up(rows, each | {"split": split}, keys["dataset"]) for each in (keys, plain))
            line[f"{split}_gain"] = line[split] - without if keys != plain else None
        lines.append(line)
    columns = [
        Column("dataset", "data set"),
        Column("arm", "arm"),
        Column("val", "validation", ".3f"),
        Column("val_gain", "validation: gain", "+.3f"),
        Column("test", "test", ".3f"),
        Column("test_gain", "test: gain", "+.3f"),
    ]
    return Table(columns, lines)


def sizes_table(groups: Iterable[Group], name: str) -> Table:
    """Without and with GAB and the gain, each published | ours, of a published table (gab_transfer, gab_imagenet)."""
    groups, rows, lines = list(groups), published_table(name)["rows"], []
    for plain in printed_arms(name, mask="none"):
        masked, line = plain | {"mask": "gab"}, named(plain)
        without, with_gab = the_group(groups, plain), the_group(groups, masked)
        for column, keys, each in (("without", plain, without), ("with", masked, with_gab)):
            line[f"{column}_published"] = look_up(rows, keys, keys["dataset"])
            line[column] = ABSENT if each is None else each.score()
        line["gain_published"] = line["with_published"] - line["without_published"]
        if without and with_gab:
            gain = paired_gain(with_gab.by_seed(), without.by_seed())
            line["gain"] = gain if gain.n else NOT_RUN
        lines.append(line)
    columns = [
        Column("dataset", "data set"),
        Column("model", "model"),
        Column("without_published", "without GAB: published", ".3f"),
        Column("without", "without GAB: ours, mean ± sd (n)"),
        Column("with_published", "with GAB: published", ".3f"),
        Column("with", "with GAB: ours, mean ± sd (n)"),
        Column("gain_published", "gain: published", "+.3f"),
        Column("gain", "gain: ours [95 % interval] (n)", "+.2f"),
    ]
    return Table(columns, lines)


def gain_points(groups: Iterable[Group]) -> list[dict]:
    """What each arm gains on the test part over no GAB with a position bias drawn anew: points for plots.gains."""
    rows = [row for name in ("gab_transfer", "gab_imagenet", "gab_heads") for row in published_table(name)["rows"]]
    rows = [row for row in rows if row.get("split", "test") == "test"]
    points = []
    for line in gains(groups, BASE, ["dataset", "model", "pretrained", "recipe"]):
        ours, plain = (look_up(rows, keys, line["dataset"]) for keys in (line, line | BASE | {"share_heads": True}))
        theirs = None if ours is None or plain is None else ours - plain
        found = {"gain": line["gain"], "published": theirs, "verdict": VERDICTS[line["gain"].beyond_spread]}
        points.append(named(line) | {"label": arm(line)} | found)
    return points


def gab_gains(points: Iterable[Mapping]) -> Table:
    """Published gain | ours with its 95 % interval | whether it is larger than the seeds' spread."""
    return gains_table(point if point["gain"].n else {**point, "gain": NOT_RUN} for point in points)


# ---- what was learned -----------------------------------------------------------------------------------------------


def learned_layers(groups: Iterable[Group]) -> list[dict]:
    """|A| and |sigma| of every run with GAB, (layers, heads or 1) each; the bias does not see their signs.

    Where their published means over layers are known, they are <name>_published.
    """
    lines = []
    for each in groups:
        for run in each.runs if each.keys["mask"] == "gab" else ():
            masks = learned.read(run["folder"])
            values = {name: np.abs([mask.parameters[name] for mask in masks]) for name in SCALARS}
            lines.append(named(each.keys) | values | _published_means(each.keys))
    return lines


def _published_means(keys: Mapping) -> dict[str, float | None]:
    rows = published_table("gab_learned")["rows"]
    return {f"{name}_published": look_up(rows, keys | {"parameter": name}, keys["dataset"]) for name in SCALARS}


def learned_table(groups: Iterable[Group]) -> Table:
    """Means of A and sigma over layers (and heads), published | ours, as in the supplement's Table 3."""
    groups = [_with_means(each) for each in groups if each.keys["mask"] == "gab"]
    lines = []
    printed = [keys for keys in printed_arms("gab_learned", parameter="sigma") if the_group(groups, keys) is None]
    for keys in [*(each.keys for each in groups), *printed]:
        each = the_group(groups, keys)
        ours = {name: ABSENT if each is None else each.score(name) for name in SCALARS}
        lines.append(named(keys) | _published_means(keys) | ours)
    columns = [
        Column("dataset", "data set"),
        Column("model", "model"),
        Column("arm", "arm"),
        Column("amplitude_published", "mean A: published", ".3f"),
        Column("amplitude", "mean A: ours, mean ± sd (n)", ".3f"),
        Column("sigma_published", "mean σ: published", ".3f"),
        Column("sigma", "mean σ: ours, mean ± sd (n)", ".3f"),
    ]
    return Table(columns, lines)


def _with_means(each: Group) -> Group:
    """The group whose runs have the means of A and sigma among their metrics."""
    layers = learned_layers([each])
    means = [{name: float(line[name].mean()) for name in SCALARS} for line in layers]
    return replace(each, runs=tuple(run | mean for run, mean in zip(each.runs, means, strict=True)))
