"""Detection and segmentation as tasks of the loop: their models, batches, losses and tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial

import numpy as np
import torch
import torch.nn as nn

from ..core.cost import cost
from ..data.feed import Feed
from ..data.loader import Stream
from ..data.workers import loading_processes, require_shared_memory
from ..train import kernels
from ..train.processes import World
from ..train.rows import Row
from ..train.shares import evaluation_keys, training_keys
from . import evaluate, opened, segmenter, sets
from .backbone import Pyramid, pyramid, statistics
from .crops import for_segmentation
from .detector import Detector
from .multi_scale import Sizes, for_detection
from .recipes import RECIPES
from .segmenter import Segmenter
from .transforms import Movable

Batch = Sequence[
    tuple[np.ndarray, Movable | torch.Tensor, Movable | torch.Tensor]
]  # keys, images, targets of each share
WEIGHTS = ("pretrained", "pretrained_file")
EVALUATION_BATCH = 4


class Dense:
    """What the loop needs to know of training on boxes, masks or pixels."""

    sample = None  # of their large images no attention is read; of masks alone there are lines in layers.csv

    def __init__(self, row: Row, world: World, workers: int | None = None):
        self.row, self.world, self.recipe = row, world, row.recipe_settings
        self.dataset = sets.find(row.dataset)
        self.workers = loading_processes(world.device, arrays=False) if workers is None else workers
        self.shares = world.size * self.recipe.accumulate
        self.factor = self.dataset.size / RECIPES[row.recipe].short
        self.short, self.long = (round(side * self.factor) for side in (self.recipe.short, self.recipe.long))
        uint8 = round((4 * self.short * self.long) ** 0.5)  # side of an image that takes as much: float32, and masks
        require_shared_memory(
            max(self.recipe.batch // self.shares, EVALUATION_BATCH), uint8, self.workers, world.device
        )

    @cached_property
    def sources(self) -> dict:
        """The samples of each split."""
        return opened.load(self.row.dataset)

    @cached_property
    def steps(self) -> int:
        """Steps of an epoch."""
        return self.recipe.steps_per_epoch(len(self.sources["train"]))

    def model(self) -> nn.Module:
        """The row's model, a function of the seed; for a GPU its convolutions lie as their kernels there read them."""
        model = self.built(len(self.sources["train"].classes))
        return model.to(memory_format=torch.channels_last) if self.world.device.type == "cuda" else model

    def notes(self, model: nn.Module) -> dict[str, float]:
        """Nothing beside the scores."""
        return {}

    def backbone(self) -> Pyramid:
        """The row's backbone with its mask and its weights, what is fresh being a function of the seed."""
        torch.manual_seed(self.row.seed)
        weights = {name: self.row.set[name] for name in WEIGHTS if name in self.row.set}
        place = {"device": self.world.device, "drop_path": self.recipe.drop_path}
        return pyramid(self.row.model, mask=self.row.mask, mask_options=self.row.attached, **place, **weights)

    @cached_property
    def image(self) -> torch.Tensor:
        """An empty image of the right size."""
        return torch.zeros(1, 3, self.short, self.short)

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """This process's part of each global batch from step `start` on: (keys, images, targets) of each share."""
        parts = self.recipe.accumulate
        loaded = self.feed.read("train", epoch, start * parts)
        shares = ((keys, *images) for keys, ((images, _),) in loaded)
        return zip(*[shares] * parts, strict=True)

    def tested(self, split: str) -> Iterator[tuple[Movable, Movable, np.ndarray]]:
        """This process's part of a split: images, their targets and their numbers."""
        for numbers, (((images, targets), _),) in self.feed.read(split):
            device = self.world.device
            yield images.to(device, non_blocking=True), targets.to(device, non_blocking=True), numbers

    def close(self) -> None:
        """Ends the loading processes."""
        if "feed" in vars(self):
            self.feed.close()

    @cached_property
    def feed(self) -> Feed:
        """The samples as the loop reads them: those of an epoch, then those of its test."""
        train = Stream(self.sources["train"], self.augmentation(train=True), self.row.seed)
        streams = {"train": train, "test": Stream(self.sources["test"], self.augmentation(train=False))}
        whole = max(self.recipe.batch, EVALUATION_BATCH)  # a process loads a group at a time
        return Feed(streams, self.groups, workers=self.workers, device=self.world.device, item=whole)

    def groups(self, split: str, epoch: int) -> list[np.ndarray]:
        """The keys of this process: of each share of the training batches of an epoch, or of each batch of a test."""
        images, recipe = len(self.sources[split]), self.recipe
        if split != "train":
            return evaluation_keys(images, self.world, EVALUATION_BATCH)
        sizes = {"batch": recipe.batch, "steps": self.steps, "accumulate": recipe.accumulate}
        passes = -(-self.steps * recipe.batch // images)
        return training_keys(images, self.row.seed, epoch, self.world, passes=passes, **sizes)


class Detection(Dense):
    """Mask R-CNN on a set in COCO's layout."""

    def built(self, classes: int) -> nn.Module:
        """The row's model for so many classes."""
        sizes = {"short": self.short, "long": self.long, "anchors": self.dataset.anchors}
        sizes |= {"width": self.recipe.width, "regions": self.recipe.regions}
        return Detector(self.backbone(), classes, **sizes)

    def augmentation(self, train: bool) -> Callable:
        """The recipe's augmentation for training, or that of testing."""
        sizes = Sizes().times(self.factor) if train else None
        return partial(for_detection, self.sources["train"], sizes=sizes)

    def loss(self, model: nn.Module, images: Movable, targets: Movable, step: int) -> torch.Tensor:
        """The sum of the five losses of proposals, boxes and masks."""
        return sum(model(images, targets).values())

    @torch.inference_mode()
    def test(self, model: nn.Module, split: str = "test") -> dict[str, float]:
        """Average precision of boxes and masks, each process testing a part."""
        source, found = self.sources[split], []
        for images, _, numbers in self.tested(split):
            found += evaluate.results(model(images), source.ids[numbers], source.categories)
        scores = evaluate.average_precision(source.truth, found, self.world)
        return {name: round(value, 4) for name, value in scores.items()}


class Segmentation(Dense):
    """UPerNet on a set in ADE20K's layout."""

    def built(self, classes: int) -> nn.Module:
        """The row's model for so many classes; processes on GPUs share their batch statistics."""
        model = Segmenter(self.backbone(), classes, width=self.recipe.width)
        alone = self.world.size == 1 or self.world.device.type != "cuda"
        return model if alone else nn.SyncBatchNorm.convert_sync_batchnorm(model)

    def augmentation(self, train: bool) -> Callable:
        """The recipe's augmentation for training, or that of testing."""
        crop = self.short if train else 0
        return partial(for_segmentation, statistics(self.row.model), crop=crop, short=self.short, long=self.long)

    def loss(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        """Cross-entropy of the head, and 0.4 of that of the auxiliary head."""
        return segmenter.loss(model(images), labels.long())

    @torch.inference_mode()
    def test(self, model: nn.Module, split: str = "test") -> dict[str, float]:
        """mIoU and pixel accuracy, each process testing a part."""
        average_buffers(model, self.world)
        classes = len(self.sources[split].classes)
        seen = evaluate.whole
        if self.recipe.evaluation == "sliding":
            seen = partial(evaluate.sliding, crop=self.short, step=self.short * 2 // 3)
        matrix = torch.zeros(classes, classes, dtype=torch.int64, device=self.world.device)
        with kernels.many_shapes():
            for images, labels, _ in self.tested(split):
                for image, truth in zip(images, labels, strict=True):
                    matrix += evaluate.confusion(seen(model, image, truth.shape), truth, classes)
        return {name: round(value, 4) for name, value in evaluate.overlap(matrix, self.world).items()}


TASKS = {"detection": Detection, "segmentation": Segmentation}


def macs(row: Row) -> int:
    """Full MACs of an empty square image of the recipe's shorter side; a row's weights change nothing here."""
    settings = {name: value for name, value in row.set.items() if name not in WEIGHTS}
    task = TASKS[row.kind](dataclasses.replace(row, set=settings), World())
    return cost(task.built(task.dataset.classes), tuple(task.image.shape[-2:])).macs_full


def average_buffers(model: nn.Module, world: World) -> None:
    """Batch statistics that each process has collected from its own images: their mean, on each of them."""
    if world.size > 1:
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                for buffer in (module.running_mean, module.running_var):
                    buffer.copy_(world.total(buffer.clone()) / world.size)
