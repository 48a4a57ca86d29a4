"""`gmmvit bench mix`: what TransMix adds to a training step with CutMix."""

from __future__ import annotations

from collections.abc import Callable

import timm
import torch
import torch.nn as nn
import torch.nn.functional as F

from ..core.transmix import TransMix
from ..data.memory import keep_freed_memory
from ..train.precision import resolve
from ..train.processes import World
from .harness import interleaved
from .train import our_step

MODELS = {"gmmvit_vit": {"readout": "token"}, "deit_small_patch16_224": {}}


def bench_mix(
    names: tuple[str, ...] = tuple(MODELS),
    batch: int = 128,
    rounds: int = 10,
    device: str = "cpu",
    say: Callable[[str], None] = print,
) -> dict:
    """Time of a step with TransMix over one with CutMix, every batch mixed; a quarter of the batch at 224 px."""
    keep_freed_memory()
    world = World(device=torch.device(device))
    dtype = resolve("auto", world.device).dtype
    return {"batch": batch, "models": {name: _model(name, batch, rounds, dtype, world, say) for name in names}}


def _model(name: str, batch: int, rounds: int, dtype: torch.dtype, world: World, say: Callable) -> dict:
    size = timm.get_pretrained_cfg(name).input_size[-1]
    count = batch if size < 100 else max(2, batch // 4)
    images, labels = torch.randn(count, 3, size, size), torch.randint(10, (count,))
    steps = {}
    for arm in ("cutmix", "transmix"):
        model = timm.create_model(name, num_classes=10, drop_path_rate=0.1, **MODELS.get(name, {}))
        mix = TransMix(mixup_alpha=0.0, cutmix_alpha=1.0, num_classes=10)
        steps[arm] = our_step(model, images, labels, dtype, world, mix.loss if arm == "transmix" else _by_area(mix))
    seconds = interleaved(steps, rounds, lambda line: say(f"{name}: {line}"))
    return {
        "size": size,
        "batch": count,
        "images_per_second": {arm: round(count / s, 1) for arm, s in seconds.items()},
        "time": round(seconds["transmix"] / seconds["cutmix"] - 1, 4),
    }


def _by_area(mix: TransMix) -> Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]:
    def loss(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        images, target = mix(images, labels)
        return F.cross_entropy(model(images).float(), target)

    return loss
