"""The GMM paper: five backbones, plain and with the mask, beside the published numbers; its ablations on ViT.

Of the ablations the paper's numbers are known for the number of kernels, no mask, and GMM shared by the heads or not.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from ..models.vit import SIZES
from ..train.recipes import MIXING, find
from ..train.rows import Row
from . import runs
from .names import BACKBONES, DATASETS, MASKS, MODELS, readable
from .published import table as published_table
from .runs import DONE, LARGER, WITHIN, beside, filled, gains, history, numbers, scores, where
from .starts import CELL, cell_of, usual
from .tables import UNKNOWN, Column, Table, cell, missing

COLUMNS = ("cifar10", "cifar100", "svhn", "tiny_imagenet")  # of the published tables
PASSES = find("gmm").epochs * find("gmm").passes  # of the paper's runs over their images
PLAIN = {"mask": "none", "readout": "mean", "share_heads": False, "underflow": False}  # what gains are measured against
VARIED = ("dataset", "model", *PLAIN)
FIXED = {"kernels": 5, "where": "scores"}
FIXED |= {"freeze_masks": False, "fraction": 1}
FIXED |= dict.fromkeys(("decay_masks", "init_weights", *MIXING))  # not set: as mask, model and recipe have them
KEYS = ("dataset", "model", "mask", "readout", "share_heads")  # of the published numbers

# ---- the main table -------------------------------------------------------------------------------------------------


def published_main() -> pd.DataFrame:
    """The published numbers, each beside the arm it (probably) comes from (errata G1 to G3).

    ViT's mean read-out and its mask shared by the heads are the first table's; of the class-token read-out only the
    CIFAR-10 value was published; the later table's masks have their own mixture in each head.
    """
    rows = [row | {"share_heads": False} for row in published_table("gmm_main")["rows"]]
    plain, masked = published_table("gmm_main_first")["rows"]
    token = next(row for row in rows if (row["model"], row["mask"]) == ("vit", "none"))
    both = [row for row in rows if row is not token] + [masked | {"share_heads": True}]
    rows = [plain | {"readout": "mean", "share_heads": False}]
    rows += [{key: token[key] for key in ("model", "mask", "cifar10", "share_heads")} | {"readout": "token"}]
    rows += [row | {"readout": readout} for row in both for readout in ("mean", "token")]
    return numbers([{key: row[key] for key in (*KEYS, *COLUMNS) if key in row} for row in rows])


def rebuilt_table() -> Table:
    """The published table, and beside its parameters and MACs those of our models, counted now at 32 px, 10 classes."""
    from ..core.cost import cost
    from ..models import create_model

    lines = []
    for line in published_table("gmm_main")["rows"]:
        ours = cost(create_model(line["model"], mask=None if line["mask"] == "none" else line["mask"]))
        ours = {"parameters": ours.parameters, "macs_ours_M": ours.macs_paper / 1e6, "depth_ours": ours.depth}
        lines.append(line | ours | {"model": MODELS[line["model"]], "mask": MASKS[line["mask"]]})
    columns = ["model", "mask", *COLUMNS, "parameters_M", Column("parameters", "parameters: ours")]
    columns += [Column("macs_M", "MACs (M): published"), Column("macs_ours_M", "MACs (M): ours", ".1f")]
    return Table([*columns, Column("depth", "depth: published"), Column("depth_ours", "depth: ours", "d")], lines)


def main_arms(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the main table: five backbones, plain and masked (GMM of five kernels), both read-outs.

    With the columns of VARIED, their "arm" in words, and the number "published" of it.
    """
    rows = filled(frame, **PLAIN)
    cells = usual(rows)
    rows = where(rows, lambda row: all(row.set.get(key, value) == value for key, value in FIXED.items()))
    rows = where(rows, lambda row: cell_of(row) == cells[row.mask])
    rows = rows[rows.model.isin(BACKBONES) & rows["mask"].isin(MASKS)]
    rows = runs.ordered(rows, dataset=rows.dataset.unique(), model=BACKBONES)
    rows = rows.assign(arm=[arm(keys) for keys in rows.to_dict("records")])
    return beside(rows, published_main(), KEYS)


def arm(keys: Mapping) -> str:
    """What sets an arm of the main table apart, in words."""
    words = MASKS.get(keys["mask"], keys["mask"])
    words += ", shared by the heads" if keys["share_heads"] else ""
    words += ", underflow of float32" if keys["underflow"] else ""
    return words + (", class token" if keys["readout"] == "token" else "")


