"""Images to classes, as a task of the loop: its model, its batches, its loss and its test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from .. import data, recipes
from ..data.loader import stream
from ..rows import Row
from ..sites import attach
from ..starts import starting_model
from ..transmix_sample import mixed_sample, shift_quantiles
from .processes import World

EVALUATION_BATCH = 250
SHIFTED, BOXES = 256, 32  # training images whose labels TransMix shifts after each epoch, and their boxes


class Classification:
    """What the loop needs to know of training a classifier."""

    def __init__(self, row: Row, world: World, workers: int | None = None):
        self.row, self.world, self.recipe = row, world, row.recipe_settings
        self.dataset, self.sources = data.find(row.dataset), data.load(row.dataset)
        self.workers = loading_processes(world) if workers is None else workers
        self.steps = self.recipe.steps_per_epoch(len(self.sources["train"]))
        self.shares = world.size * self.recipe.accumulate
        self.mix = recipes.mixer(self.recipe, self.dataset.classes)

    def model(self) -> nn.Module:
        """The row's model as training finds it, a function of the row."""
        model = starting_model(self.row)
        if self.row.mask != "none":
            attach(model, self.row.mask, img_size=self.dataset.size, **self.row.mask_options)
        return model

    @cached_property
    def image(self) -> torch.Tensor:
        """An empty image of the right size."""
        return torch.zeros(1, 3, self.dataset.size, self.dataset.size)

    def batches(self, epoch: int, start: int) -> Iterator[list[tuple[np.ndarray, torch.Tensor, torch.Tensor]]]:
        """This process's part of each global batch from step `start` on: (keys, images, labels) of each share."""
        source, recipe = self.sources["train"], self.recipe
        keys = data.epoch_order(len(source), self.row.seed, epoch, recipe.passes)
        first = self.world.rank * recipe.accumulate
        groups = [
            share(keys[at : at + recipe.batch], first + number, self.shares)
            for at in range(start * recipe.batch, self.steps * recipe.batch, recipe.batch)
            for number in range(recipe.accumulate)
        ]
        augment = self.augmentation(train=True)
        loaded = zip(groups, stream(source, augment, groups, seed=self.row.seed, workers=self.workers), strict=True)
        for group, (images, labels) in loaded:
            batch = [(group, images, labels)]
            for _ in range(recipe.accumulate - 1):
                group, (images, labels) = next(loaded)
                batch.append((group, images, labels))
            yield batch

    def augmentation(self, train: bool):
        """The recipe's augmentation for training, or that of testing."""
        return data.augmentation(
            self.recipe.augmentation, self.dataset, train=train, raw_mean_erasing=self.recipe.raw_mean_erasing
        )

    def loss(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        """Cross-entropy of a batch that is mixed as the global batch of this step is."""
        if self.mix is None:
            return F.cross_entropy(model(images).float(), labels, label_smoothing=self.recipe.label_smoothing)
        with numpy_seed(self.row.seed, step):
            if self.recipe.transmix:
                return self.mix.loss(model, images, labels)
            images, target = self.mix(images, labels)
        return F.cross_entropy(model(images).float(), target)

    @torch.inference_mode()
    def test(self, model: nn.Module, split: str = "test") -> dict[str, float]:
        """Loss and top-1 (top-5 with more than 10 classes) of a split, each process testing a part."""
        source = self.sources[split]
        mine = np.arange(self.world.rank, len(source), self.world.size)
        groups = [mine[at : at + EVALUATION_BATCH] for at in range(0, len(mine), EVALUATION_BATCH)]
        found = []  # of each batch, left on the device until the last one
        for images, labels in stream(source, self.augmentation(train=False), groups, workers=self.workers):
            images, labels = images.to(self.world.device), labels.to(self.world.device)
            logits = model(images).float()
            top = logits.topk(min(5, self.dataset.classes), dim=1).indices == labels[:, None]
            loss = F.cross_entropy(logits, labels, reduction="sum")
            found.append(torch.stack([loss, top[:, 0].sum(), top.sum()]))
        sums = torch.stack(found).cpu().double().sum(0)
        loss, top1, top5, count = self.world.total(torch.cat([sums, sums.new_tensor([len(mine)])])).tolist()
        scores = {"loss": round(loss / count, 6), "top1": round(100 * top1 / count, 4)}
        return scores | ({"top5": round(100 * top5 / count, 4)} if self.dataset.classes > 10 else {})

    def notes(self, model: nn.Module) -> dict[str, float]:
        """How far attention moves lambda from the area, on the same images and boxes each time; {} without TransMix."""
        if not self.recipe.transmix:
            return {}
        images, labels = self.shown("train", np.arange(SHIFTED))
        with numpy_seed(self.row.seed, 0):
            return shift_quantiles(mixed_sample(self.mix, model, images, labels, boxes=BOXES)["share"])

    def samples(self, model: nn.Module) -> dict[str, np.ndarray]:
        """What is kept with the masks for figures."""
        from .samples import samples

        return samples(self, model)

    def shown(self, split: str, places: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Some images of a split as they are tested, with their labels, on the device."""
        ((images, labels),) = stream(self.sources[split], self.augmentation(train=False), [places])
        return images.to(self.world.device), labels.to(self.world.device)


def share(keys: np.ndarray, number: int, shares: int) -> np.ndarray:
    """One of `shares` equal parts of a global batch; a sample and its mirror image, which are mixed, stay together."""
    if len(keys) % (2 * shares):
        return keys[number::shares]
    part = len(keys) // (2 * shares)
    return np.concatenate([keys[number * part :][:part], keys[::-1][number * part :][:part][::-1]])


@contextmanager
def numpy_seed(seed: int, step: int) -> Iterator[None]:
    """timm's Mixup draws from NumPy's global stream: lend it one that belongs to the step."""
    before = np.random.get_state()
    np.random.seed(np.random.SeedSequence([seed, step]).generate_state(4))
    try:
        yield
    finally:
        np.random.set_state(before)


def loading_processes(world: World) -> int:
    """Beside a GPU, the cores there are for each process; on a CPU none: augmenting takes about 2 % of a step."""
    if world.device.type == "cpu":
        return 0
    neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return max(1, min(16, (os.cpu_count() or 1) // neighbours - 1))
