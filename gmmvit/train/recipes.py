"""Training recipes by name: optimiser, schedule, mixing and precision; the augmentation of each is gmmvit.data's.

What differs from the papers, and every erratum named here, stands in deviations.toml.

recipe = dataclasses.replace(find("gmm"), epochs=10)
optimiser = optimizer(model, recipe)
set_lr = recipe.schedule(optimiser, recipe.steps_per_epoch(images=50_000))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from ..core.errors import unknown
from . import tasks

if TYPE_CHECKING:
    import torch
    from timm.data import Mixup


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a model is trained; every number here may be set by name in a row of params.yaml."""

    fixed: ClassVar[tuple[str, ...]] = ("kind",)  # fields that a row cannot choose
    score: ClassVar[str] = "top1"  # the result of an epoch, in %
    epochs: int
    passes: int = 1  # over the data, in each epoch
    epoch_steps: int = 0  # 0: whole batches of all passes
    fraction: float = 1.0  # share of the training images, drawn by the seed; as many steps as with all of them
    batch: int = 128  # of all processes and accumulated parts together
    augmentation: str  # of gmmvit.data.augmentation
    raw_mean_erasing: bool = True
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float
    weight_decay: float
    momentum: float = 0.9  # of sgd
    decay_all: bool = False  # biases, norms and positions too; False: timm's groups
    decay_masks: bool = False  # sigma and alpha of multiplicative masks too (erratum G9); those of a bias never are
    mask_lr: float = 1.0  # factor of the learning rate for what masks learn
    freeze_masks: bool = False  # masks stay as they start
    warmup_epochs: float = 0.0
    warmup_lr: float = 1e-6
    final_lr: float
    cooldown_epochs: int = 0  # at final_lr, after `epochs`
    per_step: bool = True  # the schedule moves each step, or each epoch
    warmup_first: bool = True  # the cosine starts where the warm-up ends; False: it is counted from step 0, as in timm
    label_smoothing: float = 0.0
    mixup: float = 0.0  # parameter of Beta; 0: off
    cutmix: float = 0.0
    mix_prob: float = 1.0  # share of mixed batches
    switch_prob: float = 0.5  # share of CutMix among them
    transmix: bool = False
    drop_path: float = 0.1
    precision: Literal["auto", "float32", "tf32", "bfloat16", "float16"] = "auto"  # tf32: float32 multiplied in TF32
    clip: float = 0.0  # norm of the gradient; 0: off
    ema: float = 0.0  # decay of the averaged weights; 0: off
    accumulate: int = 1  # parts a batch is computed in
    checkpoint_gradients: bool = False
    compile: Literal[False, True, "reduce-overhead"] = False  # the last: replayed as CUDA graphs
    deterministic: bool = False  # on CUDA: only kernels that add up in one order, or an error; a CPU's do anyway
    select: Literal["last", "validation"] = "last"  # the epoch whose test accuracy is the result
    kind: str = "classification"  # or detection, segmentation (gmmvit.dense)

    @property
    def mixes(self) -> bool:
        """Whether batches are mixed in pairs."""
        return self.mixup > 0 or self.cutmix > 0

    @property
    def total_epochs(self) -> int:
        return self.epochs + self.cooldown_epochs

    def steps_per_epoch(self, images: int) -> int:
        """Whole batches in all passes of an epoch over this many training images, of which a fraction may be seen."""
        return self.epoch_steps or self.passes * images // self.batch

    def schedule(self, optimizer: torch.optim.Optimizer, steps_per_epoch: int) -> Callable[[int], float]:
        """set_lr(step) -> learning rate, set in every group; it depends on the step alone."""
        return cosine(self, optimizer, steps_per_epoch)


MIXING = ("mixup", "cutmix", "mix_prob", "switch_prob", "transmix")  # settings that arms of TransMix's table differ in