def main_table(frame: pd.DataFrame) -> Table:
    """published | ours | difference of each arm of the main table, with parameters, MACs and depth."""
    rows, by = main_arms(frame), [*VARIED, "arm", "published"]
    costs = ["parameters", "macs_paper", "macs", "depth"]
    rows = rows.reindex(columns=dict.fromkeys([*rows.columns, *costs]))
    lines = scores(rows, by)
    lines = lines.join(rows.groupby(by, sort=False, dropna=False)[costs].first().reset_index(drop=True))
    lines = lines.assign(
        difference=lines.ours - lines.published, macs_paper_M=lines.macs_paper / 1e6, macs_M=lines.macs / 1e6
    )
    columns = ["dataset", "model", Column("arm", "attention"), "published", "ours", "difference"]
    return Table([*columns, "parameters", "macs_paper_M", "macs_M", "depth"], readable(lines))


def main_gains(frame: pd.DataFrame) -> pd.DataFrame:
    """What each mask gains over the plain model with a mean read-out, paired over seeds (gmmvit.paper.runs.gains).

    With "arm" and "label" in words, and "published", the published gain.
    """
    found = gains(main_arms(frame), PLAIN, ["dataset", "model"])
    found = found[found["mask"] != "none"].reset_index(drop=True)
    found = beside(found, published_main(), KEYS)
    found["published"] -= beside(found.assign(**PLAIN), published_main(), KEYS, "plain").plain
    arms = [arm(keys) for keys in found.to_dict("records")]
    return found.assign(arm=arms, label=[f"{BACKBONES[m]}, {a}" for m, a in zip(found.model, arms, strict=True)])


def main_curves(frame: pd.DataFrame) -> list[dict]:
    """A panel for gmmvit.paper.charts.by_epoch: the arms of ViT that were run, on the first data set."""
    rows = main_arms(frame)
    rows = rows[(rows.model == "vit") & (rows.dataset == rows.dataset.iloc[0])] if len(rows) else rows
    run = rows[rows.state == DONE]
    arms = {arm: [history(folder) for folder in alike.folder] for arm, alike in run.groupby("arm", sort=False)}
    return [{"title": DATASETS.get(run.dataset.iloc[0], ""), "score": "top1", "arms": arms}] if arms else []


# ---- the ablations --------------------------------------------------------------------------------------------------

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
KERNELS = (1, 2, 3, 4, 5, 8, 10)
DEPTHS = ("vit_d6", "vit", "vit_d15", "vit_d30", "vit_d30_108", "vit_d30_192", "vit_d60")

COUNTS = {"kernels": {0: {"mask": "none"}} | {count: {"kernels": count} for count in KERNELS}}
ADDED = {"kernels": {count: {"mask": "gmb", "kernels": count} for count in KERNELS}}  # the mixture as a bias
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


