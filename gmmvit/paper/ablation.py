"""The ablations of the GMM paper on ViT: panels of arms, each of which differs from the paper's mask in one respect.

Of these the paper's numbers are known for the number of kernels, no mask, and GMM shared by the heads or not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ..models.vit import SIZES
from ..train.recipes import MIXING, find
from ..train.rows import Row
from .main_table import COLUMNS, published_main
from .names import DATASETS, MASKS
from .published import table as published_table
from .runs import group, look_up
from .seeds import Gain, paired_gain
from .tables import UNKNOWN, Column, Table, text

BASE = {  # the paper's mask on ViT; an arm names what it has instead
    "model": "vit",
    "mask": "gmm",
    "readout": "mean",
    "share_heads": False,
    "kernels": 5,
    "sigma_init": (10.0, 10.0),
    "alpha_init": (0.0, 2.0),
    "where": "scores",
}
SIGMAS = ((1, 1), (3, 3), (10, 0), (10, 10), (30, 10))  # mean, sd; with alpha 0, 2
ALPHAS = {"0, 0.5": (0, 0.5), "0, 2": (0, 2), "1/K, 0": (1 / BASE["kernels"], 0), "1, 0.2": (1, 0.2)}  # sigma 10, 10
KERNELS = (1, 2, 3, 4, 5, 8, 10)
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
CLAIMED = (("GMM, one for each head", "ELM"), ("after the softmax", "before the softmax"))  # compared in words alone
DEPTH = {f"{SIZES[model]['depth']}, {SIZES[model]['embed_dim']}": {"model": model} for model in DEPTHS}


def differences(row: Row) -> dict:
    """What a row has instead of the paper's mask on ViT."""
    mixing = {key: row.set[key] for key in MIXING if key in row.set}
    settings = {"model": row.model, "mask": row.mask, **row.model_options, **row.mask_options, **mixing}
    return {key: value for key, value in settings.items() if value != BASE.get(key)}


def initialisations(rows: Mapping[str, Row], runs: Iterable[dict], failed: Collection[str] = ()) -> list[dict]:
    """Arms of the initial sigma and alpha, with and without weight decay on them (a series each)."""
    decayed = {True: "sigma and alpha decayed", False: "not decayed"}
    series = {name: decayed[row.recipe_settings.decay_masks] for name, row in rows.items()}
    return _arms(INITIAL, series, rows, runs, failed)


def others(rows: Mapping[str, Row], runs: Iterable[dict], failed: Collection[str] = ()) -> list[dict]:
    """Arms of the kind of mask, of the heads that share one, and of its place before or after the softmax."""
    usual, published = _usual(rows), published_main()
    lines = _arms(OTHERS, dict.fromkeys(usual, ""), usual, runs, failed)
    for line in lines:
        if line["group"] == "mask":
            keys = BASE | OTHERS["mask"][line["label"]]
            line["published"] = look_up(published, keys, line["dataset"])
    return lines


def depths(rows: Mapping[str, Row], runs: Iterable[dict], failed: Collection[str] = ()) -> list[dict]:
    """Arms of depth and width, plain and with the mask (a series each)."""
    found = []
    for series, mask in (("plain", {"mask": "none"}), ("GMM", {})):
        panel = {label: differs | mask for label, differs in DEPTH.items()}
        usual = _usual(rows)
        found += _arms({"depth, width": panel}, dict.fromkeys(usual, series), usual, runs, failed)
    return found


def by_kernels(rows: Mapping[str, Row], runs: Iterable[dict], failed: Collection[str] = ()) -> list[dict]:
    """Arms of the number of kernels; 0 is the model without a mask, which was published as a mask of one."""
    panel = {0: {"mask": "none"}} | {count: {"kernels": count} for count in KERNELS}
    usual = _usual(rows)
    lines = _arms({"kernels": panel}, dict.fromkeys(usual, ""), usual, runs, failed)
    published = [
        row | {"kernels": row["kernels"] * (row["mask"] != "none")} for row in published_table("gmm_kernels")["rows"]
    ]
    for line in lines:
        line["published"] = look_up(published, {"kernels": line["label"]}, line["dataset"])
    return lines


def _usual(rows: Mapping[str, Row]) -> dict[str, Row]:
    """Rows whose masks are decayed, or not, as their recipe says."""
    return {name: row for name, row in rows.items() if row.recipe_settings.decay_masks == find(row.recipe).decay_masks}


def _arms(
    panels: Mapping, series: Mapping[str, str], rows: Mapping[str, Row], runs: Iterable[dict], failed
) -> list[dict]:
    """A line for each arm with rows: dataset, group (the panel), label, series, ours (a Score), seeds {seed: top-1}."""
    runs, lines = list(runs), []
    for panel, arms in panels.items():
        for label, differs in arms.items():
            differs = {key: value for key, value in differs.items() if value != BASE[key]}
            for each in dict.fromkeys(series.values()):
                alike = {n: row for n, row in rows.items() if series[n] == each and differences(row) == differs}
                for found in group(alike, runs, failed, dataset=None, recipe=None):
                    line = {"group": panel, "label": label, "series": each, "ours": found.score()}
                    line |= {"seeds": found.by_seed(), "values": list(found.by_seed().values())}
                    lines.append({"dataset": found.keys["dataset"], **line})
    return lines


