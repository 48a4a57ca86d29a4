"""What attention does in each layer, and what became of the masks: the lines of layers.csv."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import torch
import torch.nn as nn

from ..core.attach import masks_of
from ..core.grids import layout, squared_distances
from ..core.maps import attention_maps
from ..core.products import at_rest
from .moved import Start, attention_and_key, shape
from .rows import LEAST, UNLEARNED

FILE = "layers.csv"  # in the folder of a run
MEASURES = "entropy", "uniform", "distance", "moved", "near", "corner"
COLUMNS = "epoch", "layer", *MEASURES
AT_ONCE = 64 * 32 * 32  # pixels of the images that are looked at together: their maps of all layers are held
UNROLLED = "MaskUnitAttention"  # Hiera's, whose tokens are not row by row


def lines(epoch: int, model: nn.Module, images: torch.Tensor | None, start: Start) -> list[dict]:
    """A line for each attention after an epoch; what there is not of it is None.

    entropy   nats, mean over images, heads and queries; of uniform attention in `uniform`
    distance  patches from query to key, its mean under attention between patches alone
    moved     how far the masks' numbers have moved since the start, in spreads of theirs
    near, corner  M(1) / M(0), M(corner) / M(0)
    """
    found: dict[str, dict] = {} if images is None else attention(model, images)
    for layer, moved in start.moved(model).items():
        found.setdefault(layer, {})["moved"] = moved
    for place, mask in masks_of(model).items():
        line = found.setdefault(attention_and_key(place)[0], {})
        if "near" not in line and (ratios := shape(mask)):
            line["near"], line["corner"] = ratios
    return [
        {"epoch": epoch, "layer": layer} | {name: _written(line.get(name)) for name in MEASURES}
        for layer, line in found.items()
    ]


def _written(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def attention(model: nn.Module, images: torch.Tensor) -> dict[str, dict[str, float]]:
    """Entropy, uniform and distance of every softmax attention that can be read, by its name; {} without any."""
    found: dict[str, dict[str, float]] = {}
    parts = images.split(max(1, AT_ONCE // images[0, 0].numel()))
    try:
        for part in parts:
            with at_rest(model), attention_maps(model) as maps:
                model(part)
                for name, weights in maps.items():
                    sums = found.setdefault(name, {})
                    for measure, mean in _measures(model, name, weights, part.shape[-2:]).items():
                        sums[measure] = sums.get(measure, 0.0) + mean * len(part) / len(images)
    except ValueError:  # of attention_maps: a model without softmax attention
        return {}
    return found


def _measures(model: nn.Module, name: str, weights: torch.Tensor, size: tuple[int, int]) -> dict[str, float]:
    """The means over a map (B, heads, ..., Nq, Nk), whose rows are taken as shares of their absolute sums.

    Rows sum to 1 but where a mask is multiplied into probabilities.
    """
    weights = weights.detach().abs().float()
    sums = weights.sum(-1)
    entropy = sums.log() - torch.xlogy(weights, weights).sum(-1) / sums  # (B, heads, ..., Nq)
    measured = {"entropy": entropy.mean().item(), "uniform": math.log(weights.shape[-1])}
    layer = model.get_submodule(name)
    places = [layout(model, tokens, size, layer) for tokens in weights.shape[-2:]]
    unordered = type(layer).__name__ == UNROLLED or hasattr(layer, "halo_size")  # whose keys lie around the queries
    if None in places or weights.shape[-2] == 1 or unordered:
        return measured  # a class token alone asks, or it is not known which patch is where
    (grid, before), (key_grid, key_before) = places
    distances, index = squared_distances(grid, key_grid)
    steps = distances.sqrt().float()[index].to(weights.device).view(weights.shape[-2] - before, -1)  # (Nq, Nk)
    patches = weights[..., before:, key_before:]
    distance = (patches * steps).sum(-1) / patches.sum(-1)
    return measured | {"distance": distance.mean().item()}


# ---- in few words ---------------------------------------------------------------------------------------------------


def summary(last: Sequence[Mapping]) -> dict[str, float | bool]:
    """Of the lines of an epoch: entropy and distance, means over layers; the largest `moved`, and if masks learned."""
    known = {name: [line[name] for line in last if line[name] is not None] for name in MEASURES}
    found = {name: round(fmean(known[name]), 6) for name in ("entropy", "distance") if known[name]}
    moved = max(known["moved"], default=None)
    return found if moved is None else found | {"moved": moved, "learned": moved >= LEAST}


def told(last: Sequence[Mapping]) -> list[str]:
    """The same in plain words, with the entropy that uniform attention would have."""
    found, words = summary(last), []
    if "entropy" in found:
        uniform = fmean(line["uniform"] for line in last if line["uniform"] is not None)
        words.append(f"attention: entropy {found['entropy']:.2f} nats of {uniform:.2f} for uniform attention")
        if "distance" in found:
            words[0] += f", {found['distance']:.2f} patches far (means over layers)"
    if "moved" in found:
        what = "learned" if found["learned"] else UNLEARNED
        words.append(f"masks: {what}; their numbers moved by {_percent(found['moved'])} of their spread, where most")
    return words


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 1 else f"{100 * share:,.0f} %"
