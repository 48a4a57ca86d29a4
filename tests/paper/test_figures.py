"""Every figure of the report, from the records in the repository: nothing is cut off, axes and colours have names."""

import re

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from gmmvit.analysis import masks as analysis
from gmmvit.paper import (
    ablation,
    dense_plots,
    dense_tables,
    figures,
    gab_arms,
    gab_plots,
    gab_tables,
    main_table,
    mask_plots,
    method,
    notebook,
    plots,
    position_plots,
    project,
    transmix_plots,
    transmix_tables,
)
from gmmvit.paper import costs as bench_tables
from gmmvit.paper import views as erf_views
from gmmvit.paper.runs import history
from gmmvit.paper.seeds import Gain
from gmmvit.paper.tables import SMOKE
from gmmvit.paper.views import LAST

MODULES = (plots, mask_plots, position_plots, gab_plots, transmix_plots, dense_plots)
DPI = (200, 72)  # of PNG and of PDF
INCH = 0.01  # the edge of a letter may lie on that of the canvas


def masks(profile):
    """The records of a profile's free mask and mixture, and what the notebook `motivation` draws of them."""
    known = notebook.records(profile)
    runs = {mask: notebook.find_run(known, model="vit", mask=mask) for mask in ("elm", "gmm")}
    elm, gmm = (notebook.learned_masks(run) for run in runs.values())
    return elm, list(gmm.values())[len(gmm) // 2], runs["gmm"]


def motivation(profile):
    elm, middle, run = masks(profile)
    weights = {name: mask.weight() for name, mask in elm.items()}
    few = {name: elm[name] for name in list(elm)[:3]}
    fits = method.fitted(few, most=5)
    best = list(few)[-1]
    scores = notebook.arrays_drawn(run)["scores"]
    yield mask_plots.mask_grid(weights)
    yield mask_plots.mask_grid({"layer 5": middle.weight()}, middle.grid, (4, 4))
    yield mask_plots.decay(analysis.regularities(weights[best], elm[best].grid), [fits[best][0][k] for k in (0, 1, 4)])
    yield mask_plots.r2_by_kernels({f"layer {n}": fits[best] for n in range(1, 10)})
    yield mask_plots.reverse_convolution(analysis.relative_kernel(weights[best][0], elm[best].grid))
    yield mask_plots.mixture(analysis.mixing(middle))
    yield mask_plots.steps(analysis.masking(scores, middle), analysis.STEPS)


def tables(profile):
    known = notebook.records(profile)
    rows, runs, failed, _ = known
    groups = main_table.main_groups(rows, runs, failed, masks=("none", "gmm", "elm", "gab"))
    points = main_table.gain_points(groups, main_table.published_main())
    yield plots.gains([point | {"label": f"{point['model']}, {point['arm']}"} for point in points])
    histories = [history(run["folder"]) for run in runs[:6]]
    yield plots.learning_curves({"plain": histories[:3], "GMM": histories[3:]}, "CIFAR-10")
    yield plots.learning_curve(history(runs[0]["folder"]))
    for arms in (ablation.initialisations, ablation.others, ablation.depths):
        found = ablation.points(arms(rows, runs, failed))
        yield plots.arms(found) if found else None
    views = erf_views.views(rows, runs)
    fields = {view.label: view.fields for view in views if view.fields}
    yield position_plots.fields(fields)
    yield position_plots.fields({"untrained ViT-Ti": {"before\nthe norm": next(iter(fields.values()))[LAST]}})


def made_up(_):
    several = {count: Gain(0.2 * count - 1, 0.3, 3, 0.2 * count - 1.7, 0.2 * count - 0.3) for count in (1, 5, 10)}
    found = {name: {"ours": several, "published": {2: 0.6, 5: 0.58, 10: 0.59}} for name in ("cifar10", "tiny-imagenet")}
    yield plots.kernels(found)
    masks = notebook.bench("masks")
    yield plots.throughput(*bench_tables.rates(masks))
    images, heat = np.random.default_rng(0).random((5, 32, 32, 3)), np.random.default_rng(1).random((5, 32, 32))
    yield mask_plots.heat_maps(images, {"no mask": heat, "ELM": heat, "GMM": heat})
    quantiles = {f"shift_q{q}": [0.1 * i, 0.2 * i] for i, q in enumerate(("05", "25", "50", "75", "95"))}
    curve = {"epoch": [1, 2]} | quantiles
    yield transmix_plots.shifts({f"{name}: CIFAR-10": [curve] for name in ("ViT", "ViT, GMM", "CaiT", "PiT")})


def smoke(profile):
    rows, runs, failed, _ = notebook.records(profile)
    biased = erf_views.with_biases(erf_views.views(rows, runs))
    first = biased[0].biases["layer 5"]
    yield position_plots.slicing(first)
    yield position_plots.seen_by_queries({"untrained": first, "trained": first})
    yield position_plots.seen_by_the_centre(erf_views.summed(biased))
    groups = gab_arms.gab_groups(rows, runs, failed)
    yield plots.gains(gab_tables.gain_points(gab_arms.head_groups(groups)))
    yield gab_plots.learned_layers(gab_tables.learned_layers(gab_arms.head_groups(groups)))
    (mixed, *_) = (run for run in runs if "mix_images" in notebook.arrays_drawn(run))
    yield transmix_plots.mixed_images(transmix_tables.mixed_images(notebook.arrays_drawn(mixed))[:6])
    rows, runs, failed, _ = notebook.records(profile, dense=True)
    groups = dense_tables.dense_groups(rows, runs, failed)
    yield dense_plots.curves(dense_tables.curves(groups))
    yield dense_plots.detections(dense_tables.pictures(groups, "detection"))
    yield dense_plots.segmentations(dense_tables.pictures(groups, "segmentation"))


SOURCES = [(tables, "cpu"), (tables, "smoke"), (motivation, "cpu"), (motivation, "smoke")]
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
        figures.settle(figure)
        beyond = {dpi: cut_off(figure, dpi) for dpi in DPI}
        assert max(beyond.values()) <= INCH, (number, beyond)
        assert not nameless(figure), number
        figure.set_dpi(150)
        headed = notebook._headed(figure, SMOKE)
        assert max(cut_off(headed, dpi) for dpi in DPI) <= INCH, number


def test_every_kind_of_figure_is_looked_at():
    source = open(__file__, encoding="utf-8").read()
    for module in MODULES:
        for name, made in vars(module).items():
            if hasattr(made, "__wrapped__") and made.__module__ == module.__name__:
                assert f"{module.__name__.split('.')[-1]}.{name}(" in source, name
