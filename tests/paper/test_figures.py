"""Every figure of the report, from the records in the repository: nothing is cut off, axes and colours have names."""

import re

import numpy as np
import pandas as pd
import pytest
from frames import recorded
from matplotlib.backends.backend_agg import FigureCanvasAgg

from gmmvit.analysis import masks as analysis
from gmmvit.paper import (
    ablation,
    charts,
    costs,
    dense,
    gab,
    gmm,
    kernels,
    motivation,
    notebook,
    pictures,
    priors,
    project,
    transmix,
)
from gmmvit.paper import views as erf_views
from gmmvit.paper.runs import DONE, history
from gmmvit.paper.tables import SMOKE
from gmmvit.paper.views import LAST

MODULES = (charts, pictures)
DPI = (200, 72)  # of PNG and of PDF
INCH = 0.01  # the edge of a letter may lie on that of the canvas


def masks(profile):
    """The records of a profile's free mask and mixture, and what the notebook `motivation` draws of them."""
    rows = recorded(profile)
    runs = {mask: notebook.find_run(rows, model="vit", mask=mask) for mask in ("elm", "gmm")}
    elm, gmm = (notebook.learned_masks(run) for run in runs.values())
    return elm, list(gmm.values())[len(gmm) // 2], runs["gmm"]


def of_masks(profile):
    elm, middle, run = masks(profile)
    weights = {name: mask.weight() for name, mask in elm.items()}
    few = {name: elm[name] for name in list(elm)[:3]}
    fits = motivation.fitted(few, most=5)
    best = list(few)[-1]
    scores = notebook.arrays_drawn(run)["scores"]
    yield pictures.mask_grid(weights)
    yield pictures.mask_grid({"layer 5": middle.weight()}, middle.grid, (4, 4))
    yield charts.decay(analysis.regularities(weights[best], elm[best].grid), [fits[best][0][k] for k in (0, 1, 4)])
    yield charts.r2_by_kernels({f"layer {n}": fits[best] for n in range(1, 10)})
    yield pictures.reverse_convolution(analysis.relative_kernel(weights[best][0], elm[best].grid))
    yield pictures.mixture(analysis.mixing(middle))
    yield pictures.steps(analysis.masking(scores, middle), analysis.STEPS)


def tables(profile):
    rows = recorded(profile)
    yield charts.gains(gmm.main_gains(rows))
    trained = rows[(rows.state == DONE) & (rows.kind == "classification")]
    histories = [history(folder) for folder in trained.folder[:6]]
    yield charts.by_epoch(
        [{"title": "CIFAR-10", "score": "top1", "arms": {"plain": histories[:3], "GMM": histories[3:]}}]
    )
    yield charts.learning_curve(histories[0])
    for arms in (ablation.initialisations, ablation.others, ablation.depths):
        yield charts.arms(ablation.compared(arms(rows))[0])
    views = erf_views.views(rows)
    fields = {view.label: view.fields for view in views if view.fields}
    yield pictures.fields(fields)
    yield pictures.fields({"untrained ViT-Ti": {"before\nthe norm": next(iter(fields.values()))[LAST]}})


def made_up(_):
    ours = [
        (name, k, 0.2 * k - 1, 0.2 * k - 1.7, 0.2 * k - 0.3)
        for name in ("cifar10", "tiny-imagenet")
        for k in (1, 5, 10)
    ]
    ours = pd.DataFrame(ours, columns=["dataset", "label", "gain", "gain_low", "gain_high"])
    ours = ours.assign(model="vit", series="GMM")
    yield charts.kernels(ours, kernels.published_gains())
    both = pd.concat([ours, ours.assign(series="GMB", gain=ours.gain + 0.5)])
    yield charts.kernels(both, kernels.published_gains())
    shares = {1: 0.01, 5: 0.1, 10: 1.0}
    yield charts.by_share(both.assign(arm=both.series, share=both.label.map(shares)))
    arms = pd.DataFrame({"arm": ["GMM, frozen", "GAB", "learned slopes"], "seed": 0})
    several = [arms.assign(seed=seed, top1=[60.0 + seed, 62.0 - seed, 61.0]) for seed in range(3)]
    plain = [arms[:1].assign(arm="plain", seed=seed, top1=60.0) for seed in range(3)]
    rows = pd.concat(several + plain).assign(share=1.0, **dict.fromkeys(priors.SAME, "cifar10"), state=DONE)
    yield priors.figure(priors.points(rows))
    masks = notebook.bench("masks")
    yield charts.throughput(*costs.rates(masks))
    images, heat = np.random.default_rng(0).random((5, 32, 32, 3)), np.random.default_rng(1).random((5, 32, 32))
    yield pictures.heat_maps(images, {"no mask": heat, "ELM": heat, "GMM": heat})
    quantiles = {f"shift_q{q}": [0.1 * i, 0.2 * i] for i, q in enumerate(("05", "25", "50", "75", "95"))}
    curve = {"epoch": [1, 2]} | quantiles
    yield charts.shifts({f"{name}: CIFAR-10": [curve] for name in ("ViT", "ViT, GMM", "CaiT", "PiT")})


def smoke(profile):
    rows = recorded(profile)
    biased = erf_views.with_biases(erf_views.views(rows))
    first = biased[0].biases["layer 5"]
    yield pictures.reverse_convolution(first, "position bias")
    yield pictures.seen_by_queries({"untrained": first, "trained": first})
    yield pictures.seen_by_the_centre(erf_views.summed(biased))
    heads = gab.heads(gab.arms(rows))
    yield charts.gains(gab.gain_points(heads))
    yield charts.learned_layers(gab.learned_layers(heads))
    ran = rows[rows.state == DONE].to_dict("records")
    (mixed, *_) = (run for run in ran if "mix_images" in notebook.arrays_drawn(run))
    yield pictures.mixed_images(transmix.mixed_images(notebook.arrays_drawn(mixed))[:6])
    found = dense.arms(rows)
    yield charts.by_epoch(dense.curves(found))
    yield pictures.detections(dense.pictures(found, "detection"))
    yield pictures.segmentations(dense.pictures(found, "segmentation"))


SOURCES = [(tables, "cpu"), (tables, "smoke"), (of_masks, "cpu"), (of_masks, "smoke")]
SOURCES += [(made_up, ""), (smoke, "smoke")]


def cut_off(figure, dpi):
    """By how many inches something drawn lies beyond the canvas: left, bottom, right, top."""
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn, (width, height) = figure.get_tightbbox(canvas.get_renderer()), figure.get_size_inches()
    return max(-drawn.x0, -drawn.y0, drawn.x1 - width, drawn.y1 - height)


def nameless(figure):
    """Axes with numbers and without a name, their neighbours' names counted; bars of colours without one."""
    found, visible = [], [axes for axes in figure.axes if axes.get_visible() and axes.axison]
    for axes in visible:
        if axes.get_label() == "<colorbar>":
            found += [] if axes.get_xlabel() or axes.get_ylabel() else ["colour bar"]
            continue
        place = axes.get_position()
        for which, same in (("x", "x0"), ("y", "y0")):
            ticks = [tick.get_text() for tick in getattr(axes, f"get_{which}ticklabels")()]
            numbers = [tick for tick in ticks if re.fullmatch(r"[−\d.,]+", tick)]
            line = [each for each in visible if abs(getattr(each.get_position(), same) - getattr(place, same)) < 0.02]
            names = [getattr(each, f"get_{which}label")() for each in line]
            px = any(tick.endswith(" px") for tick in ticks)
            found += [f"{which} of {axes.get_title()!r}"] if numbers and not (any(names) or px) else []
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("source", "profile"), SOURCES, ids=[f"{s.__name__}-{p}" for s, p in SOURCES])
def test_nothing_is_cut_off_and_everything_has_a_name(source, profile):
    if profile == "smoke" and not project.runs_folder(profile).is_dir():
        pytest.skip("the smoke pipeline was not run here")
    for number, figure in enumerate(source(profile)):
        if figure is None:
            continue
        charts.settle(figure)
        beyond = {dpi: cut_off(figure, dpi) for dpi in DPI}
        assert max(beyond.values()) <= INCH, (number, beyond)
        assert not nameless(figure), number
        figure.set_dpi(150)
        headed = notebook.headed(figure, SMOKE)
        assert max(cut_off(headed, dpi) for dpi in DPI) <= INCH, number


def test_every_kind_of_figure_is_looked_at():
    source = open(__file__, encoding="utf-8").read()
    for module in MODULES:
        for name, made in vars(module).items():
            if hasattr(made, "__wrapped__") and made.__module__ == module.__name__:
                assert f"{module.__name__.split('.')[-1]}.{name}(" in source, name
