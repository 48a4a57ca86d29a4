"""Results as figures: learning curves, gains with intervals, kernels, arms of an ablation, throughput. No disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator

from .figures import COLUMN, PAGE, Figure, styled
from .names import BACKBONES, DATASETS, SCORES

PUBLISHED = "#999999"
History = Mapping[str, Sequence[float]]  # columns of history.csv: epoch, lr, train_loss, test_loss, top1


@styled
def learning_curve(history: History) -> Figure:
    """One run: loss on training images, and on test images where it is known, and the test's scores, by epoch."""
    figure = Figure(figsize=(PAGE, 2.2))
    loss, score = figure.subplots(1, 2)
    marker = "o" if len(history["epoch"]) < 30 else None
    for name, words in {"train_loss": "training", "test_loss": "test"}.items():
        if name in history:
            loss.plot(history["epoch"], history[name], marker=marker, label=words)
    loss.set(xlabel="epoch", ylabel="loss (nats)" if "test_loss" in history else "training loss")
    scores = [name for name in SCORES if name in history]
    for number, name in enumerate(scores, 1):
        score.plot(history["epoch"], history[name], marker=marker, color=f"C{number}", label=SCORES[name])
    score.set(xlabel="epoch", ylabel="test top-1 accuracy (%)" if scores == ["top1"] else "test score (%)")
    for axes, lines in ((loss, "test_loss" in history), (score, len(scores) > 1)):
        if lines:
            axes.legend()
    for axes in (loss, score):
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


@styled
def learning_curves(arms: Mapping[str, Iterable[History]], title: str = "") -> Figure | None:
    """Several runs of each arm: the mean test accuracy, and the range over the seeds as a band.

    None where no run has two epochs: a dot is no curve.
    """
    arms = {name: list(histories) for name, histories in arms.items()}
    if not any(len(history["epoch"]) > 1 for histories in arms.values() for history in histories):
        return None
    figure = Figure(figsize=(COLUMN, 2.5))
    axes = figure.subplots()
    for name, histories in arms.items():
        epochs = min((history["epoch"] for history in histories), key=len)  # as far as every run came
        top1 = np.array([history["top1"][: len(epochs)] for history in histories])  # (runs, epochs)
        (line,) = axes.plot(epochs, top1.mean(0), marker="o" if len(epochs) < 30 else None, label=name)
        axes.fill_between(epochs, top1.min(0), top1.max(0), color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel="epoch", ylabel="test top-1 accuracy (%)", title=title)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
    return figure


@styled
def gains(points: Iterable[Mapping]) -> Figure | None:
    """Gains over the plain model, {dataset, model, gain, label (optional), published (optional)}, with 95 % intervals.

    A hollow dot is one seed, which has no interval. None where fewer than two gains are known: one is no figure.
    """
    points = [point for point in points if point["gain"].mean is not None]
    if len(points) < 2:
        return None
    datasets = list(dict.fromkeys(point["dataset"] for point in points))
    labels = list(dict.fromkeys(_arm(point) for point in points))
    figure = Figure(figsize=(max(COLUMN, 1.2 + 1.6 * len(datasets)), 1.3 + 0.28 * len(labels)))
    panels = figure.subplots(1, len(datasets), sharey=True, squeeze=False)[0]
    for axes, dataset in zip(panels, datasets, strict=True):
        axes.axvline(0, color="#444444", linewidth=0.8)
        for point in (point for point in points if point["dataset"] == dataset):
            y, gain, known = labels.index(_arm(point)), point["gain"], point["gain"].low is not None
            if known:
                axes.plot([gain.low, gain.high], [y, y], color="C0")
            axes.plot(gain.mean, y, "o", color="C0", markerfacecolor="C0" if known else "white")
            if point.get("published") is not None:
                axes.plot(point["published"], y, "D", color=PUBLISHED, markersize=3.5, zorder=1)
        axes.set(xlabel="gain in top-1 (points)", title=DATASETS.get(dataset, dataset))
    ours, one, theirs = (
        panels[0].plot([], [], shape, color=colour, markerfacecolor=face, label=label)[0]
        for shape, colour, face, label in (
            ("o-", "C0", "C0", "mean over seeds, 95 % interval"),
            ("o", "C0", "white", "one seed"),
            ("D", PUBLISHED, PUBLISHED, "published"),
        )
    )
    several = [ours] if any(point["gain"].low is not None for point in points) else []
    single = [one] if any(point["gain"].low is None for point in points) else []
    printed = [theirs] if any(point.get("published") is not None for point in points) else []
    figure.legend(
        handles=[*several, *single, *printed], loc="outside lower center", ncols=3 if len(datasets) > 1 else 2
    )
    panels[0].set_yticks(range(len(labels)), labels)
    panels[0].set_ylim(len(labels) - 0.5, -0.5)
    return figure


