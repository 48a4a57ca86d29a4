"""How accurate a trained classifier is on images unlike those it was trained on: nothing is trained for it.

Top-1 in per cent, in the precision of the training's own tests, on a fixed subset of the test images, every class with
its share: corrupted as CIFAR-10-C is (see corruptions), with patches hidden or shuffled (arXiv 2105.10497), at other
sizes. With n images an accuracy p has a standard error of sqrt(p (1 - p) / n): 1.5 points at 60 % and 1,000 images. All
rows of a set see the same images, so the difference of two rows is known better than that.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from ..core.products import at_rest
from ..data.finish import Raw
from ..data.memory import keep_freed_memory
from ..data.sets import find
from ..data.subset import subset
from ..train.classify import Classification
from ..train.precision import Working, resolve
from ..train.rows import LENGTH, Row
from .corrupted_sets import SEED, corrupted_set

MANY = 1_000  # test images of a set
FEW = {"cifar10-mini": 10}  # of the set that only shows that everything runs
SIZE = 32  # of the sets in question, in pixels
PATCH = 4  # pixels of a side of what is hidden, whatever the model's own patches are
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75)  # of the patches that are hidden
TILES = (1, 2, 4, 8)  # in a row of the grid that is shuffled
SIZES = (24, 32, 40, 48, 64)  # pixels
MODELS = ("vit_xs", "vit")  # priors are compared on the first that there are rows of
BEGUN = {"start", "sigma_init", "alpha_init"}  # where a mixture begins: a profile's arms are in one cell
OF_A_PRIOR = {"share_heads", "freeze_masks", "init_weights", "init", "mixed"}  # settings that tell the arms of that
OF_A_PRIOR |= {*BEGUN, *LENGTH}  # comparison apart, and those that do not matter
AT_ONCE = 64  # images of 32 px; more are not faster


def has_axes(row: Row) -> bool:
    """Whether a row is an arm of the comparison of priors, on a set of 32 px: the others are not measured here."""
    alone = row.dataset in FEW or row.recipe == "short"  # where there are rows of vit_xs, so that no others are shown
    dataset, models = find(row.dataset), MODELS[: 1 if alone else None]
    fits = dataset.storage == "arrays" and dataset.size == SIZE
    return fits and row.kind == "classification" and row.model in models and row.set.keys() <= OF_A_PRIOR


def axes(task: Classification, model: nn.Module) -> dict[str, np.ndarray]:
    """`corruption` (15, 5), `occlusion`, `shuffle` and `resolution` in %, NaN where the model cannot, of an arm's row.

    Each has the values it runs over as `<name>_axis`; the number of images is `axes_images`.
    """
    if not has_axes(task.row):
        return {}
    keep_freed_memory()
    name, all_of_it = task.row.dataset, task.sources["test"]
    source = subset(all_of_it, FEW.get(name, MANY) / len(all_of_it), SEED)
    pixels = source.read(np.arange(len(source)))
    labels = torch.from_numpy(source.labels.astype(np.int64)).to(task.world.device)

    def normalised(some: np.ndarray) -> torch.Tensor:
        raw = Raw(torch.from_numpy(np.array(some)).permute(0, 3, 1, 2))
        return task.augmentations[False].finish(raw.to(task.world.device))

    def of_a_kind(spoilt: np.ndarray) -> list[float]:
        right = hits(working, normalised(spoilt.reshape(-1, *pixels.shape[1:])), labels.repeat(len(spoilt)))
        return right.view(len(spoilt), -1).double().mean(1).mul(100).tolist()

    working = Working(model, resolve(task.recipe.precision, task.world.device).dtype, task.world.device)
    images, spoilt = normalised(pixels), corrupted_set(name, pixels)
    found = {
        "corruption": (list(spoilt), [of_a_kind(each) for each in spoilt.values()]),
        "occlusion": (SHARES, [top1(working, occluded(images, share), labels) for share in SHARES]),
        "shuffle": (TILES, [top1(working, shuffled(images, tiles), labels) for tiles in TILES]),
        "resolution": (SIZES, [at_size(working, images, labels, size) for size in SIZES]),
    }
    arrays = {key: np.array(scores, np.float32) for key, (_, scores) in found.items()}
    arrays |= {f"{key}_axis": np.array(along) for key, (along, _) in found.items()}
    return arrays | {"axes_images": np.array(len(source))}


def hits(working: Working, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Whether the largest logit of each image (N, 3, S, S) is that of its label, (N,) bool."""
    at_once = max(1, round(AT_ONCE * (SIZE / images.shape[-1]) ** 2))
    parts = zip(images.split(at_once), labels.split(at_once), strict=True)
    with at_rest(working.module), working.context():
        return torch.cat([working.module(some).argmax(1) == true for some, true in parts])


def top1(working: Working, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of hits in %."""
    return 100 * hits(working, images, labels).double().mean().item()


def occluded(images: torch.Tensor, share: float) -> torch.Tensor:
    """Normalised images with a random share of their patches at the mean, 0; a larger share hides the same and more."""
    side = images.shape[-1] // PATCH
    hidden = _orders(images, side**2).view(-1, 1, side, side) < round(share * side**2)
    return images.masked_fill(hidden.repeat_interleave(PATCH, 2).repeat_interleave(PATCH, 3), 0)


def shuffled(images: torch.Tensor, tiles: int) -> torch.Tensor:
    """Images cut into tiles x tiles, which change places at random, in each image otherwise."""
    cut = images.unflatten(3, (tiles, -1)).unflatten(2, (tiles, -1))  # (N, 3, tiles, s, tiles, s)
    cut = cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (N, tiles * tiles, 3, s, s)
    order = _orders(images, tiles**2)
    moved = cut[torch.arange(len(cut), device=cut.device)[:, None], order].unflatten(1, (tiles, tiles))
    return moved.permute(0, 3, 1, 4, 2, 5).reshape(images.shape)


def _orders(images: torch.Tensor, parts: int) -> torch.Tensor:
    """A random order of so many parts for each image, (N, parts), always the same."""
    orders = np.tile(np.arange(parts), (len(images), 1))
    return torch.from_numpy(np.random.default_rng(SEED).permuted(orders, axis=1)).to(images.device)


def at_size(working: Working, images: torch.Tensor, labels: torch.Tensor, size: int) -> float:
    """Top-1 on the images at another size, patches as large as before: more of them, or fewer; NaN if it cannot."""
    if size == images.shape[-1]:
        return top1(working, images, labels)
    model = resized(working.model, size)
    if model is None:
        return np.nan
    images = F.interpolate(images, (size, size), mode="bicubic", antialias=True)
    return top1(Working(model, working.dtype, working.device), images, labels)


def resized(model: nn.Module, size: int) -> nn.Module | None:
    """A copy of a model, with its masks, for images of another size; None where it has none."""
    model = copy.deepcopy(model)
    if not hasattr(model, "set_input_size"):
        return None
    try:
        model.set_input_size(img_size=size)  # of timm, which our masks follow as they do gmmvit.regrid
    except ValueError:  # a mask of one's own that is made for one grid
        return None
    return model
