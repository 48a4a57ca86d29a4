"""Gaussians fitted to receptive fields and position biases, published | ours (GAB paper, both its Tables 1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ..analysis.fields import GaussianFit, central_patch, fit_gaussian
from ..analysis.positions import grid_of_kernel, sliced
from .names import DATASETS, MODELS, SIZES
from .published import table as published_table
from .tables import NOT_RUN, Column, Table, span
from .views import LAST, LOOKED, RESET, View, summed

GAUSSIAN = 0.5  # the R2 from which on something looks like a Gaussian
NEAR = 1.5  # patches from the query within which a Gaussian is centred on it
ALIKE, UNLIKE = 0.9, 0.5  # correlations from which on two maps are the same, and below which they are not
FIT = (("r2", "R²", ".3f"), ("sigma_x", "σx", ".3f"), ("sigma_y", "σy", ".3f"))


def fit_field(field: np.ndarray) -> GaussianFit:
    """A Gaussian fitted to a receptive field that sums to one, in pixels."""
    field = np.asarray(field, dtype=np.float64)
    return fit_gaussian(field / field.sum(), subtract_minimum=False)


def centre_fits(kernels: Mapping[str, np.ndarray]) -> dict[str, GaussianFit]:
    """A 2-D Gaussian fitted to what the central query sees, averaged over heads, for each layer (Table 1)."""
    fits = {}
    for name, kernel in kernels.items():
        mean = np.asarray(kernel, dtype=np.float64).reshape(-1, *np.shape(kernel)[-2:]).mean(0)
        fits[name] = fit_gaussian(sliced(mean, central_patch(grid_of_kernel(mean))))  # minus its minimum
    return fits


def fields_table(found: Iterable[View]) -> Table:
    """The fits of our receptive fields, and of the published ones, of ImageNet weights."""
    found = [view for view in found if view.fields]
    same = {view.model: view for view in found if view.dataset == "imagenet" and view.arm == "plain"}
    lines = []
    for view in found:
        for name, field in view.fields.items():
            if view is same.get(view.model) and name == LAST:
                continue
            model = view.label + ("" if name == LAST else ", positions re-initialised")
            place = {"model": model, "dataset": DATASETS.get(view.dataset, view.dataset), "pixels": len(field)}
            lines.append(place | {"features": view.features} | _fit(fit_field(field), "ours"))
    for row in published_table("gab_erf")["rows"]:
        ours = _fit(fit_field(same[row["model"]].fields[LAST]), "ours") if row["model"] in same else {}
        theirs = {f"published_{key}": row[key] for key, *_ in FIT}
        missing = {f"ours_{key}": NOT_RUN for key, *_ in FIT}
        place = {"model": row["model"], "dataset": DATASETS["imagenet"], "pixels": row["size"]}
        lines.append(place | theirs | missing | ours)
    columns = [Column("model", "model"), Column("dataset", "images"), Column("pixels", "px", "d")]
    columns += [Column("features", "features"), *_columns("published", "published"), *_columns("ours", "ours")]
    return Table(columns, lines)


def fields_found(found: Iterable[View]) -> str:
    """A sentence on our receptive fields: whether they are Gaussian, and whether they go with the positions."""
    fields = [view.fields for view in found if LAST in view.fields]
    if not fields:
        return ""
    r2 = [fit_field(each[LAST]).r2 for each in fields]
    like = [float(np.corrcoef(np.ravel(each[LAST]), np.ravel(each[RESET]))[0, 1]) for each in fields if RESET in each]
    good = sum(each >= GAUSSIAN for each in r2)
    (theirs,) = (row for row in published_table("gab_erf")["rows"] if row["model"] == "vit_relpos_small_patch16_224")
    words = (
        f"Ours: a Gaussian explains R² = {span(r2)} of the trained fields (published for {MODELS[theirs['model']]}: "
        f"{theirs['r2']:.2f}), so {_of(good, len(r2))} fall off like one."
    )
    if not like:
        return words
    if min(like) >= ALIKE:
        verdict = "nothing disappears, not as published"
    elif max(like) < UNLIKE:
        verdict = "the fields are others, as published"
    else:
        verdict = "the fields change in part"
    return f"{words} With positions drawn anew the maps correlate with the trained ones by {span(like)}: {verdict}."


def biases_found(found: Iterable[View]) -> str:
    """A sentence on our position biases: whether the trained ones look like Gaussians around the query."""
    fits = [(fit, _beside(fit, view)) for view in found for fit in centre_fits(view.biases).values()]
    if not fits:
        return ""
    rows = published_table("gab_fits")["rows"]
    theirs = [row["r2"] for row in rows if row["model"] == "vit_relpos_small_patch16_224" and row["layer"] <= 10]
    good = sum(fit.r2 >= GAUSSIAN and beside <= NEAR for fit, beside in fits)
    agrees = {len(fits): "as published", 0: "not as published"}.get(good, "in part as published")
    return (
        f"Ours: a Gaussian explains R² = {span(fit.r2 for fit, _ in fits)} of the trained biases (published for layers "
        f"1 to 10 of ViT-S/16 (R): {span(theirs)}), its centre {span((beside for _, beside in fits), '.0f')} patches "
        f"from the query: {_of(good, len(fits))} look like one around the query, {agrees}."
    )


def _beside(fit: GaussianFit, view: View) -> float:
    """How many patches the centre of a fit of centre_fits lies from the query."""
    row, column = central_patch(grid_of_kernel(next(iter(view.biases.values()))))
    return float(np.hypot(fit.y - row, fit.x - column))


def _of(some: int, count: int) -> str:
    return f"{some or 'none'} of {count}"


def published_fits_table(found: Iterable[View]) -> Table:
    """The paper's Table 1, the bias of each layer at the centre; ours where the published weights were looked at."""
    trained = [view for view in found if view.biases and (view.row is None or view.dataset == "imagenet")]
    same = {view.model: centre_fits(view.biases) for view in trained if view.arm in ("plain", LOOKED)}
    lines: dict[int, dict] = {}
    for row in published_table("gab_fits")["rows"]:
        line = lines.setdefault(row["layer"], {"layer": row["layer"]})
        model, layer = row["model"], f"layer {row['layer']}"
        line |= {f"{model}_{key}": row[key] for key, *_ in FIT}
        line |= _fit(same[model][layer], f"{model}_ours") if model in same else {f"{model}_ours": NOT_RUN}
    columns = [Column("layer", "layer", "d")]
    for model, title in SIZES.items():
        ours = f"{title} ours"
        ours = _columns(f"{model}_ours", ours) if model in same else [Column(f"{model}_ours", f"{ours} R²")]
        columns += [*_columns(model, f"{title} published"), *ours]
    return Table(columns, list(lines.values()))


def fits_table(found: Iterable[View]) -> Table:
    """The same fits of our own models: the bias alone, and with the Gaussian beside it."""
    lines = [
        {"bias": words, "layer": layer.removeprefix("layer ")} | _fit(fit, "")
        for words, kernels in summed(found).items()
        for layer, fit in centre_fits(kernels).items()
    ]
    return Table([Column("bias", "model and bias"), Column("layer", "layer"), *_columns("", "")], lines)


def _fit(fit: GaussianFit, who: str) -> dict[str, float]:
    return {f"{who}_{key}": getattr(fit, key) for key, *_ in FIT}


def _columns(who: str, title: str) -> list[Column]:
    return [Column(f"{who}_{key}", f"{title} {name}".strip(), form) for key, name, form in FIT]
