"""The road to the Gaussian mixture mask: what free masks learned, mixtures fitted to it, the method step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from .analysis import Explained, by_distance, regularities, relative_kernel
from .learned import LearnedMask
from .mixtures import Fit, fit_mixtures
from .tables import Column, Table, text

Fitted = Mapping[str, tuple[list[Fit], Explained]]  # of each layer: mixtures of 1, 2, ... kernels, and their bound


def regularities_table(masks: Mapping[str, LearnedMask]) -> Table:
    """Self-inhibition and decay with distance of the first head in each layer, and what distance explains."""
    lines = []
    for layer, mask in masks.items():
        seen, bound = regularities(mask.weight(), mask.grid), by_distance(mask.weight()[0], mask.grid)
        line = {name: getattr(seen, name)[0] for name in ("self_difference", "self_z", "decay_weight", "decay_size")}
        lines.append({"layer": layer, "r2": bound.r2, "noise": bound.on_noise, **line})
    columns = [
        Column("layer", "mask"),
        Column("self_difference", "diagonal − rest", ".4f"),
        Column("self_z", "diagonal, in sd"),
        Column("decay_weight", "weight with distance"),
        Column("decay_size", "|weight| with distance"),
        Column("r2", "R² of distance", ".3f"),
        Column("noise", "on noise", ".3f"),
    ]
    return Table(columns, lines)


def fitted(masks: Mapping[str, LearnedMask], most: int = 10) -> Fitted:
    """Mixtures of 1 to `most` kernels fitted to the first head in each layer."""
    weights = {layer: (mask.weight()[0], mask.grid) for layer, mask in masks.items()}
    return {layer: (fit_mixtures(*each, most), by_distance(*each)) for layer, each in weights.items()}


def fits_table(fits: Fitted) -> Table:
    """R2 by the number of kernels, for each layer."""
    counts = [len(fit.sigma) for found, _ in fits.values() for fit in found]
    lines = [
        {"layer": layer, "bound": bound.r2} | {str(len(fit.sigma)): fit.r2 for fit in found}
        for layer, (found, bound) in fits.items()
    ]
    kernels = [Column(str(count), str(count), ".3f") for count in dict.fromkeys(counts)]
    return Table(
        [Column("layer", "R² of K kernels"), *kernels, Column("bound", "any function of distance", ".3f")], lines
    )


def mixing(mask: LearnedMask, head: int = 0) -> dict[str, np.ndarray]:
    """alpha_k exp(-d2 / (2 sigma_k^2)) of each kernel by relative position, and their sum M, (2n - 1, 2n - 1) each."""
    parts = {}
    for k, (sigma, alpha) in enumerate(
        zip(*(mask.parameters[name][:, head] for name in ("sigma", "alpha")), strict=True)
    ):
        one = replace(mask, parameters={name: values[k : k + 1] for name, values in mask.parameters.items()})
        parts[f"α = {text(float(alpha))}\n|σ| = {abs(sigma):.1f}"] = relative_kernel(one.weight()[head], mask.grid)
    return parts | {"their sum M": relative_kernel(mask.weight()[head], mask.grid)}


def masking(scores: np.ndarray, mask: LearnedMask, head: int = 0) -> dict[str, np.ndarray]:
    """Scores S = Q K^T / sqrt(d) of one head, its mask M, their product, and the softmax of it, (N, N) each."""
    scores, weight = np.asarray(scores, dtype=np.float64), mask.weight()[head]
    raised = np.exp(weight * scores - (weight * scores).max(-1, keepdims=True))
    attention = raised / raised.sum(-1, keepdims=True)
    return {"S = QKᵀ/√d": scores, "M": weight, "M ⊙ S": weight * scores, "softmax(M ⊙ S)": attention}