def _arm(point: Mapping) -> str:
    return point.get("label") or BACKBONES.get(point["model"], point["model"])


@styled
def kernels(gains: Mapping[str, Mapping[str, Mapping]]) -> Figure:
    """Gains over no mask by the number of kernels, {data set: {"ours": {kernels: Gain}, "published": {kernels: gain}}}.

    Ours with 95 % intervals, which one seed does not have; published in grey behind.
    """
    figure = Figure(figsize=(min(PAGE, max(COLUMN, 1.9 * len(gains))), 2.4))
    panels = figure.subplots(1, len(gains), squeeze=False, sharey=True)[0]
    for axes, (dataset, found) in zip(panels, gains.items(), strict=True):
        axes.axhline(0, color="#444444", linewidth=0.8)
        if found["published"]:
            axes.plot(*zip(*found["published"].items(), strict=True), "D-", color=PUBLISHED, label="published")
        ours = list(found["ours"].values())
        mean = [gain.mean for gain in ours]
        half = [0 if gain.high is None else gain.high - gain.mean for gain in ours]
        words = "ours, one seed" if not any(half) else "ours, 95 % interval"
        axes.errorbar(list(found["ours"]), mean, half, marker="o", color="C0", label=words)
        axes.set(xlabel="kernels", title=DATASETS.get(dataset, dataset))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].set_ylabel("gain over no mask (points)")
    figure.legend(*_first_of_each(panels), loc="outside upper center", ncols=2)
    return figure


def _first_of_each(panels: Iterable) -> tuple[list, list]:
    """Handles and labels of several panels' legends, each label once."""
    found = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)


@styled
def arms(points: Iterable[Mapping]) -> Figure:
    """Arms of an ablation, {label, values (of each seed), group, series (optional)}: every seed, and the mean as a bar.

    Groups (such as "sigma" and "alpha") are panels; series (such as "decayed", "not decayed") are colours.
    """
    points = list(points)
    groups = list(dict.fromkeys(point["group"] for point in points))
    series = list(dict.fromkeys(point.get("series", "") for point in points))
    labels = {group: list(dict.fromkeys(p["label"] for p in points if p["group"] == group)) for group in groups}
    heights = [len(labels[group]) for group in groups]
    figure = Figure(figsize=(COLUMN, 0.9 + 0.26 * sum(heights) + 0.3 * len(groups)))
    panels = figure.subplots(len(groups), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, group in zip(panels, groups, strict=True):
        for point in (point for point in points if point["group"] == group):
            which = series.index(point.get("series", ""))
            y = labels[group].index(point["label"]) + 0.16 * (2 * which - len(series) + 1)
            values = list(point["values"])
            axes.plot(values, [y] * len(values), "o", color=f"C{which}", alpha=0.6, markeredgewidth=0)
            axes.plot([np.mean(values)] * 2, [y - 0.14, y + 0.14], color=f"C{which}", linewidth=2)
        axes.set_yticks(range(len(labels[group])), labels[group])
        axes.set_ylim(len(labels[group]) - 0.5, -0.5)
        axes.set_title(group, loc="left")
    panels[-1].set_xlabel("test top-1 accuracy (%)")
    if any(series):
        handles = [panels[0].plot([], [], "o", color=f"C{i}", label=name)[0] for i, name in enumerate(series)]
        figure.legend(handles=handles, loc="outside upper right", ncols=len(series))
    return figure


@styled
def throughput(rates: Mapping[str, float], reference: str | None = None) -> Figure:
    """Images per second of each arm as bars; beside them the time of a step against that of the reference."""
    figure = Figure(figsize=(COLUMN, 0.6 + 0.28 * len(rates)))
    axes = figure.subplots()
    names, values = list(rates), list(rates.values())
    axes.barh(names, values, color=[PUBLISHED if name == reference else "C0" for name in names], height=0.65)
    for name, value in rates.items():
        more = "" if reference in (None, name) else f" ({rates[reference] / value - 1:+.1%} time)"
        axes.annotate(
            f"{value:,.0f}{more}".replace("-", "\N{MINUS SIGN}"), (value, name), (3, 0), textcoords="offset points",
            va="center", fontsize=7,
        )  # fmt: skip
    axes.set(xlabel="images per second", xlim=(0, 1.7 * max(values)))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return figure
