"""The GMM paper's main table: five backbones, plain and with the mask, beside the published numbers; and its gains."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ..train.recipes import MIXING, find
from ..train.rows import Row
from .names import BACKBONES, DATASETS, MASKS, MODELS, named
from .published import table as published_table
from .runs import Group, compare, gains, group, look_up
from .tables import Column, Table, span, text

COLUMNS = {name.replace("-", "_"): DATASETS[name] for name in ("cifar10", "cifar100", "svhn", "tiny-imagenet")}
VERDICTS = {True: "larger than the seeds' spread", False: "within the seeds' spread", None: "–"}
AHEAD, BEHIND = "Ahead by more than the seeds' spread", "Behind by more than the seeds' spread"
LEVEL, SINGLE = "Not to be told from zero", "Of one seed, of which nothing can be said"
PASSES = find("gmm").epochs * find("gmm").passes  # of the paper's runs over their images
VARIED = {"dataset": None, "model": None, "mask": "none", "readout": "mean", "share_heads": False, "underflow": False}
FIXED = {"kernels": 5, "where": "scores"}
FIXED |= dict.fromkeys(("sigma_init", "alpha_init", "decay_masks", *MIXING))  # not set: as mask and recipe have them


def published_main() -> list[dict]:
    """The published rows, each beside the arm it (probably) comes from (errata G1 to G3).

    ViT's mean read-out and its mask shared by the heads are the first table's; of the class-token read-out only the
    CIFAR-10 value was published; the later table's masks have their own mixture in each head.
    """
    rows = [
        row | ({"share_heads": False} if row["mask"] != "none" else {}) for row in published_table("gmm_main")["rows"]
    ]
    plain, masked = published_table("gmm_main_first")["rows"]
    token = next(row for row in rows if (row["model"], row["mask"]) == ("vit", "none"))
    others = [row for row in rows if row is not token]
    token = {"model": "vit", "mask": "none", "readout": "token", "cifar10": token["cifar10"]}
    return [token, plain | {"readout": "mean"}, masked | {"share_heads": True}, *others]


def rebuilt_table() -> Table:
    """The published table, and beside its parameters and MACs those of our models, counted now at 32 px, 10 classes."""
    from ..core.cost import cost
    from ..models import create_model

    lines = []
    for line in published_table("gmm_main")["rows"]:
        ours = cost(create_model(line["model"], mask=None if line["mask"] == "none" else line["mask"]))
        line |= {"model": MODELS[line["model"]], "mask": MASKS[line["mask"]]}
        lines.append(
            line | {"parameters": ours.parameters, "macs_ours_M": ours.macs_paper / 1e6, "depth_ours": ours.depth}
        )
    columns = [
        Column("model", "model"),
        Column("mask", "mask"),
        *(Column(dataset, title) for dataset, title in COLUMNS.items()),
        Column("parameters_M", "parameters (M): published", ".1f"),
        Column("parameters", "parameters: ours", ",d"),
        Column("macs_M", "MACs (M): published", ".1f"),
        Column("macs_ours_M", "MACs (M): ours", ".1f"),
        Column("depth", "depth: published", "d"),
        Column("depth_ours", "depth: ours", "d"),
    ]
    return Table(columns, lines)


def main_groups(
    rows: Mapping, runs: Iterable[dict], failed: Collection[str] = (), masks: Collection[str] = ("none", "gmm")
) -> list[Group]:
    """The groups of the main table: five backbones, plain and GMM of five kernels, both read-outs, shared or not."""
    chosen = {}
    for name, row in rows.items():
        fields = row if isinstance(row, Mapping) else vars(row)
        settings = fields.get("set") or {}
        plain = all(settings.get(key, value) == value for key, value in FIXED.items())
        if plain and fields["model"] in BACKBONES and fields.get("mask", "none") in masks:
            chosen[name] = row
    groups = group(chosen, runs, failed, **VARIED)
    datasets = list(dict.fromkeys(each.keys["dataset"] for each in groups))
    models = list(BACKBONES)
    return sorted(groups, key=lambda each: (datasets.index(each.keys["dataset"]), models.index(each.keys["model"])))


def arm(keys: Mapping) -> str:
    """What sets an arm of the main table apart, in words."""
    words = MASKS.get(keys["mask"], keys["mask"])
    words += ", shared by the heads" if keys["share_heads"] else ""
    words += ", underflow of float32" if keys["underflow"] else ""
    return words + (", class token" if keys["readout"] == "token" else "")


def main_results(
    rows: Mapping, runs: Iterable[dict], published: Iterable[Mapping], failed: Collection[str] = (), note: str = ""
) -> Table:
    """The main table of a profile's rows and runs."""
    return results_table(main_groups(rows, runs, failed), published, note)


