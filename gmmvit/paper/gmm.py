"""The GMM paper: five backbones, plain and with the mask, beside the published numbers; its ablations on ViT.

Of the ablations the paper's numbers are known for the number of kernels, no mask, and GMM shared by the heads or not.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from ..train.recipes import MIXING, find
from . import runs
from .names import BACKBONES, DATASETS, MASKS, MODELS, readable
from .published import table as published_table
from .runs import DONE, beside, filled, gains, history, numbers, scores, where
from .starts import cell_of, usual
from .tables import Column, Table, passes_of

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
    """published | ours | difference of each arm of the main table, with passes, parameters, MACs and depth."""
    rows, by = main_arms(frame), [*VARIED, "arm", "published"]
    rows = rows.assign(passes=rows.row.map(passes_of))
    costs = ["passes", "parameters", "macs_paper", "macs", "depth"]
    rows = rows.reindex(columns=dict.fromkeys([*rows.columns, *costs]))
    lines = scores(rows, by)
    lines = lines.join(rows.groupby(by, sort=False, dropna=False)[costs].first().reset_index(drop=True))
    lines = lines.assign(
        difference=lines.ours - lines.published, macs_paper_M=lines.macs_paper / 1e6, macs_M=lines.macs / 1e6
    )
    columns = ["dataset", "model", Column("arm", "attention"), "published", "ours", "difference"]
    columns += [Column("passes", "passes over the images", "d"), "parameters", "macs_paper_M", "macs_M", "depth"]
    return Table(columns, readable(lines))


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
