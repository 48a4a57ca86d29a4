"""Results as figures of lines and bars, in the house's style: shown by Jupyter, saved as PNG and PDF in equal bytes."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import colormaps, style
from matplotlib.figure import Figure as _Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from ..analysis.masks import Explained, Fit, Regularities
from .names import DATASETS, SCORES
from .tables import missing, text

PUBLISHED = "#999999"
History = Mapping[str, Sequence[float]]  # columns of history.csv: epoch, lr, train_loss, test_loss, top1
STYLE = ["default", Path(__file__).with_name("paper.mplstyle")]
COLUMN, PAGE = 3.5, 7.0  # inches
UNDATED = {"png": {"Software": None}, "pdf": {"CreationDate": None, "Creator": None, "Producer": None}}


class Figure(_Figure):
    """matplotlib's Figure, which Jupyter shows although no backend has been chosen."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        with style.context(STYLE):
            settle(self)
            self.savefig(buffer, format="png", dpi=self.dpi, metadata=UNDATED["png"])
        return buffer.getvalue()


def styled(plot: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draws a plot in the house's style, whatever the reader's own matplotlibrc says."""

    @wraps(plot)
    def drawn(*args, **kwargs) -> Figure:
        with style.context(STYLE):
            return plot(*args, **kwargs)

    return drawn


def panels(width: float, height: float, lines: int, across: int, used: int | None = None, **options):
    """A figure of so many inches, and its axes (lines, across), of which those beyond the first `used` are hidden."""
    figure = Figure(figsize=(width, height))
    grid = figure.subplots(lines, across, squeeze=False, **options)
    for axes in grid.flat[grid.size if used is None else used :]:
        axes.set_visible(False)
    return figure, grid


def settle(figure: Figure) -> None:
    """Gives everything its place for good: the layout of images needs a second look at itself, or words are cut off."""
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        for _ in range(2):
            figure.draw_without_rendering()
        figure.set_layout_engine("none")  # else each file and each look of a notebook takes the time once more


def save(figure: Figure, folder: str | Path, name: str) -> None:
    """Writes <name>.png and <name>.pdf."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with style.context(STYLE):
        settle(figure)
        for kind, metadata in UNDATED.items():
            figure.savefig(Path(folder) / f"{name}.{kind}", metadata=metadata)


# ---- accuracies -----------------------------------------------------------------------------------------------------


@styled
def learning_curve(history: History) -> Figure:
    """One run: loss on training images, and on test images where it is known, and the test's scores, by epoch."""
    figure, ((loss, score),) = panels(PAGE, 2.2, 1, 2)
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
def by_epoch(scores: Sequence[Mapping]) -> Figure | None:
    """A score by epoch, {title, score, arms {arm: histories}} a panel: the mean, and the range of the seeds as a band.

    None where no run has two epochs: a dot is no curve.
    """
    runs = [run for panel in scores for histories in panel["arms"].values() for run in histories]
    if not any(len(run["epoch"]) > 1 for run in runs):
        return None
    across = min(len(scores), 3)
    down = -(-len(scores) // across)
    figure, grid = panels(max(COLUMN, PAGE * across / 3), 0.3 + 2 * down, down, across, len(scores))
    arms = list(dict.fromkeys(arm for panel in scores for arm in panel["arms"]))
    for axes, panel in zip(grid.flat, scores, strict=False):
        for arm, histories in panel["arms"].items():
            epochs = min((run["epoch"] for run in histories), key=len)  # as far as every run came
            values = np.array([run[panel["score"]][: len(epochs)] for run in histories])  # (runs, epochs)
            look = {"color": f"C{arms.index(arm)}", "linestyle": ("-", "--")[arms.index(arm) % 2]}
            axes.plot(epochs, values.mean(0), marker="o" if len(epochs) < 30 else None, label=arm, **look)
            axes.fill_between(epochs, values.min(0), values.max(0), color=look["color"], alpha=0.2, linewidth=0)
        axes.set(title=panel["title"], xlabel="epoch", ylabel=f"test {SCORES[panel['score']]} (%)")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    grid[0, 0].legend()
    return figure


@styled
def gains(points: pd.DataFrame) -> Figure | None:
    """Gains over the plain model (gmmvit.paper.runs.gains, with "label" and perhaps "published"), with 95 % intervals.

    A hollow dot is one seed, which has no interval. None where fewer than two gains are known: one is no figure.
    """
    points = points[points.gain.notna()].reindex(columns=dict.fromkeys([*points, "published"]))
    if len(points) < 2:
        return None
    datasets, labels = points.dataset.unique(), list(points.label.unique())
    width, height = max(COLUMN, 1.2 + 1.6 * len(datasets)), 1.3 + 0.28 * len(labels)
    figure, (line,) = panels(width, height, 1, len(datasets), sharey=True)
    for axes, dataset in zip(line, datasets, strict=True):
        axes.axvline(0, color="#444444", linewidth=0.8)
        for point in points[points.dataset == dataset].itertuples():
            y, known = labels.index(point.label), not missing(point.gain_low)
            if known:
                axes.plot([point.gain_low, point.gain_high], [y, y], color="C0", solid_capstyle="butt")
            axes.plot(point.gain, y, "o", color="C0", markerfacecolor="C0" if known else "white")
            if not missing(point.published):
                axes.plot(point.published, y, "D", color=PUBLISHED, markersize=3.5, zorder=1)
        axes.set(xlabel="gain in top-1 (points)", title=DATASETS.get(dataset, dataset))
    ours, one, theirs = (
        line[0].plot([], [], shape, color=colour, markerfacecolor=face, label=label)[0]
        for shape, colour, face, label in (
            ("o-", "C0", "C0", "mean over seeds, 95 % interval"),
            ("o", "C0", "white", "one seed"),
            ("D", PUBLISHED, PUBLISHED, "published"),
        )
    )
    several, single, printed = points.gain_low.notna(), points.gain_low.isna(), points.published.notna()
    handles = [each for each, there in ((ours, several), (one, single), (theirs, printed)) if there.any()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3 if len(datasets) > 1 else 2)
    line[0].set_yticks(range(len(labels)), labels)
    line[0].set_ylim(len(labels) - 0.5, -0.5)
    return figure


@styled
def kernels(ours: pd.DataFrame, published: pd.DataFrame) -> Figure | None:
    """Gains over no mask by the number of kernels (gmmvit.paper.kernels): ours with 95 % intervals, published in grey.

    One seed has no interval; each of our series has a colour. None where there are no gains of ours.
    """
    datasets, series = ours.dataset.unique(), list(ours.series.unique()) if len(ours) else []
    if not len(datasets):
        return None
    figure, (line,) = panels(min(PAGE, max(COLUMN, 1.9 * len(datasets))), 2.4, 1, len(datasets), sharey=True)
    for axes, dataset in zip(line, datasets, strict=True):
        printed = published[published.dataset == dataset]
        axes.axhline(0, color="#444444", linewidth=0.8)
        if len(printed):
            axes.plot(printed.kernels, printed.gain, "D-", color=PUBLISHED, label="published")
        for name, found in ours[ours.dataset == dataset].groupby("series", sort=False):
            beside = 0.12 * (series.index(name) - (len(series) - 1) / 2)  # so that no interval hides another
            _with_intervals(axes, found.label.astype(float) + beside, found, name, series.index(name))
        axes.set(xlabel="kernels", title=DATASETS.get(dataset, dataset))
        axes.set_xticks(sorted({*printed.kernels, *ours.label[ours.dataset == dataset]}))
    line[0].set_ylabel("gain over no mask\n(points, 95 % intervals)")
    figure.legend(*_first_of_each(line), loc="outside upper center", ncols=3)
    return figure


@styled
def by_share(points: pd.DataFrame) -> Figure | None:
    """Gains over no mask by the share of the images (gmmvit.paper.priors), a line with 95 % intervals for each arm.

    None where no arm has gains at two shares.
    """
    points = points[points.gain.notna()] if len(points) else points
    arms = [arm for arm, alike in points.groupby("arm", sort=False) if alike.share.nunique() > 1] if len(points) else []
    if not arms:
        return None
    figure, ((axes,),) = panels(COLUMN, 2.7, 1, 1)
    axes.axhline(0, color="#444444", linewidth=0.8)
    for number, arm in enumerate(arms):
        found = points[points.arm == arm].sort_values("share")
        beside = 1 + 0.04 * (number - (len(arms) - 1) / 2)  # so that no interval hides another
        _with_intervals(axes, 100 * found.share.astype(float) * beside, found, arm, number)
    shares = sorted({100 * float(share) for share in points.share})
    axes.set(
        xlabel="share of the training images (%)", ylabel="gain over no mask\n(points, 95 % intervals)", xscale="log"
    )
    axes.set_xticks(shares, [f"{share:g}" for share in shares])
    axes.set_xticks([], minor=True)
    figure.legend(loc="outside upper center", ncols=min(len(arms), 3))
    return figure


def _with_intervals(axes, x: Sequence[float], gains: pd.DataFrame, name: str, colour: int) -> None:
    """A line of gains with their 95 % intervals; of one seed each, hollow dots without any."""
    half = (gains.gain_high - gains.gain).fillna(0)
    words, face = ("", f"C{colour}") if half.any() else (" (one seed)", "white")
    look = {"color": f"C{colour}", "marker": ("o", "s", "^", "v")[colour % 4], "markerfacecolor": face}
    axes.errorbar(x, gains.gain, half, label=name + words, **look)


def _first_of_each(panels: Iterable) -> tuple[list, list]:
    """Handles and labels of several panels' legends, each label once."""
    found = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)


@styled
def arms(rows: pd.DataFrame) -> Figure | None:
    """Arms of an ablation (rows of gmmvit.paper.ablation): every seed, their mean as a bar; None where there are none.

    Groups (such as "sigma" and "alpha") are panels; series (such as "decayed", "not decayed") are colours.
    """
    if rows.empty:
        return None
    series = list(rows.series.unique())
    labels = {group: list(alike.label.unique()) for group, alike in rows.groupby("group", sort=False)}
    titles = {group: textwrap.fill(group, 34) for group in labels}  # a column has no room for more
    heights = [len(each) for each in labels.values()]
    height = 0.9 + 0.26 * sum(heights) + 0.15 * sum(2 + title.count("\n") for title in titles.values())
    figure, grid = panels(COLUMN, height, len(labels), 1, sharex=True, height_ratios=heights)
    for axes, (group, names) in zip(grid[:, 0], labels.items(), strict=True):
        alike = rows[rows.group == group]
        for (label, each), values in alike.groupby(["label", "series"], sort=False).top1:
            which = series.index(each)
            y = names.index(label) + 0.16 * (2 * which - len(series) + 1)
            axes.plot(values, [y] * len(values), "o", color=f"C{which}", alpha=0.6, markeredgewidth=0)
            axes.plot([values.mean()] * 2, [y - 0.14, y + 0.14], color=f"C{which}", linewidth=2)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_title(titles[group], loc="left")
    axes.set_xlabel("test top-1 accuracy (%)")
    if any(series):
        handles = [axes.plot([], [], "o", color=f"C{i}", label=name)[0] for i, name in enumerate(series)]
        figure.legend(handles=handles, loc="outside upper right", ncols=len(series))
    return figure


@styled
def throughput(rates: Mapping[str, float], reference: str | None = None) -> Figure:
    """Images per second of each arm as bars; beside them the time of a step against that of the reference."""
    figure, ((axes,),) = panels(COLUMN, 0.6 + 0.28 * len(rates), 1, 1)
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


# ---- what masks learned ---------------------------------------------------------------------------------------------

START = {"amplitude": (2.0, "|A|"), "sigma": (5.0, "|σ| (patches)")}  # erratum A1, and how the axis is called


@styled
def learned_layers(runs: Iterable[Mapping]) -> Figure:
    """A and sigma by layer, a line for each run {dataset, model, arm, amplitude, sigma: (layers, heads)}.

    Where each head has its own, these are dots and the line is their mean. Grey: where training began, and the
    published mean over layers {amplitude_published, sigma_published} where there is one.
    """
    runs = list(runs)
    places = list(dict.fromkeys((run["dataset"], run["model"]) for run in runs))
    arms = list(dict.fromkeys(run["arm"] for run in runs))
    figure, grid = panels(PAGE, 0.8 + 1.6 * len(places), len(places), len(START))
    for line, place in zip(grid, places, strict=True):
        for axes, (name, (start, label)) in zip(line, START.items(), strict=True):
            axes.axhline(start, color=PUBLISHED, linewidth=0.8)
            for run in (run for run in runs if (run["dataset"], run["model"]) == place):
                values, colour = run[name], f"C{arms.index(run['arm'])}"
                layers = range(1, len(values) + 1)
                if values.shape[1] > 1:
                    axes.plot(layers, values, "o", color=colour, alpha=0.25, markersize=2.5, markeredgewidth=0)
                axes.plot(layers, values.mean(1), color=colour, linewidth=1)
                if not missing(run[f"{name}_published"]):
                    axes.axhline(run[f"{name}_published"], color=PUBLISHED, linestyle="--", linewidth=0.8)
            axes.set_ylabel(label)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.ticklabel_format(axis="y", useOffset=False)
        line[0].set_title(f"{place[0]}, {place[1]}", loc="left")
    for axes in grid[-1]:
        axes.set_xlabel("layer")
    grey = {"where training began": "-"}
    if any(not missing(run[f"{name}_published"]) for run in runs for name in START):
        grey["published mean over layers"] = "--"
    lines = [(name, f"C{i}", "-") for i, name in enumerate(arms)] + [
        (name, PUBLISHED, dash) for name, dash in grey.items()
    ]
    handles = [grid[0, 0].plot([], [], color=colour, linestyle=dash, label=name)[0] for name, colour, dash in lines]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(4, len(handles)))
    return figure


