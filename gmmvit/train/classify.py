"""Images to classes, a task of the loop (see tasks.py): its model, its batches, its loss and its test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from .. import data
from ..data.augment import Augmentation
from ..data.feed import Feed
from ..data.finish import Pieces, Raw, Unfinished
from ..data.loader import Stream
from ..data.subset import subset
from ..data.workers import loading_processes, require_shared_memory
from . import recipes
from .mixing import mixed_sample, shift_quantiles
from .processes import World
from .rows import Row
from .shares import evaluation_keys, training_keys
from .start import model_of

EVALUATION_BATCH = 250
TESTED = "test", "val"  # the splits in the order in which the loop tests on them
LOOKED_AT = 64  # test images that layers are looked at with
SHIFTED, BOXES = 256, 32  # training images whose labels TransMix shifts after each epoch, and their boxes


class Classification:
    """What the loop needs to know of training a classifier."""

    def __init__(self, row: Row, world: World, workers: int | None = None):
        self.row, self.world, self.recipe = row, world, row.recipe_settings
        self.dataset, self.sources = data.find(row.dataset), data.load(row.dataset)
        arrays = self.dataset.storage == "arrays"
        self.workers = loading_processes(world.device, arrays) if workers is None else workers
        self.steps = self.recipe.steps_per_epoch(len(self.sources["train"]))
        self.sources["train"] = subset(self.sources["train"], self.recipe.fraction, row.seed)
        self.shares = world.size * self.recipe.accumulate
        self.mix = recipes.mixer(self.recipe, self.dataset.classes)
        largest = max(self.recipe.batch // self.shares, EVALUATION_BATCH)
        require_shared_memory(largest, self.dataset.size, self.workers, world.device)

    def model(self) -> nn.Module:
        """The row's model as training finds it, a function of the row."""
        return model_of(self.row)

    @cached_property
    def image(self) -> torch.Tensor:
        """An empty image of the right size."""
        return torch.zeros(1, 3, self.dataset.size, self.dataset.size)

    def batches(self, epoch: int, start: int) -> Iterator[Sequence[tuple[np.ndarray, Unfinished, Pieces]]]:
        """This process's part of each global batch from step `start` on: (keys, images, labels) of each share."""
        parts = self.recipe.accumulate
        loaded = self.feed.read("train", epoch, start * parts)
        shares = ((keys, *self.put_together(items, train=True)) for keys, items in loaded)
        return zip(*[shares] * parts, strict=True)

    def close(self) -> None:
        """Ends the loading processes."""
        if "feed" in vars(self):
            self.feed.close()

    @cached_property
    def feed(self) -> Feed:
        """The images as the loop reads them: those of an epoch, then those of its tests."""
        streams = {"train": Stream(self.sources["train"], self.augmentations[True].raw, self.row.seed)}
        for split in TESTED:
            if split in self.sources:
                streams[split] = Stream(self.sources[split], self.augmentations[False].raw)
        return Feed(streams, self.groups, workers=self.workers, device=self.world.device)

    def groups(self, split: str, epoch: int) -> list[np.ndarray]:
        """The keys of this process: of each share of the training batches of an epoch, or of each batch of a test."""
        images, recipe = len(self.sources[split]), self.recipe
        if split != "train":
            return evaluation_keys(images, self.world, EVALUATION_BATCH)
        sizes = {"batch": recipe.batch, "steps": self.steps, "accumulate": recipe.accumulate}
        passes = -(-self.steps * recipe.batch // images)  # the recipe's, or more over fewer images
        return training_keys(images, self.row.seed, epoch, self.world, passes=passes, **sizes)

    @cached_property
    def augmentations(self) -> dict[bool, Augmentation]:
        """The recipe's augmentation for training (True) and that of testing (False), which end on the device."""
        name, raw_mean_erasing = self.recipe.augmentation, self.recipe.raw_mean_erasing
        both = {
            train: data.augmentation(name, self.dataset, train=train, raw_mean_erasing=raw_mean_erasing)
            for train in (True, False)
        }
        return {train: Augmentation(each.raw, each.finish.to(self.world.device)) for train, each in both.items()}

    def put_together(self, items: Sequence[tuple[Raw, torch.Tensor]], train: bool) -> tuple[Unfinished, Pieces]:
        """Images and labels of what several processes have loaded, still to be sent to the device."""
        images, labels = zip(*items, strict=True)
        return Unfinished(images, self.augmentations[train].finish), Pieces(labels)

    def sent(self, items: Sequence[tuple[Raw, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Images as they are tested, with their labels, on the device."""
        return tuple(each.to(self.world.device, non_blocking=True) for each in self.put_together(items, train=False))

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
        found, count = [torch.zeros(3, device=self.world.device)], 0
        for _, items in self.feed.read(split):
            images, labels = self.sent(items)
            logits = model(images).float()
            top = logits.topk(min(5, self.dataset.classes), dim=1).indices == labels[:, None]
            loss = F.cross_entropy(logits, labels, reduction="sum")
            found.append(torch.stack([loss, top[:, 0].sum(), top.sum()]))
            count += len(labels)
        sums = torch.stack(found).cpu().double().sum(0)  # the host waits once, and not every device has float64
        loss, top1, top5, count = self.world.total(torch.cat([sums, sums.new_tensor([count])])).tolist()
        scores = {"loss": round(loss / count, 6), "top1": round(100 * top1 / count, 4)}
        return scores | ({"top5": round(100 * top5 / count, 4)} if self.dataset.classes > 10 else {})

    def notes(self, model: nn.Module) -> dict[str, float]:
        """How far attention moves lambda from the area, on the same images and boxes each time; {} without TransMix."""
        if not self.recipe.transmix:
            return {}
        images, labels = self.shown("train", np.arange(SHIFTED))
        with numpy_seed(self.row.seed, 0):
            return shift_quantiles(mixed_sample(self.mix, model, images, labels, boxes=BOXES)["share"])

    @cached_property
    def sample(self) -> torch.Tensor:
        """The images that layers are looked at with, the same in every row of a data set."""
        images = len(self.sources["test"])
        return self.shown("test", np.unique(np.linspace(0, images - 1, LOOKED_AT).astype(int)))[0]

    def shown(self, split: str, places: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Some images of a split as they are tested, with their labels, on the device."""
        return self.sent([Stream(self.sources[split], self.augmentations[False].raw)[places]])


@contextmanager
def numpy_seed(seed: int, step: int) -> Iterator[None]:
    """timm's Mixup draws from NumPy's global stream: lend it one that belongs to the step."""
    before = np.random.get_state()
    np.random.seed(np.random.SeedSequence([seed, step]).generate_state(4))
    try:
        yield
    finally:
        np.random.set_state(before)