RANGES: dict[str, tuple[Callable[[float], bool], tuple[str, ...]]] = {
    "at least 1": (lambda v: v >= 1, ("epochs", "passes", "batch", "accumulate")),
    "more than 0": (lambda v: v > 0, ("lr",)),
    "above 0, at most 1": (lambda v: 0 < v <= 1, ("fraction",)),
    "at least 0": (
        lambda v: v >= 0,
        (
            "weight_decay",
            "epoch_steps",
            "warmup_epochs",
            "warmup_lr",
            "final_lr",
            "cooldown_epochs",
            "mixup",
            "cutmix",
            "clip",
            "mask_lr",
        ),
    ),
    "from 0 to 1": (lambda v: 0 <= v <= 1, ("mix_prob", "switch_prob")),
    "from 0 to below 1": (lambda v: 0 <= v < 1, ("momentum", "label_smoothing", "drop_path", "ema")),
}

RECIPES: dict[str, Recipe] = {
    # 117,100 steps (15 M images) on CIFAR, 171,600 on SVHN, 234,300 on Tiny-ImageNet. Published on CIFAR-10:
    # ViT 93.65, GMM-ViT 95.06; one seed, likely the best epoch on the test set, unlike read-outs (errata G1, G2, G12).
    # Mixtures are exact; those behind PiT's and T2T's published rows are not: set underflow=true (erratum G7).
    "gmm": Recipe(
        epochs=100,
        passes=3,  # the public code's "repeated augmentation 3" (erratum G10)
        augmentation="gmm",
        lr=1e-3,
        weight_decay=0.05,
        decay_all=True,
        decay_masks=True,
        warmup_epochs=10,
        final_lr=1e-6,
        label_smoothing=0.1,
        mixup=1.0,
        cutmix=1.0,
        mix_prob=0.5,
        precision="float32",
    ),
    # Ours, of no paper. 1,950 steps (0.25 M images) on CIFAR: about 12 minutes of the plain vit at 350 images/s. Masks
    # learn ten times as fast as the rest: of 1, 10 and 60 the factor that profiles/start.yaml decided for.
    "short": Recipe(
        epochs=5,
        mask_lr=10.0,
        augmentation="short",
        lr=1e-3,
        weight_decay=0.05,
        warmup_epochs=0.5,
        final_lr=1e-5,
        label_smoothing=0.1,
        drop_path=0.0,
    ),
    # 8,000 steps (1.02 M images of 224 px) on Pets. Published there, ViT-S (R) from ImageNet weights,
    # mean of 3 runs: 91.486, with GAB 92.780; both arms from a re-initialised position MLP (erratum A2), on a split of
    # its own (A7).
    "gab-finetune": Recipe(
        epochs=200,
        augmentation="gab-finetune",
        optimizer="sgd",
        lr=0.01,
        weight_decay=5e-4,
        decay_all=True,
        final_lr=0.0,
        per_step=False,
        drop_path=0.0,
        select="validation",
    ),
    # 222,400 steps (512 M images of 224 px). Published, ViT-S (R): 80.567, with GAB 80.724; the mean of 3
    # runs without error bars, not significant (erratum A9).
    "gab-imagenet": Recipe(
        epochs=400,
        batch=2304,  # 8 x 288
        augmentation="gab-imagenet",
        lr=5e-4,
        weight_decay=0.05,
        warmup_epochs=5,
        final_lr=1e-6,
        per_step=False,
        warmup_first=False,
        label_smoothing=0.1,
        mixup=0.2,
        cutmix=1.0,
        ema=0.99996,
    ),
    # For DeiT-S; DeiT-B has weight_decay 0.05 and warmup_epochs 5. 387,810 steps (397 M images of 224 px).
    # Published, DeiT-S: 79.8, with TransMix 80.7; the 79.8 is DeiT's own number under another recipe (erratum T5).
    "deit-transmix": Recipe(
        epochs=300,
        cooldown_epochs=10,
        batch=1024,  # erratum T4
        augmentation="deit-transmix",
        lr=1e-3,
        weight_decay=0.03,
        warmup_epochs=20,
        final_lr=1e-5,
        per_step=False,
        warmup_first=False,
        label_smoothing=0.1,
        mixup=0.8,
        cutmix=1.0,
        switch_prob=0.8,  # erratum T1
        transmix=True,
        precision="float32",
        ema=0.99996,
    ),
}


