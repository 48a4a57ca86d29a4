"""Where a model that somebody names looks, and what position biases it learned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import timm
import torch
import torch.nn as nn
from PIL import Image

from ..core.attach import masks_of
from ..data import find, load
from ..train.rows import Row
from ..train.start import fresh_model
from ..train.weights import from_file, from_timm, take
from .drawn import trained
from .fields import AT_ONCE, effective_receptive_field
from .masks import relative_kernel
from .positions import position_biases

Kernels = Mapping[str, np.ndarray]  # {layer: (2n-1, 2n-1)}, the mean over heads


class Look(NamedTuple):
    """What there is to see of a model."""

    row: Row | None  # None: weights that are none of ours
    dataset: str  # of the images
    field: np.ndarray  # (H, W), its receptive field
    biases: Kernels  # without the Gaussian
    gaussians: Kernels


def look_at(model: str, weights: str, images: int, dataset: str) -> Look:
    """What a timm model shows with its published weights or those of a file, or with a weights.pt that a run left.

    Its images are the first test images of a data set, scaled and normalised as the model's own were.
    """
    row, net = _of_a_run(weights)
    if row and row.model != model:
        raise ValueError(f"model: expected {row.model!r}, whose weights are in {weights}, got {model!r}")
    net, dataset = (net, row.dataset) if row else (_from_timm(model, weights), dataset)
    shape = timm.data.resolve_model_data_config(net)
    shape |= {"mean": find(dataset).mean, "std": find(dataset).std} if row else {}
    source, transform = load(dataset)["test"], timm.data.create_transform(**shape, is_training=False)
    places = np.arange(min(images, len(source)))
    batches = (
        torch.stack([transform(_picture(each)) for each in source.read(some)])
        for some in np.array_split(places, -(-len(places) // AT_ONCE))
    )
    field = effective_receptive_field(net, batches, images=len(places))
    biases = mean_biases(net)
    masks = masks_of(net).values() if row and row.mask == "gab" else ()
    gaussians = [relative_kernel(mask.weight().detach().cpu().numpy().mean(0), mask.grid) for mask in masks]
    return Look(row, dataset, field, biases, beside(biases, gaussians))


def untrained(row: Row) -> Kernels:
    """The position biases of a row before its training, as its seed draws them."""
    return mean_biases(fresh_model(row))


def mean_biases(model: nn.Module) -> Kernels:
    """The position bias of each layer, the mean over heads."""
    return by_layer(bias.mean(0) for bias in position_biases(model).values())


def by_layer(kernels: Iterable[np.ndarray]) -> dict[str, np.ndarray]:
    """{layer 1: the first, ...}."""
    return {f"layer {number}": kernel for number, kernel in enumerate(kernels, 1)}


def beside(biases: Kernels, gaussians: list[np.ndarray]) -> Kernels:
    """The Gaussian of each layer, where each that has a bias has one; else {}."""
    return by_layer(gaussians) if len(gaussians) == len(biases) else {}


def _of_a_run(weights: str) -> tuple[Row | None, nn.Module | None]:
    """The row in a weights.pt of ours and its model; None of other files."""
    if not weights:
        return None, None
    if not Path(weights).is_file():
        raise FileNotFoundError(f"weights: expected a file, got {weights}, which is not there")
    if Path(weights).suffix != ".pt" or "row" not in torch.load(weights, map_location="cpu", weights_only=True):
        return None, None
    task, model = trained(Path(weights))
    return task.row, model


def _from_timm(model: str, weights: str) -> nn.Module:
    net = timm.create_model(model)
    state = from_file(weights, net) if weights else from_timm(model, "name it as weights")
    take(net, state, weights or f"timm's {model}")
    return net


def _picture(image: np.ndarray | Image.Image) -> Image.Image:
    return Image.fromarray(image) if isinstance(image, np.ndarray) else image
