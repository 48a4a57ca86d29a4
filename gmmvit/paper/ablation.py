"""The GMM paper's ablations on ViT but for the number of kernels (gmmvit.paper.kernels): starts, heads, place, depth.

Of these the paper's numbers are known for no mask, and GMM shared by the heads or not; its other sentences are words.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from ..models.vit import SIZES
from ..train.recipes import MIXING, find
from ..train.rows import Row
from .gmm import KEYS, PLAIN, published_main
from .names import DATASETS, MODELS, readable
from .runs import DONE, LARGER, WITHIN, beside, filled, gains, scores, where
from .starts import CELL, usual
from .tables import UNKNOWN, Table, cell, missing

PAPERS = "vit"  # the model of the published numbers
ABLATED = (PAPERS, "vit_xs")  # and one that a CPU trains long enough
BASE = {  # the paper's mask on either of them; an arm names what it has instead
    "model": None,
    "mask": "gmm",
    "readout": "mean",
    "share_heads": False,
    "kernels": 5,
    "sigma_init": (10.0, 10.0),
    "alpha_init": (0.0, 2.0),
    "where": "scores",
}
SIGMAS = ((1, 0), (1, 1), (3, 1), (3, 3), (10, 0), (10, 10), (30, 10))  # mean, sd; with alpha 0, 2
ALPHAS = {"0, 0.5": (0, 0.5), "0, 2": (0, 2), "1/K, 0": (1 / BASE["kernels"], 0), "1, 0.2": (1, 0.2)}  # sigma 10, 10
DEPTHS = ("vit_d6", "vit", "vit_d15", "vit_d30", "vit_d30_108", "vit_d30_192", "vit_d60")

INITIAL = {
    "initial sigma: mean, sd": {f"{mean}, {sd}": {"sigma_init": (mean, sd)} for mean, sd in SIGMAS},
    "initial alpha: mean, sd": {label: {"alpha_init": pair} for label, pair in ALPHAS.items()},
}
OTHERS = {
    "mask": {
        "plain": {"mask": "none"},
        "ELM": {"mask": "elm"},
        "GMM, shared by the heads": {"share_heads": True},
        "GMM, one for each head": {},
    },
    "place of the mask": {"before the softmax": {}, "after the softmax": {"where": "probabilities"}},
}
DEPTH = {f"{SIZES[model]['depth']}, {SIZES[model]['embed_dim']}": {"model": model} for model in DEPTHS}
DEPTH |= {label: {} for label, differs in DEPTH.items() if differs["model"] in ABLATED}
CLAIMED = (("GMM, one for each head", "ELM"), ("after the softmax", "before the softmax"))  # compared in words alone
ARMS = ("group", "label", "series", "dataset", "model", "recipe", "published")  # what tells lines of ablations apart


def differences(row: Row, cell: Mapping) -> dict:
    """What a row has instead of the paper's mask on ViT, in the cell (gmmvit.paper.starts) of most of its like."""
    others = {
        key: row.set[key] for key in (*MIXING, *CELL, "freeze_masks", "fraction", "init_weights") if key in row.set
    }
    model = None if row.model in ABLATED else row.model
    settings = {"model": model, "mask": row.mask, **row.model_options, **others, **row.mask_options}
    settings, base = _relative(settings), _relative(BASE | dict(cell))
    return {key: value for key, value in settings.items() if value != base.get(key)}


def _relative(settings: Mapping) -> Mapping:
    """The settings of a mask; heights of 1/K (profiles write three digits) are called so, whatever K is."""
    heights = (round(1 / settings.get("kernels", BASE["kernels"]), 3), 0)
    return {**settings, "alpha_init": "1/K"} if settings.get("alpha_init") == heights else settings


def initialisations(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the initial sigma and alpha, with and without weight decay on them (a series each)."""
    rows = panels_of(frame, INITIAL)
    decayed = {True: "sigma and alpha decayed", False: "not decayed"}
    return rows.assign(series=[decayed[row.recipe_settings.decay_masks] for row in rows.row])


def others(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the kind of mask, of the heads that share one, and of its place before or after the softmax."""
    rows = filled(panels_of(usual_decay(frame), OTHERS), **PLAIN).drop(columns="published")
    rows = beside(rows, published_main(), KEYS)
    return rows.assign(published=rows.published.where(rows.group == "mask"))


def depths(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of depth and width, plain and with the mask (a series each)."""
    series = {"plain": {"mask": "none"}, "GMM": {}}
    panels = {name: {label: differs | mask for label, differs in DEPTH.items()} for name, mask in series.items()}
    frame = usual_decay(frame[frame.model.isin(DEPTHS)])
    found = [panels_of(frame, {"depth, width": panel}).assign(series=name) for name, panel in panels.items()]
    return pd.concat(found)


def usual_decay(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows whose masks are decayed, or not, as their recipe says."""
    frame = frame[frame.kind == "classification"]
    return where(frame, lambda row: row.recipe_settings.decay_masks == find(row.recipe).decay_masks)


def panels_of(frame: pd.DataFrame, panels: Mapping) -> pd.DataFrame:
    """The rows of panels of arms {group: {label: differences}}, once in each of which they are an arm."""
    frame = frame[frame.kind == "classification"].assign(group="", label="", series="", published=float("nan"))
    cells, found = usual(frame), [frame[:0]]
    base = _relative(BASE | dict(cells.get("gmm", {})))
    own = frame.row.map(lambda row: differences(row, cells[row.mask]))
    for group, arms in panels.items():
        for label, differs in arms.items():
            differs = {key: value for key, value in _relative(differs).items() if value != base[key]}
            alike = frame[own.map(lambda each, arm=differs: each == arm).astype(bool)]
            found.append(alike.assign(group=group, label=pd.Series(label, alike.index, object)))
    return pd.concat(found)


def arms_table(*rows: pd.DataFrame) -> Table:
    """published | ours of arms; where the paper's number is not known it says so."""
    lines = scores(pd.concat(rows), ARMS)
    known = lines.published.notna() | ~lines.model.isin(DEPTHS)  # of other models there are none to be known
    lines = lines.assign(published_state=known.map({False: UNKNOWN, True: ""}))
    return Table(["dataset", "model", "group", "label", "series", "published", "ours"], readable(lines))


def compared(rows: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The rows that were run and a line on panels of one arm, which compare nothing and are left out.

    The panels ("group") name the data set and the model where there are several.
    """
    run = rows[rows.state == DONE]
    place = places(run) + ": "
    alone = run.groupby(["dataset", "model", "group"]).label.transform("nunique") < 2
    words = (place + run.group + " (" + run.label.astype(str) + ")")[alone].unique()
    told = f"Not drawn, as one arm alone was run: {'; '.join(words)}." if len(words) else ""
    return run.assign(group=place + run.group if place.nunique() > 1 else run.group)[~alone], told


def places(rows: pd.DataFrame) -> pd.Series:
    """The data set of each row by name, and its model where there are several."""
    model = ", " + rows.model.map(lambda name: MODELS.get(name, name)) if rows.model.nunique() > 1 else ""
    return rows.dataset.map(lambda name: DATASETS.get(name, name)) + model


def others_found(rows: pd.DataFrame) -> str:
    """A sentence on what the paper says in words: the mixture beats the free mask; its place makes no difference."""
    found, rows = [], rows.assign(place=places(rows))
    for place in rows.place[rows.state == DONE].unique():
        for over, base in CLAIMED:
            pair = rows[(rows.place == place) & rows.label.isin((over, base))]
            for gain in gains(pair, {"label": base}, ["place", "recipe"]).to_dict("records"):
                if not missing(gain["gain"]):
                    words = f"{over} against {base} on {place} {cell(gain, 'gain', '+.2f')}"
                    found.append(f"{words}, {_as_published(gain, base)}")
    return f"Ours: {'; '.join(found)}." if found else ""


def _as_published(gain: Mapping, base: str) -> str:
    if gain["verdict"] not in (LARGER, WITHIN):
        return "of one seed"
    if base == "before the softmax":
        no = "as published no difference to be told from the seeds'"
        return "not as published" if gain["verdict"] == LARGER else no
    if gain["verdict"] == WITHIN:
        return "which cannot be told from zero"
    return "as published" if gain["gain"] > 0 else "not as published"