@styled
def decay(regular: Regularities, fits: Iterable[Fit] = (), head: int = 0) -> Figure:
    """Mean weight (and sd) of a mask by distance of query and key, with fitted mixtures."""
    figure, ((axes,),) = panels(COLUMN, 2.5, 1, 1)
    axes.axhline(0, color="#444444", linewidth=0.6)
    mean, spread = regular.weight[head], regular.spread[head]
    axes.errorbar(regular.distance, mean, spread, fmt="o", color="#444444", label="mean ± sd of the pairs")
    between = np.append(0, np.linspace(1, regular.distance[-1], 300))  # no pair is closer than one patch
    for fit in fits:
        count = len(fit.sigma)
        label = f"{count} kernel{'s' if count > 1 else ''}, R² = {text(fit.r2, '.3f')}"
        axes.plot(between, fit.at(between), label=label)
    axes.set(xlabel="distance of query and key (patches)", ylabel="mask weight")
    figure.legend(loc="outside upper center", ncols=2)
    return figure


@styled
def r2_by_kernels(layers: Mapping[str, tuple[Sequence[Fit], Explained]]) -> Figure:
    """R2 of the mixtures of K kernels, for each layer {name: (fits, by_distance)}, with its bound as a dashed line."""
    figure, ((axes,),) = panels(COLUMN, 2.8, 1, 1)
    colours = colormaps["viridis"](np.linspace(0, 0.85, len(layers)))  # of the map, what is readable on white
    for (name, (fits, bound)), colour in zip(layers.items(), colours, strict=True):
        counts = [len(fit.sigma) for fit in fits]
        axes.plot(counts, [fit.r2 for fit in fits], "o-", color=colour, markersize=3, label=name)
        axes.plot([counts[0], counts[-1]], [bound.r2] * 2, "--", color=colour, linewidth=0.8)
    axes.plot([], [], "--", color="#444444", linewidth=0.8, label="best function of distance")
    noise = max(bound.on_noise for _, bound in layers.values())
    axes.axhline(noise, color="#444444", linewidth=0.8, linestyle=":", label="the same on pure noise")
    axes.set(xlabel="kernels K", ylabel="R² of the mixture")
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside right center")
    return figure


