"""What the Gaussian attention bias learned, as figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from matplotlib.ticker import MaxNLocator

from .figures import PAGE, Figure, styled
from .plots import PUBLISHED

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
    figure = Figure(figsize=(PAGE, 0.8 + 1.6 * len(places)))
    panels = figure.subplots(len(places), len(START), squeeze=False)
    for line, place in zip(panels, places, strict=True):
        for axes, (name, (start, label)) in zip(line, START.items(), strict=True):
            axes.axhline(start, color=PUBLISHED, linewidth=0.8)
            for run in (run for run in runs if (run["dataset"], run["model"]) == place):
                values, colour = run[name], f"C{arms.index(run['arm'])}"
                layers = range(1, len(values) + 1)
                if values.shape[1] > 1:
                    axes.plot(layers, values, "o", color=colour, alpha=0.25, markersize=2.5, markeredgewidth=0)
                axes.plot(layers, values.mean(1), color=colour, linewidth=1)
                if run[f"{name}_published"] is not None:
                    axes.axhline(run[f"{name}_published"], color=PUBLISHED, linestyle="--", linewidth=0.8)
            axes.set_ylabel(label)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.ticklabel_format(axis="y", useOffset=False)
        line[0].set_title(f"{place[0]}, {place[1]}", loc="left")
    for axes in panels[-1]:
        axes.set_xlabel("layer")
    grey = {"where training began": "-"}
    if any(run[f"{name}_published"] is not None for run in runs for name in START):
        grey["published mean over layers"] = "--"
    lines = [(name, f"C{i}", "-") for i, name in enumerate(arms)] + [
        (name, PUBLISHED, dash) for name, dash in grey.items()
    ]
    handles = [panels[0, 0].plot([], [], color=colour, linestyle=dash, label=name)[0] for name, colour, dash in lines]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(4, len(handles)))
    return figure
