"""The two recipes of the GAB paper's Table 4 in the form of gmmvit.train.recipes, with the fields these need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from ..train.recipes import MIXING, Recipe

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class DenseRecipe(Recipe):
    """A recipe whose schedule is not a cosine, and whose epoch need not be a pass over the images."""

    kind: Literal["detection", "segmentation"]
    fixed: ClassVar[tuple[str, ...]] = (  # fields that say nothing here, or that a row cannot choose
        *("kind", "curve", "augmentation", "raw_mean_erasing", "label_smoothing", "select", "per_step"),
        *("warmup_epochs", "warmup_lr", "warmup_first", *MIXING, "fraction"),
        "deterministic",  # CUDA has no such kernels for RoIAlign, resized maps and labels of pixels
    )
    curve: Literal["steps", "polynomial"]
    milestones: tuple[int, ...] = ()  # epochs, each before a tenth of the rate (steps)
    power: float = 1.0  # of the polynomial
    warmup_steps: int = 0
    warmup_start: float = 1e-3  # share of the rate in step 0
    evaluation: Literal["whole", "sliding"] = "whole"  # of a segmenter: at once, or crop by crop
    width: int  # channels of FPN and mask head, or of UPerNet
    regions: int = 512  # of an image that a detector's heads learn from in a step
    short: int  # pixels of an image's shorter side in evaluation
    long: int  # the most of its longer side

    @property
    def score(self) -> str:
        """The result of an epoch, in %."""
        return SCORE[self.kind]

    def schedule(self, optimizer: torch.optim.Optimizer, steps_per_epoch: int) -> Callable[[int], float]:
        """set_lr(step) -> learning rate, set in every group; it depends on the step alone."""

        def set_lr(step: int) -> float:
            value = rate(self, step, steps_per_epoch)
            for group in optimizer.param_groups:
                group["lr"] = value * group.get("lr_scale", 1.0)
            return value

        return set_lr


SCORE = {"detection": "box_AP", "segmentation": "mIoU"}

RECIPES: dict[str, DenseRecipe] = {
    # 263,844 steps (4.2 M images). Published, Swin-S: AP box 48.12, mask 43.03; with GAB 48.23, 43.13.
    "coco-3x": DenseRecipe(
        kind="detection",
        epochs=36,
        batch=16,
        augmentation="coco-3x",
        lr=1e-4,
        weight_decay=0.05,
        curve="steps",
        milestones=(27, 33),
        final_lr=1e-6,
        warmup_steps=1_000,
        warmup_start=1e-3,
        drop_path=0.2,
        precision="bfloat16",
        width=256,
        short=800,
        long=1333,
    ),
    # 160,000 steps (2.56 M crops of 512 px), tested every 16,000. Published, Swin-S: mIoU 46.16, pixel
    # accuracy 81.82; with GAB 46.41, 82.09.
    "ade20k-160k": DenseRecipe(
        kind="segmentation",
        epochs=10,
        epoch_steps=16_000,
        batch=16,  # 8 x 2
        augmentation="ade20k-160k",
        lr=6e-5,
        weight_decay=0.01,
        curve="polynomial",
        final_lr=0.0,
        warmup_steps=1_500,
        warmup_start=1e-6,
        drop_path=0.3,
        width=512,
        short=512,
        long=2048,
    ),
}
RECIPES |= {  # ours: a minute on drawn shapes
    "coco-shapes": replace(
        RECIPES["coco-3x"],
        epochs=5,
        epoch_steps=25,
        batch=4,
        lr=2e-3,
        milestones=(4,),
        warmup_steps=25,
        drop_path=0.0,
        width=64,
        regions=64,
    ),
    "ade20k-shapes": replace(
        RECIPES["ade20k-160k"], epoch_steps=20, batch=8, lr=4e-4, warmup_steps=40, drop_path=0.0, width=64
    ),
}


def rate(recipe: DenseRecipe, step: int, steps_per_epoch: int) -> float:
    """The learning rate of a step: steps or (1 - t / T)^power, times a warm-up that rises linearly."""
    if recipe.curve == "steps":
        passed = sum(step >= epoch * steps_per_epoch for epoch in recipe.milestones)
        value = max(recipe.lr * 0.1**passed, recipe.final_lr)
    else:
        left = 1 - step / (recipe.total_epochs * steps_per_epoch)
        value = recipe.final_lr + (recipe.lr - recipe.final_lr) * max(left, 0.0) ** recipe.power
    if step < recipe.warmup_steps:
        value *= recipe.warmup_start + (1 - recipe.warmup_start) * step / recipe.warmup_steps
    return value
