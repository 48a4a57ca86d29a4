"""Gaussians fitted to receptive fields and position biases, published | ours (GAB paper, both its Tables 1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from .erf import central_patch
from .erf_views import LAST, LOOKED, View, summed
from .gaussian_fit import GaussianFit, fit_gaussian
from .names import DATASETS, SIZES
from .positions import grid_of_kernel, sliced
from .published import table as published_table
from .tables import Column, Table

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
    """The fits of the published receptive fields, of ImageNet weights, and of ours."""
    found = [view for view in found if view.fields]
    same = {view.model: view for view in found if view.dataset == "imagenet" and view.arm == "plain"}
    lines = []
    for row in published_table("gab_erf")["rows"]:
        ours = _fit(fit_field(same[row["model"]].fields[LAST]), "ours") if row["model"] in same else {}
        theirs = {f"published_{key}": row[key] for key, *_ in FIT}
        missing = {f"ours_{key}": "not run" for key, *_ in FIT}
        lines.append({"model": row["model"], "dataset": "ImageNet-1K", "pixels": row["size"]} | theirs | missing | ours)
    for view in found:
        for name, field in view.fields.items():
            if view is same.get(view.model) and name == LAST:
                continue
            model = view.label + ("" if name == LAST else ", positions re-initialised")
            place = {"model": model, "dataset": DATASETS.get(view.dataset, view.dataset), "pixels": len(field)}
            lines.append(place | {"features": view.features} | _fit(fit_field(field), "ours"))
    columns = [Column("model", "model"), Column("dataset", "images"), Column("pixels", "px", "d")]
    columns += [Column("features", "features"), *_columns("published", "published"), *_columns("ours", "ours")]
    return Table(columns, lines)


def published_fits_table(found: Iterable[View]) -> Table:
    """The paper's Table 1, the bias of each layer at the centre; ours where the published weights were looked at."""
    trained = [view for view in found if view.biases and (view.row is None or view.dataset == "imagenet")]
    same = {view.model: centre_fits(view.biases) for view in trained if view.arm in ("plain", LOOKED)}
    lines: dict[int, dict] = {}
    for row in published_table("gab_fits")["rows"]:
        line = lines.setdefault(row["layer"], {"layer": row["layer"]})
        model, layer = row["model"], f"layer {row['layer']}"
        line |= {f"{model}_{key}": row[key] for key, *_ in FIT}
        line |= _fit(same[model][layer], f"{model}_ours") if model in same else {f"{model}_ours": "not run"}
    columns = [Column("layer", "layer", "d")]
    for model, title in SIZES.items():
        ours = _columns(f"{model}_ours", "ours") if model in same else [Column(f"{model}_ours", "ours")]
        columns += [*_columns(model, title), *ours]
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