def by_kernels(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the number of kernels, of GMM and of GMB (a series); 0 is the model without a mask.

    That was published as a mask of one kernel.
    """
    theirs = numbers(published_table("gmm_kernels")["rows"])
    theirs = theirs.assign(label=theirs.kernels.where(theirs["mask"] != "none", 0), model=PAPERS, series="")
    rows = _usual(frame)
    rows = pd.concat([_panels(rows, COUNTS), _panels(rows, ADDED).assign(series=MASKS["gmb"])])
    return beside(rows, theirs, ["dataset", "model", "label", "series"])


def initialisations(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the initial sigma and alpha, with and without weight decay on them (a series each)."""
    rows = _panels(frame, INITIAL)
    decayed = {True: "sigma and alpha decayed", False: "not decayed"}
    return rows.assign(series=[decayed[row.recipe_settings.decay_masks] for row in rows.row])


def others(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the kind of mask, of the heads that share one, and of its place before or after the softmax."""
    rows = beside(filled(_panels(_usual(frame), OTHERS), **PLAIN).drop(columns="published"), published_main(), KEYS)
    return rows.assign(published=rows.published.where(rows.group == "mask"))


def depths(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of depth and width, plain and with the mask (a series each)."""
    series = {"plain": {"mask": "none"}, "GMM": {}}
    panels = {name: {label: differs | mask for label, differs in DEPTH.items()} for name, mask in series.items()}
    frame = frame[frame.model.isin(DEPTHS)]
    found = [_panels(_usual(frame), {"depth, width": panel}).assign(series=name) for name, panel in panels.items()]
    return pd.concat(found)


def _usual(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows whose masks are decayed, or not, as their recipe says."""
    frame = frame[frame.kind == "classification"]
    return where(frame, lambda row: row.recipe_settings.decay_masks == find(row.recipe).decay_masks)


def _panels(frame: pd.DataFrame, panels: Mapping) -> pd.DataFrame:
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


def kernels_table() -> Table:
    """The published numbers of kernels, the point at 1 as what it is: the model without a mask."""
    lines = [row | {"mask": MASKS[row["mask"]]} for row in published_table("gmm_kernels")["rows"]]
    return Table(["kernels", Column("mask", "what it is"), *COLUMNS], lines)


def kernel_gains(rows: pd.DataFrame) -> pd.DataFrame:
    """Gains over no mask by the number of kernels (label), on data sets and models with two numbers or more.

    The spread is what all numbers tell together: of each there are two or three seeds.
    """
    same = ["dataset", "model"]
    found = gains(rows, {"label": 0, "series": ""}, same, pooled=same) if len(rows) else rows.assign(gain=[], gain_n=[])
    found = found[found.gain_n > 0].sort_values(["series", "label"], kind="stable")
    found = found[found.groupby([*same, "series"]).label.transform("size") > 1]
    return found.assign(series=found.series.where(found.series != "", MASKS["gmm"]))


def kernels_found(rows: pd.DataFrame) -> str:
    """A sentence on the numbers of kernels with the highest and the lowest gain of each series."""
    places, told = dict(zip(rows.dataset + rows.model, _places(rows), strict=True)), []
    for (dataset, model, series), curve in kernel_gains(rows).groupby(["dataset", "model", "series"], sort=False):
        ends = [curve.loc[index].to_dict() for index in (curve.gain.idxmax(), curve.gain.idxmin())]
        high, low = (f"with {_kernels(end['label'])}: {cell(end, 'gain', '+.2f')}" for end in ends)
        told.append(f"{series} on {places[dataset + model]} gains most {high}, and least {low}")
    return f"Ours: {'; '.join(told)}." if told else ""


def published_kernel_gains() -> pd.DataFrame:
    """The published gains over no mask: dataset, kernels, gain."""
    theirs = numbers(published_table("gmm_kernels")["rows"])
    plain = theirs[theirs["mask"] == "none"].set_index("dataset").published
    return theirs.assign(gain=theirs.published - theirs.dataset.map(plain))[theirs["mask"] != "none"]


def no_curve(rows: pd.DataFrame) -> str:
    """A line on the data sets and models that kernel_gains leaves out although masks were run on them."""
    drawn = kernel_gains(rows)
    run = rows[rows.state == DONE].assign(place=_places(rows))
    run = run[~(run.dataset + run.model).isin(drawn.dataset + drawn.model)]
    words = [
        f"on {place} there is " + " and ".join(map(_kernels, sorted(counts.unique())))
        for place, counts in run.groupby("place", sort=False).label
    ]
    return f"Not drawn, as a curve needs no mask and two numbers of kernels: {'; '.join(words)}." if words else ""


def _kernels(count: int) -> str:
    return "no mask" if not count else f"{count} kernel{'s' * (count > 1)}"


def compared(rows: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The rows that were run and a line on panels of one arm, which compare nothing and are left out.

    The panels ("group") name the data set and the model where there are several.
    """
    run = rows[rows.state == DONE]
    place = _places(run) + ": "
    alone = run.groupby(["dataset", "model", "group"]).label.transform("nunique") < 2
    words = (place + run.group + " (" + run.label.astype(str) + ")")[alone].unique()
    told = f"Not drawn, as one arm alone was run: {'; '.join(words)}." if len(words) else ""
    return run.assign(group=place + run.group if place.nunique() > 1 else run.group)[~alone], told


def _places(rows: pd.DataFrame) -> pd.Series:
    """The data set of each row by name, and its model where there are several."""
    model = ", " + rows.model.map(lambda name: MODELS.get(name, name)) if rows.model.nunique() > 1 else ""
    return rows.dataset.map(lambda name: DATASETS.get(name, name)) + model


def others_found(rows: pd.DataFrame) -> str:
    """A sentence on what the paper says in words: the mixture beats the free mask; its place makes no difference."""
    found, rows = [], rows.assign(place=_places(rows))
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
