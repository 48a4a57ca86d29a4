"""The augmentation of each recipe: (samples, seeds) -> normalised float32 images (B, 3, S, S).

32 and 64 px arrays are augmented a whole batch at a time; images from files one by one, by torchvision and timm. Every
random number belongs to one sample's seed, never to the batch or the worker.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from ..errors import unknown
from . import draws
from .autoaugment import Policy, autoaugment, policy_tables
from .erasing import random_erase
from .sets import DataSet

Augmentation = Callable[[Sequence, np.ndarray], torch.Tensor]

RECIPES = ("gmm", "short", "gab-finetune", "gab-imagenet", "deit-transmix")
PADDING = 4  # pixels of zeros around an image before it is cropped, also at 64 px


def augmentation(
    recipe: str, dataset: DataSet, *, train: bool, size: int | None = None, raw_mean_erasing: bool = True
) -> Augmentation:
    """What a recipe does to the samples of a data set, for training or for evaluation.

    `raw_mean_erasing` keeps the GMM code's oddity: erased boxes hold the raw channel means though the image around them
    is normalised already; False fills them with the (normalised) mean, 0.
    """
    if recipe not in RECIPES:
        raise ValueError(unknown("augmentation recipe", recipe, RECIPES))
    arrays = dataset.storage == "arrays"
    if arrays and size not in (None, dataset.size):
        raise ValueError(f"{dataset.name} is kept at {dataset.size} px and not resized; size {size} came")
    if not arrays and recipe in ("gmm", "short"):
        others = ", ".join(RECIPES[2:])
        raise ValueError(f"recipe {recipe} augments 32 and 64 px arrays; for the images of {dataset.name} use {others}")
    size = size or dataset.size
    if arrays and not train:
        return partial(augment_arrays, dataset)
    if recipe == "short":
        return partial(augment_arrays, dataset, crop=True)
    if recipe == "gmm":
        policy, fill = policy_tables(dataset.policy, size), dataset.mean if raw_mean_erasing else (0.0, 0.0, 0.0)
        return partial(augment_arrays, dataset, crop=True, policy=policy, erase_with=fill)
    transform = _gab_finetune if recipe == "gab-finetune" else _timm
    return partial(augment_one_by_one, transform(recipe, dataset, size, train))


def augment_arrays(
    dataset: DataSet,
    samples: np.ndarray,
    seeds: np.ndarray,
    crop: bool = False,
    policy: Policy | None = None,
    erase_with: tuple[float, ...] | None = None,
) -> torch.Tensor:
    """Samples (B, S, S, 3) uint8: flip, crop, AutoAugment, normalise, erase; the steps that are asked for."""
    samples = flip_and_crop(samples, seeds) if crop else samples
    images = torch.from_numpy(samples).permute(0, 3, 1, 2).contiguous()
    if policy:
        images = autoaugment(policy, images, np.stack([draws.uniform(seeds, draws.POLICY + n) for n in range(5)]))
    images = F.normalize(F.to_dtype(images, torch.float32, scale=True), dataset.mean, dataset.std, inplace=True)
    return random_erase(images, seeds, erase_with) if erase_with else images


def flip_and_crop(samples: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Flip half of the images and cut each out of its zero-padded self. (B, S, S, 3) uint8."""
    batch, size = samples.shape[:2]
    flip = draws.uniform(seeds, draws.FLIP) < 0.5
    row, column = (
        (draws.uniform(seeds, number) * (2 * PADDING + 1)).astype(int) for number in (draws.ROW, draws.COLUMN)
    )
    padded = np.zeros((batch, size + 2 * PADDING, size + 2 * PADDING, 3), np.uint8)
    inside = padded[:, PADDING:-PADDING, PADDING:-PADDING]
    inside[:] = samples
    inside[flip] = samples[flip, :, ::-1]
    windows = sliding_window_view(padded, (size, size), axis=(1, 2))  # (B, 9, 9, 3, S, S), no copy
    return windows[np.arange(batch), row, column].transpose(0, 2, 3, 1)


def augment_one_by_one(transform: Callable, samples: Sequence, seeds: np.ndarray) -> torch.Tensor:
    """A transform of one PIL image, applied to every sample with all random generators set from its seed."""
    images = []
    with _generators_restored():
        for sample, seed in zip(samples, seeds.tolist(), strict=True):
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.default_generator.manual_seed(seed % 2**63)
            images.append(transform(F.to_pil_image(sample) if isinstance(sample, np.ndarray) else sample))
    return torch.stack(images)


@contextmanager
def _generators_restored():
    """The random streams of torch, numpy and Python go on afterwards as if nothing had been drawn."""
    python, legacy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        yield
    random.setstate(python)
    np.random.set_state(legacy)


def _gab_finetune(recipe: str, dataset: DataSet, size: int, train: bool) -> v2.Transform:
    """GAB fine-tuning, 256 -> 224 px or the same share of another size."""
    large = round(size * 256 / 224)
    spoil = [
        v2.RandomResizedCrop(large, scale=(0.8, 1.0)),
        v2.RandomRotation(15),
        v2.ColorJitter(0.4, 0.4, 0.4),
        v2.RandomHorizontalFlip(),
    ]
    end = [
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(dataset.mean, dataset.std),
        v2.ToPureTensor(),
    ]
    return v2.Compose([*(spoil if train else [v2.Resize(large)]), v2.CenterCrop(size), *end])


def _timm(recipe: str, dataset: DataSet, size: int, train: bool) -> Callable:
    """timm's ImageNet training: RandAugment m9; erasing 0.25 for GAB, and for TransMix none, but a drawn interpolation.

    TransMix's public models are tested on 0.9 of the resized image, timm's own default is 0.875.
    """
    from timm.data import create_transform

    transform = create_transform(
        size,
        is_training=train,
        auto_augment="rand-m9-mstd0.5-inc1",
        re_prob=0.25 if recipe == "gab-imagenet" else 0.0,
        re_mode="pixel",
        interpolation="random" if train and recipe == "deit-transmix" else "bicubic",  # random: bilinear or bicubic
        crop_pct=0.9 if recipe == "deit-transmix" else 0.875,
        mean=dataset.mean,
        std=dataset.std,
    )
    for operation in (operation for step in transform.transforms for operation in getattr(step, "ops", ())):
        if operation.name == "PosterizeIncreasing":
            operation.aug_fn = _posterize
    return transform


def _posterize(image, bits: int, **options):
    """timm's posterize; asked to keep 0 bits, black as with the papers' Pillow (Pillow 13 raises instead)."""
    from timm.data.auto_augment import posterize

    return posterize(image, bits, **options) if bits > 0 else image.point(lambda value: 0)
