"""Where trained models look and what position biases they learned: of a profile's runs, or of any model by name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import timm
import torch
import torch.nn as nn
from PIL import Image

from ..core.attach import attach, masks_of
from ..data import find, load
from ..paper.names import MASKS, MODELS
from ..train.learned import read, read_arrays
from ..train.rows import LENGTH, START_OPTIONS, Row
from ..train.start import unmasked_model
from ..train.weights import from_file, from_timm, take
from .fields import AT_ONCE, effective_receptive_field
from .masks import relative_kernel
from .positions import position_biases

Kernels = Mapping[str, np.ndarray]  # {layer: (2n-1, 2n-1)}, the mean over heads
LAST, RESET = "trained", "positions\nre-initialised"  # lines of a figure
LOOKED = "looked at"


class View(NamedTuple):
    """What is known of where one trained model looks, and of its position biases."""

    model: str
    dataset: str  # of the images; the weights are those of its training, or published ones
    arm: str
    row: Row | None  # None: published weights
    features: str = ""  # "last" or "before the norm"
    fields: Mapping[str, np.ndarray] = {}  # trained, and with positions drawn anew, (H, W)
    biases: Kernels = {}  # without the Gaussian
    gaussians: Kernels = {}

    @property
    def label(self) -> str:
        return f"{MODELS.get(self.model, self.model)}, {self.arm}"


# ---- what there is ---------------------------------------------------------------------------------------------------


def views(rows: Mapping[str, Row], runs: Iterable[Mapping]) -> list[View]:
    """A view of each model and arm: of its first data set and seed that were run; arms of ablations are left out."""
    there, found = {run["row"]["name"]: run for run in runs}, {}
    for name, row in rows.items():
        arm = _arm(row)
        if name in there and arm and (row.model, arm) not in found:
            view = _view(row, arm, there[name]["folder"] / "learned.npz")
            if view.fields or view.biases:
                found[row.model, arm] = view
    return list(found.values())


def _arm(row: Row) -> str:
    """The arm of a row in words; none of a row with settings of another question."""
    if not row.set.keys() <= {*START_OPTIONS, *LENGTH, "share_heads"}:
        return ""
    words = MASKS.get(row.mask, row.mask)
    shared = row.set.get("share_heads")
    words += "" if shared is None else " shared" if shared else " head-wise"
    start = row.start_options
    pretrained = start.get("pretrained") or start.get("pretrained_file")
    return words + (" on intact positions" if pretrained and not start.get("reset_positions") else "")


def _view(row: Row, arm: str, path: Path) -> View:
    arrays = read_arrays(path)
    fields = {line: arrays[key] for line, key in ((LAST, "erf"), (RESET, "erf_reset")) if key in arrays}
    biases = _by_layer(arrays.get("position_bias", ()))
    gaussians = [relative_kernel(mask.weight().mean(0), mask.grid) for mask in read(path) if mask.kind == "gab"]
    beside = _by_layer(gaussians) if len(gaussians) == len(biases) else {}  # a Gaussian in each layer that has a bias
    return View(row.model, row.dataset, arm, row, str(arrays.get("erf_features", "")), fields, biases, beside)


def _by_layer(kernels: Iterable[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"layer {number}": kernel for number, kernel in enumerate(kernels, 1)}


def untrained(row: Row) -> Kernels:
    """The position biases of a row before its training, as its seed draws them."""
    with torch.random.fork_rng():
        torch.manual_seed(row.seed)
        model = unmasked_model(row)
    return _by_layer(bias.mean(0) for bias in position_biases(model).values())


def with_biases(found: Iterable[View]) -> list[View]:
    """The views of the GAB paper's kind of model, whose bias spans the image, and of one looked at with such biases."""
    return [view for view in found if view.biases and ("relpos" in view.model or view.arm == LOOKED)]


def summed(found: Iterable[View]) -> dict[str, Kernels]:
    """The bias of each view, and beside a Gaussian also what the two add up to: {words: {layer: kernel}}."""
    lines = {}
    for view in found:
        lines[view.label + (", bias alone" if view.gaussians else "")] = view.biases
        if view.gaussians:
            lines[f"{view.label}, bias + Gaussian"] = {
                layer: kernel + view.gaussians[layer] for layer, kernel in view.biases.items()
            }
    return lines


# ---- a model somebody looks at --------------------------------------------------------------------------------------


def look(model: str, weights: str, images: int, dataset: str) -> View:
    """The view of a timm model with its published weights or those of a file, or of a weights.pt that a run left.

    Its images are the first test images of a data set, scaled and normalised as the model's own were.
    """
    row = _row_of(weights)
    if row and row.model != model:
        raise ValueError(f"model: expected {row.model!r}, whose weights are in {weights}, got {model!r}")
    net, dataset = (_trained(row, weights), row.dataset) if row else (_from_timm(model, weights), dataset)
    shape = timm.data.resolve_model_data_config(net)
    shape |= {"mean": find(dataset).mean, "std": find(dataset).std} if row else {}
    source, transform = load(dataset)["test"], timm.data.create_transform(**shape, is_training=False)
    places = np.arange(min(images, len(source)))
    batches = (
        torch.stack([transform(_picture(each)) for each in source.read(some)])
        for some in np.array_split(places, -(-len(places) // AT_ONCE))
    )
    field = effective_receptive_field(net, batches, images=len(places))
    biases = _by_layer(bias.mean(0) for bias in position_biases(net).values())
    masks = masks_of(net).values() if row and row.mask == "gab" else ()
    gaussians = [relative_kernel(mask.weight().detach().numpy().mean(0), mask.grid) for mask in masks]
    beside = _by_layer(gaussians) if len(gaussians) == len(biases) else {}
    return View(model, dataset, LOOKED, row, "last", {LAST: field}, biases, beside)


def _row_of(weights: str) -> Row | None:
    """The row in a weights.pt of ours; None of other files."""
    if not weights:
        return None
    if not Path(weights).is_file():
        raise FileNotFoundError(f"weights: expected a file, got {weights}, which is not there")
    if Path(weights).suffix != ".pt":
        return None
    content = torch.load(weights, map_location="cpu", weights_only=True)
    return Row(**json.loads(content["row"])) if "row" in content else None


def _trained(row: Row, weights: str) -> nn.Module:
    model = unmasked_model(row)
    if row.mask != "none":
        attach(model, row.mask, **row.mask_options)
    model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True)["model"])
    return model


def _from_timm(model: str, weights: str) -> nn.Module:
    net = timm.create_model(model)
    state = from_file(weights, net) if weights else from_timm(model, "name it as weights")
    take(net, state, weights or f"timm's {model}")
    return net


def _picture(image: np.ndarray | Image.Image) -> Image.Image:
    return Image.fromarray(image) if isinstance(image, np.ndarray) else image
