"""Effective receptive field: how much each pixel moves the features of the central patch (GAB, arXiv 2305.04722).

Y = mean over features of the central patch of the last feature map, G = mean over colours of dY/dx, ReLU for each
image, then the mean over images, divided by its sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
from scipy.optimize import least_squares
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.grids import Grid, layout
from ..core.products import at_rest
from ..data.memory import keep_freed_memory
from ..data.progress import bar

FEATURES = ("last", "before the norm")
AT_ONCE = 16  # images; more are not faster
VOID = 1e-4  # of the gradient of a random projection: below it, the mean over features says nothing


class VoidField(ValueError):
    """The mean over features is constant, whatever the image (erratum A5)."""


def effective_receptive_field(
    model: nn.Module, batches: Iterable[torch.Tensor], features: str = "last", images: int | None = None
) -> np.ndarray:
    """The field of `images` images (of all, where None), (H, W), summing to 1; deterministic in evaluation mode."""
    if features not in FEATURES:
        raise ValueError(f"features: expected one of {FEATURES}, got {features!r}")
    place = next(model.parameters())
    total, count = None, 0
    keep_freed_memory()
    with at_rest(model), _frozen(model), torch.enable_grad(), bar(total=images, desc="receptive field") as progress:
        for batch in batches:
            batch = batch[: None if images is None else images - count]
            for part in batch.to(place.device, place.dtype).split(AT_ONCE):
                if not count:
                    _refuse_void(model, part[:1], features)
                seen = _never_alone(model, part).requires_grad_()
                (gradient,) = torch.autograd.grad(_central(model, seen, features).mean(1).sum(), seen)
                gradient = gradient[: len(part)]  # images do not meet, so each has its own
                field = gradient.mean(1).relu().cpu().double().sum(0)  # (H, W)
                total = field if total is None else total + field
                count += len(part)
                progress.update(len(part))
            if count == images:
                break
    if total is None:
        raise ValueError("expected at least one batch of images, got none")
    if not total.isfinite().all():
        raise ValueError("the receptive field is not finite: expected finite images and weights, got some that are not")
    return (total / total.sum()).cpu().numpy()


def _never_alone(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """The images, a single one twice where the model has BatchNorm.

    Its gradient of one image is wrong on a CPU (torch 2.15) where it arrives as (B, N, C), tokens before channels.
    """
    alone = len(images) == 1 and any(isinstance(module, _BatchNorm) for module in model.modules())
    return images.repeat(2, 1, 1, 1) if alone else images


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Parameters without gradients for a while: what only theirs would need is not kept."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in learned:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in learned:
            parameter.requires_grad_()


def central_patch(grid: Grid) -> tuple[int, int]:
    """Row and column of the central patch; of an even grid, the upper left of the middle four (90 of 14 x 14)."""
    return (grid[0] - 1) // 2, (grid[1] - 1) // 2


def _central(model: nn.Module, images: torch.Tensor, features: str) -> torch.Tensor:
    """The features of the central patch of the last feature map, (B, C)."""
    if not hasattr(model, "forward_features"):
        raise ValueError(f"{type(model).__name__}: expected a model of timm, which has forward_features")
    if features == "last":
        return _at_centre(model, model.forward_features(images), images)
    norm = getattr(model, "norm", None)
    if norm is None or isinstance(norm, nn.Identity):
        raise ValueError(f"{type(model).__name__} has no norm after its last layer: expected features='last'")
    met = []
    hook = norm.register_forward_pre_hook(lambda module, args: met.append(args[0]))
    try:
        model.forward_features(images)
    finally:
        hook.remove()
    return _at_centre(model, met[-1], images)


def _at_centre(model: nn.Module, features: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    width = model.num_features
    if features.ndim == 4:
        channels_first = features.shape[1] == width and features.shape[-1] != width
        image = features.permute(0, 2, 3, 1) if channels_first else features
        row, column = central_patch(tuple(image.shape[1:3]))
        return image[:, row, column]
    grid, prefix = layout(model, features.shape[1], images.shape[-2:]) or (None, 0)
    if grid is None:
        raise ValueError(
            f"{type(model).__name__}: expected features of one grid of patches, got {tuple(features.shape)}"
        )
    row, column = central_patch(grid)
    return features[:, prefix + row * grid[1] + column]


def _refuse_void(model: nn.Module, image: torch.Tensor, features: str) -> None:
    """After a LayerNorm without a learned gain the mean over features is 0, and its gradient rounding noise."""
    image = _never_alone(model, image.detach().clone()).requires_grad_()
    central = _central(model, image, features)  # (1 or 2, C)
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(central.shape[1], generator=generator).to(central) / central.shape[1]
    (gradient,) = torch.autograd.grad(central.mean(), image, retain_graph=True)
    (other,) = torch.autograd.grad((central @ direction).sum(), image)
    if gradient.norm() < VOID * other.norm():
        raise VoidField(
            f"{type(model).__name__}: the mean over the central patch's features is constant (its norm has gain 1, as "
            "in an untrained model), and the field rounding noise: expected features='before the norm'"
        )


# ---- a Gaussian fitted to a field or a bias --------------------------------------------------------------------------


@dataclass(frozen=True)
class GaussianFit:
    """What was fitted; sigmas are positive, in the map's own steps."""

    r2: float
    sigma_x: float
    sigma_y: float
    x: float
    y: float
    amplitude: float


def fit_gaussian(values: np.ndarray, subtract_minimum: bool = True) -> GaussianFit:
    """Least squares over five free, unbounded parameters, from the paper's start values (given there for 14 x 14)."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or min(values.shape) < 3 or not np.isfinite(values).all():
        raise ValueError(f"expected a finite map of at least 3 x 3 values, got shape {values.shape}")
    data = values - values.min() if subtract_minimum else values
    rows, columns = np.indices(data.shape)
    height, width = (side - 1 for side in data.shape)
    start = [2.0, 0.8 * width / 2, 0.8 * height / 2, width / 10 / 1.5, height / 6 / 1.5]

    def model(parameters: np.ndarray) -> np.ndarray:
        amplitude, x, y, sigma_x, sigma_y = parameters
        exponent = ((columns - x) / sigma_x) ** 2 / 2 + ((rows - y) / sigma_y) ** 2 / 2
        return amplitude / (2 * np.pi * sigma_x * sigma_y) * np.exp(-exponent)

    found = least_squares(lambda parameters: (model(parameters) - data).ravel(), start, method="lm", max_nfev=20_000).x
    spread = data.var()
    r2 = 1 - (data - model(found)).var() / spread if spread else 0.0
    amplitude, x, y, sigma_x, sigma_y = found
    sign = np.sign(sigma_x * sigma_y)  # only the product of the signs matters
    return GaussianFit(float(r2), abs(float(sigma_x)), abs(float(sigma_y)), float(x), float(y), float(sign * amplitude))