@styled
def shifts(curves: Mapping[str, Iterable[Mapping[str, Sequence[float]]]]) -> Figure:
    """lambda - area over the samples by epoch: median, middle half and middle 90 %, each the mean over the seeds."""
    across = min(len(curves), 3)
    down = -(-len(curves) // across)
    width, height = max(COLUMN, 2.3 * across), 0.5 + 1.9 * down
    figure, grid = panels(width, height, down, across, len(curves), sharey=True)
    for axes, (name, histories) in zip(grid.flat, curves.items(), strict=False):
        histories = list(histories)
        epochs = min((history["epoch"] for history in histories), key=len)  # as far as every run came
        low, lower, median, upper, high = (
            np.mean([history[f"shift_q{q}"][: len(epochs)] for history in histories], 0)
            for q in ("05", "25", "50", "75", "95")
        )
        axes.axhline(0, color="#444444", linewidth=0.6)
        edges = np.append(epochs, epochs[-1] + 1) - 0.5  # a band as wide as its epoch, so that one alone can be seen
        for inner, outer, alpha, label in ((low, high, 0.2, "middle 90 %"), (lower, upper, 0.4, "middle half")):
            inner, outer = (np.append(edge, edge[-1]) for edge in (inner, outer))
            axes.fill_between(edges, inner, outer, step="post", color="C0", alpha=alpha, linewidth=0, label=label)
        axes.plot(epochs, median, color="C0", marker="o" if len(epochs) < 30 else None, label="median")
        axes.set_title(name)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    for axes in grid.flat[max(0, len(curves) - across) : len(curves)]:
        axes.set_xlabel("epoch")
    for axes in grid[:, 0]:
        axes.set_ylabel("λ − area of the box")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure
