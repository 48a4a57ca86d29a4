"""The road to the mixture: what free masks (ELM) learned, and the mixtures fitted to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..analysis.masks import Explained, Fit, by_distance, fit_mixtures, regularities
from ..train.learned import LearnedMask
from .tables import Column, Table, span

INHIBITED, FALLING = -1.0, -0.3  # diagonal in sd, rank correlation with distance: from here on a regularity is seen
NUMBERS = {"self_z": ".2f", "decay_weight": ".2f", "r2": ".3f", "noise": ".3f"}
MOSTLY = 0.5  # the R2 from which on most of a mask is explained
Fitted = Mapping[str, tuple[list[Fit], Explained]]  # of each layer: mixtures of 1, 2, ... kernels, and their bound


def regularities_table(masks: Mapping[str, LearnedMask]) -> Table:
    """Self-inhibition and decay with distance of the first head in each layer, and what distance explains."""
    lines = []
    for layer, mask in masks.items():
        seen, bound = regularities(mask.weight(), mask.grid), by_distance(mask.weight()[0], mask.grid)
        line = {name: getattr(seen, name)[0] for name in ("self_difference", "self_z", "decay_weight", "decay_size")}
        lines.append({"layer": layer, "r2": bound.r2, "noise": bound.on_noise, **line})
    columns = [Column("layer", "mask"), Column("self_difference", "diagonal − rest", ".4f")]
    columns += [Column("self_z", "diagonal, in sd"), Column("decay_weight", "weight with distance")]
    columns += [Column("decay_size", "|weight| with distance"), Column("r2", "R² of distance", ".3f")]
    return Table([*columns, Column("noise", "on noise", ".3f")], lines)


def regularities_found(lines: Sequence[Mapping], epochs: int) -> str:
    """A sentence on the lines of regularities_table: their numbers, and whether the paper's regularities are there."""
    both = sum(line["self_z"] <= INHIBITED and line["decay_weight"] <= FALLING for line in lines)
    where = f"in {both} of {len(lines)} layers" if both else "in no layer"
    verdict = (
        "Both regularities are seen in every layer, as published"
        if both == len(lines)
        else (
            f"Self-inhibition and decay are seen together {where}: " + ("in part" if both else "not") + " as published"
        )
    )
    values = {name: span((line[name] for line in lines), form) for name, form in NUMBERS.items()}
    return (
        f"Ours, {after(epochs)}: the diagonal lies {values['self_z']} sd from the matrix's mean (published: about −3), "
        f"weights correlate with distance by {values['decay_weight']}, and distance explains R² = {values['r2']} (of "
        f"pure noise: {values['noise']}). {verdict}."
    )


def fitted(masks: Mapping[str, LearnedMask], most: int = 10) -> Fitted:
    """Mixtures of 1 to `most` kernels fitted to the first head in each layer, where it has weights and these differ."""
    weights = {layer: mask.weight() for layer, mask in masks.items()}
    heads = {layer: weight[0] for layer, weight in weights.items() if weight is not None}
    each = {layer: (head, masks[layer].grid) for layer, head in heads.items() if head.min() < head.max()}
    return {layer: (fit_mixtures(*found, most), by_distance(*found)) for layer, found in each.items()}


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


def fits_found(fits: Fitted, epochs: int, kernels: int = 5) -> str:
    """A sentence on the fits: how much of the free masks some kernels explain, and whether that is most of it."""
    r2, bounds = [found[kernels - 1].r2 for found, _ in fits.values()], [bound for _, bound in fits.values()]
    good = sum(each >= MOSTLY for each in r2)
    verdict = {len(r2): "most of it in every layer, as published", 0: "little of it in any layer, not as published"}
    most, noise = (span((getattr(bound, name) for bound in bounds), ".3f") for name in ("r2", "on_noise"))
    return (
        f"Ours, {after(epochs)}: {kernels} Gaussians explain R² = {span(r2, '.3f')} of the free mask, and no function "
        f"of distance more than {most} (of pure noise: {noise}), which is "
        f"{verdict.get(good, f'most of it in {good} of {len(r2)} layers, in part as published')}."
    )


def after(epochs: int) -> str:
    """The length of a training in words."""
    return f"after {epochs} epoch{'s' * (epochs != 1)}"
