"""The arms of the GAB paper's experiments: which rows are which, in words, and those that were published."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ..train.rows import LENGTH, START_OPTIONS, Row
from . import names
from .names import DATASETS, SIZES
from .published import table as published_table
from .runs import Group, group

ARM = {"pretrained": False, "reset_positions": True, "mask": "none", "share_heads": True}
BASE = {"mask": "none", "reset_positions": True}  # what gains are measured against


def gab_groups(rows: Mapping[str, Row], runs: Iterable[dict], failed: Collection[str] = ()) -> list[Group]:
    """The arms of models with a relative position bias, plain and with GAB; rows of other questions are left out."""
    settings = {*START_OPTIONS, *LENGTH, "share_heads"}
    arms = {
        name: _fields(row)
        for name, row in rows.items()
        if row.model.startswith("vit_relpos") and row.mask in ("none", "gab") and row.set.keys() <= settings
    }
    groups = group(arms, runs, failed, dataset=None, model=None, recipe=None, validation=None, **ARM)
    datasets, models = ([each.keys[key] for each in groups] for key in ("dataset", "model"))

    def order(each: Group) -> tuple:
        keys = each.keys
        place = datasets.index(keys["dataset"]), models.index(keys["model"])
        return *place, keys["mask"] == "gab", not keys["reset_positions"], not keys["share_heads"]

    return sorted(groups, key=order)


def _fields(row: Row) -> dict:
    """What a row is grouped by; a position bias that is trained from scratch begins like one that was drawn anew."""
    start = row.start_options
    pretrained = bool(start.get("pretrained") or start.get("pretrained_file"))
    return vars(row) | {
        "pretrained": pretrained,
        "reset_positions": not pretrained or start.get("reset_positions", False),
        "validation": row.recipe_settings.select == "validation",
    }


def head_groups(groups: Iterable[Group]) -> list[Group]:
    """The arms on data sets and models on which GAB for each head is compared."""
    groups = list(groups)
    compared = {_place(each) for each in groups if not each.keys["share_heads"]}
    return [each for each in groups if _place(each) in compared]


def size_groups(groups: Iterable[Group]) -> list[Group]:
    """The arms of Tables 2 and 3: the paper's models, a position bias drawn anew, none or a GAB that heads share."""
    wanted = {"reset_positions": True, "share_heads": True}
    return [each for each in groups if each.keys["model"] in SIZES and wanted.items() <= each.keys.items()]


def _place(each: Group) -> tuple:
    return each.keys["dataset"], each.keys["model"], each.keys["pretrained"]


def the_group(groups: Iterable[Group], keys: Mapping) -> Group | None:
    """The group that agrees with all keys."""
    return next((each for each in groups if keys.items() <= each.keys.items()), None)


def printed_arms(table: str, **which) -> list[dict]:
    """The keys of the arms of a published table, each once for each of its data sets."""
    rows = [row for row in published_table(table)["rows"] if which.items() <= row.items()]
    return [
        ARM | {key: row[key] for key in ("model", *ARM) if key in row} | {"dataset": dataset}
        for dataset in DATASETS
        for row in rows
        if dataset.replace("-", "_") in row
    ]


def arm(keys: Mapping) -> str:
    """An arm in words; with GAB, a pretrained position bias was drawn anew where nothing is said of it."""
    if keys["mask"] == "gab":
        words = "GAB shared by the heads" if keys["share_heads"] else "GAB for each head"
    else:
        words = "no GAB" + (", position bias drawn anew" if keys["pretrained"] and keys["reset_positions"] else "")
    return words if keys["reset_positions"] else f"{words}, pretrained position bias kept"


def named(keys: Mapping) -> dict:
    """Data set, model and arm as a reader knows them."""
    return names.named(keys) | {"arm": arm(keys)}
