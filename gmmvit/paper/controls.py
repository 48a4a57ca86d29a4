"""The controls of the comparison of priors: what a gain is due to, one sentence each, as the records have it."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from ..train.rows import UNLEARNED
from .priors import PLAIN, RANDOM, SAME, UNIFORM, whole
from .runs import LARGER, NOT_RUN, WITHIN, gains
from .tables import Column, Table, cell


class Control(NamedTuple):
    """Two arms, and what it decides that the first is better than the second, cannot be told from it, or is worse."""

    arm: str
    base: str
    better: str
    level: str
    worse: str


GAIN_OR_SHAPE = (
    Control(
        *("GMM, published start, frozen", RANDOM),
        "a random shape is worth more than a random gain for each head of the same size",
        "a random mixture cannot be told from a random gain for each head: nothing is seen of its shape",
        "a random shape costs more than a random gain for each head of the same size",
    ),
    Control(
        *("GMM, frozen", PLAIN),
        "a local shape with a gain of 1 and nothing learned raises the accuracy",
        "a local shape with a gain of 1 and nothing learned cannot be told from no mask",
        "a local shape with a gain of 1 and nothing learned lowers the accuracy",
    ),
    Control(
        *("GMM", "GMM, published start"),
        "masks that begin local and with a gain of 1 are worth more than masks that begin as published",
        "where the masks begin decides nothing that these seeds could tell",
        "masks that begin as published are worth more than masks that begin local and with a gain of 1",
    ),
    Control(
        *("GMM", "temperature"),
        "the shape of the masks adds to what a learned gain for each head does",
        "a mask with a shape cannot be told from a learned gain for each head",
        "a learned gain for each head does more than a mask with a shape",
    ),
    Control(
        *("GMM", "GMM, frozen"),
        "what the masks learn makes them better than they began",
        "what the masks learn cannot be told from how they began",
        "what the masks learn makes them worse than they began",
    ),
    Control(
        *(RANDOM, PLAIN),
        "random gains alone raise the accuracy",
        "random gains alone cannot be told from no mask",
        "random gains alone lower the accuracy, before any shape is drawn",
    ),
    Control(
        *("GMB", "GMM"),
        "the same mixture is worth more where it is added to the scores than where it multiplies them",
        "a mixture that is added to the scores cannot be told from one that multiplies them",
        "the same mixture is worth more where it multiplies the scores than where it is added to them",
    ),
)
OTHERS = (
    Control(
        *(UNIFORM, PLAIN),
        "attention by content is worse than an average over all patches",
        "attention by content cannot be told from an average over all patches",
        "attention by content is worth these points",
    ),
    Control(
        *("ELM", UNIFORM),
        "the free mask is more than an average over all patches",
        "the free mask cannot be told from an average over all patches",
        "the free mask is worse than an average over all patches",
    ),
    Control(
        *("GAB, frozen", PLAIN),
        "the Gaussian bias helps as it begins, with nothing learned",
        "the Gaussian bias as it begins cannot be told from none",
        "the Gaussian bias hurts as it begins",
    ),
    Control(
        *("GAB", "GAB, frozen"),
        "what the Gaussian bias learns adds to what it began with",
        "what the Gaussian bias learns cannot be told from how it began",
        "what the Gaussian bias learns makes it worse than it began",
    ),
    Control(
        *("GMB", "GAB"),
        "a mixture for each head is worth more than one Gaussian for all",
        "a mixture for each head cannot be told from one Gaussian for all",
        "one Gaussian for all heads does more than a mixture for each",
    ),
)
ALL = (*GAIN_OR_SHAPE, *OTHERS)
SINGLE, STILL = "one seed decides nothing", f"nothing: the masks {UNLEARNED}"


def lines(rows: pd.DataFrame, controls: tuple[Control, ...]) -> list[dict]:
    """A line for each control: its two arms, the first's gain over the second, paired over seeds, what that decides."""
    rows, found = whole(rows), []
    for control in controls:
        both = rows.arm.isin((control.arm, control.base)).any()
        over = gains(rows, {"arm": control.base}, SAME, pooled=SAME).to_dict("records") if both else []
        own = [each for each in over if each["arm"] == control.arm]
        for gain in own or [{"gain": None, "gain_n": 0, "gain_state": NOT_RUN}]:
            found.append(gain | {"arm": control.arm, "base": control.base, "decides": _decides(control, gain)})
    return found


def _decides(control: Control, gain: dict) -> str:
    """What the records say of a control; empty where it was not run."""
    if not gain["gain_n"]:
        return ""
    if gain["gain_note"] == UNLEARNED and control.base == f"{control.arm}, frozen":
        return STILL
    if gain["verdict"] == LARGER:
        return control.better if gain["gain"] > 0 else control.worse
    return control.level if gain["verdict"] == WITHIN else SINGLE


def table(found: list[dict]) -> Table:
    """The controls, their gains and what these decide."""
    columns = [Column("arm", "arm"), Column("base", "against"), Column("gain", "gain [95 % interval] (n)", "+.2f")]
    return Table([*columns, Column("decides", "what that decides")], found)


def told(found: list[dict]) -> str:
    """The sentences of the controls that were run."""
    run = [line for line in found if line["decides"]]
    return " ".join(
        f"{line['arm']} against {line['base']} {cell(line, 'gain', '+.2f')}: {line['decides']}." for line in run
    )
