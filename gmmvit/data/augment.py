"""The augmentation of each recipe: (samples, seeds) -> normalised float32 images (B, 3, S, S).

32 and 64 px arrays are augmented a whole batch at a time; images from files one by one, by torchvision and timm. Every
random number belongs to one sample's seed, never to the batch or the worker. An augmentation has two parts: what is
done to uint8 pixels, and the end (see finish), which a training run leaves to its device.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from ..core.errors import unknown
from . import draws
from .autoaugment import Policy, autoaugment, policy_tables
from .erasing import Written, random_boxes
from .finish import Finish, Raw
from .sets import DataSet

AUGMENTATIONS = ("gmm", "short", "gab-finetune", "gab-imagenet", "deit-transmix")
PADDING = 4  # pixels of zeros around an image before it is cropped, also at 64 px


@dataclass(frozen=True)
class Augmentation:
    """Samples and their seeds -> images (B, 3, S, S) float32."""

    raw: Callable[[Sequence, np.ndarray], Raw]
    finish: Finish

    def __call__(self, samples: Sequence, seeds: np.ndarray) -> torch.Tensor:
        return self.finish(self.raw(samples, seeds))


def augmentation(recipe: str, dataset: DataSet, *, train: bool, raw_mean_erasing: bool = True) -> Augmentation:
    """What a recipe does to the samples of a data set, for training or for evaluation.

    `raw_mean_erasing` keeps the GMM code's oddity: erased boxes hold the raw channel means though the image around them
    is normalised already; False fills them with the (normalised) mean, 0.
    """
    if recipe not in AUGMENTATIONS:
        raise ValueError(unknown("augmentation recipe", recipe, AUGMENTATIONS))
    arrays, size = dataset.storage == "arrays", dataset.size
    if not arrays and recipe in ("gmm", "short"):
        others = ", ".join(AUGMENTATIONS[2:])
        raise ValueError(f"recipe {recipe} augments 32 and 64 px arrays; for the images of {dataset.name} use {others}")
    if arrays and not train:
        return Augmentation(augment_arrays, Finish.of(*dataset.statistics))
    if recipe == "short":
        return Augmentation(partial(augment_arrays, crop=True), Finish.of(*dataset.statistics))
    if recipe == "gmm":
        policy, fill = policy_tables(dataset.policy, size), dataset.mean if raw_mean_erasing else (0.0, 0.0, 0.0)
        change = partial(augment_arrays, crop=True, policy=policy, erase=True)
        return Augmentation(change, Finish.of(*dataset.statistics, fill))
    if recipe == "gab-finetune":
        return Augmentation(partial(augment_one_by_one, _gab_finetune(size, train)), Finish.of(*dataset.statistics))
    erase = _timm_erasing() if recipe == "gab-imagenet" and train else None
    change = partial(augment_one_by_one, _timm(recipe, dataset, size, train), erase=erase)
    return Augmentation(change, Finish.of(*dataset.statistics, divided=True))


def augment_arrays(
    samples: np.ndarray, seeds: np.ndarray, crop: bool = False, policy: Policy | None = None, erase: bool = False
) -> Raw:
    """Samples (B, S, S, 3) uint8: flip, crop, AutoAugment, boxes to erase; the steps that are asked for."""
    samples = flip_and_crop(samples, seeds) if crop else samples
    images = torch.from_numpy(samples).permute(0, 3, 1, 2).contiguous()
    if policy:
        images = autoaugment(policy, images, np.stack([draws.uniform(seeds, draws.POLICY + n) for n in range(5)]))
    return Raw(images, random_boxes(seeds, images.shape[-1]) if erase else None)


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


def augment_one_by_one(
    transform: Callable, samples: Sequence, seeds: np.ndarray, erase: Callable[[Written], Written] | None = None
) -> Raw:
    """A transform of one PIL image, applied to every sample with all random generators set from its seed."""
    images, written = [], []
    with _generators_restored():
        for sample, seed in zip(samples, seeds.tolist(), strict=True):
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.default_generator.manual_seed(seed % 2**63)
            images.append(transform(F.to_pil_image(sample) if isinstance(sample, np.ndarray) else sample))
            if erase:
                written.append(erase(Written(images[-1].shape)))
    if not erase:
        return Raw(torch.stack(images))
    boxes, noise = torch.tensor([each.box for each in written]), torch.cat([each.pixels for each in written])
    return Raw(torch.stack(images), boxes, noise)


@contextmanager
def _generators_restored():
    """The random streams of torch, numpy and Python go on afterwards as if nothing had been drawn."""
    python, legacy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        yield
    random.setstate(python)
    np.random.set_state(legacy)


def _gab_finetune(size: int, train: bool) -> v2.Transform:
    """GAB fine-tuning, 256 -> 224 px or the same share of another size."""
    large = round(size * 256 / 224)
    spoil = [
        v2.RandomResizedCrop(large, scale=(0.8, 1.0)),
        v2.RandomRotation(15),
        v2.ColorJitter(0.4, 0.4, 0.4),
        v2.RandomHorizontalFlip(),
    ]
    return v2.Compose([*(spoil if train else [v2.Resize(large)]), v2.CenterCrop(size), v2.ToImage(), v2.ToPureTensor()])


def _timm_erasing() -> Callable:
    """timm's erasing of a quarter of the images, with noise for each pixel, as it stands behind _timm."""
    from timm.data.random_erasing import RandomErasing

    return RandomErasing(0.25, mode="pixel", device="cpu")


def _timm(recipe: str, dataset: DataSet, size: int, train: bool) -> Callable:
    """timm's ImageNet training as far as uint8 pixels go: RandAugment m9, and for TransMix a drawn interpolation.

    TransMix's public models are tested on 0.9 of the resized image, timm's own default is 0.875.
    """
    from timm.data import create_transform

    transform = create_transform(
        size,
        is_training=train,
        auto_augment="rand-m9-mstd0.5-inc1",
        interpolation="random" if train and recipe == "deit-transmix" else "bicubic",  # random: bilinear or bicubic
        crop_pct=0.9 if recipe == "deit-transmix" else 0.875,
        mean=dataset.mean,  # what RandAugment moves in from outside of an image
        normalize=False,
    )
    for operation in (operation for step in transform.transforms for operation in getattr(step, "ops", ())):
        if operation.name == "PosterizeIncreasing":
            operation.aug_fn = _posterize
    return transform


def _posterize(image, bits: int, **options):
    """timm's posterize; asked to keep 0 bits, black as with the papers' Pillow (Pillow 13 raises instead)."""
    from timm.data.auto_augment import posterize

    return posterize(image, bits, **options) if bits > 0 else image.point(lambda value: 0)