RECIPES["smoke"] = replace(RECIPES["short"], epochs=1, epoch_steps=5, warmup_epochs=0.2)  # ours too: does a row run?


def find(name: str) -> Recipe:
    """The recipe of this name, of whatever kind; a ValueError names the nearest one."""
    recipes = RECIPES if name in RECIPES else tasks.recipes()
    if name not in recipes:
        raise ValueError(unknown("recipe", name, recipes))
    return recipes[name]


def cosine(recipe: Recipe, optimizer: torch.optim.Optimizer, steps_per_epoch: int) -> Callable[[int], float]:
    """set_lr(step) of a linear warm-up, then a cosine."""
    from timm.scheduler import CosineLRScheduler

    per_epoch, steps = (steps_per_epoch, 1) if recipe.per_step else (1, steps_per_epoch)  # ticks; steps of a tick
    warmup = int(recipe.warmup_epochs * per_epoch)
    scheduler = CosineLRScheduler(
        optimizer,
        t_initial=recipe.epochs * per_epoch - (warmup if recipe.warmup_first else 0),
        lr_min=recipe.final_lr,
        warmup_t=warmup,
        warmup_lr_init=recipe.warmup_lr,
        warmup_prefix=recipe.warmup_first,
        t_in_epochs=False,  # timm's word for: told by step_update
    )

    def set_lr(step: int) -> float:
        scheduler.step_update(step // steps)
        return optimizer.param_groups[0]["lr"]

    return set_lr


def parameter_groups(model: torch.nn.Module, recipe: Recipe) -> list[dict]:
    """timm's groups with and without weight decay; a Gaussian bias is never decayed, other masks as the recipe says.

    With a mask_lr, what masks learn has groups of its own behind the others, which timm's schedules scale (lr_scale).
    """
    from timm.optim import param_groups_weight_decay

    from ..core.attach import masks_of
    from ..core.masks import no_decay

    scalars = no_decay(model)
    biases = {
        f"{name}.{scalar}".lstrip(".")
        for name, module in model.named_modules()
        if getattr(module, "additive", False)
        for scalar in no_decay(module)
    }
    spared = biases if recipe.decay_masks else scalars
    if not recipe.decay_all and hasattr(model, "no_weight_decay"):
        spared = spared | (set(model.no_weight_decay()) - scalars)  # a masked model names the scalars there too
    groups = param_groups_weight_decay(
        model, recipe.weight_decay, weight_decay_exclude_1d=not recipe.decay_all, no_weight_decay_list=spared
    )
    if recipe.mask_lr == 1:
        return groups
    masks = {id(parameter) for mask in masks_of(model).values() for parameter in mask.parameters()}
    parts = [
        group | extra | {"params": [each for each in group["params"] if (id(each) in masks) == scaled]}
        for scaled, extra in ((False, {}), (True, {"lr_scale": recipe.mask_lr}))
        for group in groups
    ]
    return [part for part in parts if part["params"]]


def optimizer(model: torch.nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimiser over the model's groups, in torch's fused implementation."""
    from timm.optim import create_optimizer_v2

    name = {"adamw": "adamw", "sgd": "momentum"}[recipe.optimizer]  # what timm calls sgd is Nesterov's
    groups = parameter_groups(model, recipe)
    return create_optimizer_v2(groups, opt=name, lr=recipe.lr, momentum=recipe.momentum, fused=True)


def mixer(recipe: Recipe, classes: int) -> Mixup | None:
    """timm's Mixup for whole batches, or TransMix on it; both smooth the labels; None where nothing is mixed."""
    from ..core.transmix import Mixup, TransMix

    if not recipe.mixes:
        return None
    return (TransMix if recipe.transmix else Mixup)(
        mixup_alpha=recipe.mixup,
        cutmix_alpha=recipe.cutmix,
        prob=recipe.mix_prob,
        switch_prob=recipe.switch_prob,
        label_smoothing=recipe.label_smoothing,
        num_classes=classes,
    )