def others_found(lines: Iterable[Mapping]) -> str:
    """A sentence on what the paper says in words: the mixture beats the free mask; its place makes no difference."""
    arms = {(line["dataset"], line["label"]): line["seeds"] for line in lines}
    found = []
    for dataset in dict.fromkeys(dataset for dataset, _ in arms):
        for over, base in CLAIMED:
            gain = paired_gain(arms.get((dataset, over), {}), arms.get((dataset, base), {}))
            if gain.n:
                told = None if gain.beyond_spread is None else _as_published(gain, base)
                name = DATASETS.get(dataset, dataset)
                found.append(f"{over} against {base} on {name} {text(gain, '+.2f')}, {told or 'of one seed'}")
    return f"Ours: {'; '.join(found)}." if found else ""


def _as_published(gain: Gain, base: str) -> str:
    if base == "before the softmax":
        return "not as published" if gain.beyond_spread else "as published no difference to be told from the seeds'"
    if not gain.beyond_spread:
        return "which cannot be told from zero"
    return "as published" if gain.mean > 0 else "not as published"


def kernels_table() -> Table:
    """The published numbers of kernels, the point at 1 as what it is: the model without a mask."""
    columns = [Column("kernels", "kernels, as published", "d"), Column("mask", "what it is")]
    columns += [Column(dataset, title) for dataset, title in COLUMNS.items()]
    return Table(columns, [row | {"mask": MASKS[row["mask"]]} for row in published_table("gmm_kernels")["rows"]])


def kernel_gains(lines: Iterable[Mapping]) -> dict[str, dict[str, dict]]:
    """{data set: {"ours": {kernels: Gain}, "published": {kernels: gain}}} over no mask, of two numbers or more."""
    seeds: dict[str, dict[int, dict]] = {}
    for line in lines:
        seeds.setdefault(line["dataset"], {})[line["label"]] = line["seeds"]
    found = {}
    for dataset, by_count in seeds.items():
        ours = {count: paired_gain(run, by_count.get(0, {})) for count, run in sorted(by_count.items()) if count}
        ours = {count: gain for count, gain in ours.items() if gain.n}
        if len(ours) > 1:
            found[dataset] = {"ours": ours, "published": _published_gains(dataset)}
    return found


def _published_gains(dataset: str) -> dict[int, float]:
    rows = [row for row in published_table("gmm_kernels")["rows"] if dataset.replace("-", "_") in row]
    top1 = {row["kernels"] * (row["mask"] != "none"): row[dataset.replace("-", "_")] for row in rows}
    return {count: top1[count] - top1[0] for count in sorted(top1) if count}


def no_curve(lines: Iterable[Mapping]) -> str:
    """A line on the data sets that kernel_gains leaves out although masks were run on them."""
    lines = [line for line in lines if line["seeds"]]
    drawn, run = kernel_gains(lines), {}
    for line in lines:
        run.setdefault(line["dataset"], []).append(line["label"])
    words = [
        f"on {DATASETS.get(dataset, dataset)} there is " + " and ".join(_kernels(count) for count in sorted(counts))
        for dataset, counts in run.items()
        if dataset not in drawn
    ]
    return f"Not drawn, as a curve needs no mask and two numbers of kernels: {'; '.join(words)}." if words else ""


def _kernels(count: int) -> str:
    return "no mask" if not count else f"{count} kernel{'s' * (count > 1)}"


def points(lines: Iterable[Mapping]) -> list[dict]:
    """The arms that were run, for plots.arms: their panels name the data set where there are several.

    A panel of one arm compares nothing and is left out.
    """
    run, alone = _compared(lines)
    several = len({line["dataset"] for line in [*run, *alone]}) > 1
    return [line | {"group": (_prefix(line) if several else "") + line["group"]} for line in run]


def left_out(lines: Iterable[Mapping]) -> str:
    """A line on the arms that points leaves out."""
    _, alone = _compared(lines)
    words = dict.fromkeys(f"{_prefix(line)}{line['group']} ({line['label']})" for line in alone)
    return f"Not drawn, as one arm alone was run: {'; '.join(words)}." if words else ""


def _compared(lines: Iterable[Mapping]) -> tuple[list[Mapping], list[Mapping]]:
    """Lines of the panels of which two arms or more were run, and of those of which one was."""
    run = [line for line in lines if line["values"]]
    labels: dict[tuple, set] = {}
    for line in run:
        labels.setdefault((line["dataset"], line["group"]), set()).add(line["label"])
    several = [len(labels[line["dataset"], line["group"]]) > 1 for line in run]
    return [line for line, many in zip(run, several, strict=True) if many], [
        line for line, many in zip(run, several, strict=True) if not many
    ]


def _prefix(line: Mapping) -> str:
    return f"{DATASETS.get(line['dataset'], line['dataset'])}: "


def arms_table(lines: Iterable[Mapping]) -> Table:
    """published | ours of arms; where the paper's number is not known it says so."""
    columns = [
        Column("dataset", "data set"),
        Column("group", "what is varied"),
        Column("label", "arm", "d"),
        Column("series", "of these"),
        Column("published", "published"),
        Column("ours", "ours: mean ± sd (n)"),
    ]
    named = [line | {"dataset": DATASETS.get(line["dataset"], line["dataset"])} for line in lines]
    return Table(columns, [line | {"published": line.get("published") or UNKNOWN} for line in named])