def results_table(groups: Iterable[Group], published: Iterable[Mapping], note: str = "") -> Table:
    """published | ours | difference of arms grouped by VARIED (ELM and GAB too), with parameters, MACs and depth."""
    lines = compare(groups, published)
    columns = [
        Column("dataset", "data set"),
        Column("model", "model"),
        Column("arm", "attention"),
        Column("published", "published"),
        Column("ours", "ours: mean ± sd (n)"),
        Column("difference", "difference", "+.2f"),
        Column("parameters", "parameters", ",d"),
        Column("macs_paper_M", "MACs, paper's count (M)", ".1f"),
        Column("macs_M", "MACs, all (M)", ".1f"),
        Column("depth", "depth", "d"),
    ]
    for line in lines:
        millions = {f"{key}_M": None if line[key] is None else line[key] / 1e6 for key in ("macs_paper", "macs")}
        line |= {"arm": arm(line)} | millions | named(line)
    return Table(columns, lines, note)


def gain_points(groups: Iterable[Group], published: Iterable[Mapping]) -> list[dict]:
    """What masks gain over the plain model with a mean read-out: points for gmmvit.paper.plots.gains and gains_table.

    Each has the group's keys, "arm", "gain" (paired over seeds), "published" (the published gain) and "verdict".
    """
    published, points = list(published), []
    base = {"mask": "none", "readout": "mean", "share_heads": False, "underflow": False}
    for line in gains(groups, base, ["dataset", "model"]):
        if line["mask"] != "none":
            ours, plain = (look_up(published, keys, line["dataset"]) for keys in (line, line | base))
            theirs = None if ours is None or plain is None else ours - plain
            verdict = VERDICTS[line["gain"].beyond_spread]
            points.append(line | {"arm": arm(line), "published": theirs, "verdict": verdict})
    return points


def passes(rows: Mapping[str, Row], runs: Iterable[Mapping]) -> set[int]:
    """How many passes the runs made over their training images."""
    recipes = (rows[run["row"]["name"]].recipe_settings for run in runs)
    return {recipe.total_epochs * recipe.passes for recipe in recipes}


def gains_found(points: Iterable[Mapping], ours: Iterable[int], theirs: int = 0) -> str:
    """A sentence on gains: which are larger than the seeds' spread, and which have another sign than published.

    `ours` and `theirs` are the passes over the training images; `theirs` 0 where that is nothing to be said.
    """
    kinds: dict[str, list[str]] = {}
    for point in points:
        gain = point["gain"]
        if not gain.n:
            continue
        other = point.get("published") is not None and gain.beyond_spread and point["published"] * gain.mean < 0
        words = f"{point['label']} {text(gain, '+.2f')}"
        words += f", published {text(point['published'], '+.2f')}" if other else ""
        kind = {True: AHEAD if gain.mean > 0 else BEHIND, False: LEVEL, None: SINGLE}[gain.beyond_spread]
        kinds.setdefault(kind, []).append(words)
    if not kinds:
        return ""
    found = [f"{kind}: {'; '.join(kinds[kind])}." for kind in (AHEAD, BEHIND, LEVEL, SINGLE) if kind in kinds]
    ours = set(ours)
    short = f" The paper makes {theirs}, so this is no test of its claim." * (max(ours) < theirs)
    return f"Ours, after {span(ours, 'd')} pass{'es' * (ours != {1})} over the images. {' '.join(found)}{short}"


def gains_table(points: Iterable[Mapping], note: str = "") -> Table:
    """published gain | our gain with its 95 % interval | whether it is larger than the seeds' spread."""
    columns = [
        Column("dataset", "data set"),
        Column("model", "model"),
        Column("arm", "attention"),
        Column("published", "published gain", "+.2f"),
        Column("gain", "our gain [95 % interval] (n)", "+.2f"),
        Column("verdict", "paired over seeds"),
    ]
    return Table(columns, [point | named(point) for point in points], note)
