"""`gmmvit bench masks`: what each mask costs in a whole training step, and in bytes saved for backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import timm
import torch
import torch.nn as nn

from ..core.attach import attach
from ..data.memory import keep_freed_memory
from ..models.parts import set_fused
from .harness import interleaved, saved_bytes, training_step

BACKBONES = ("vit_xs", "swin", "cait", "pit", "t2t")  # beside the ViT, which is tried with every mask
PAPERS = ("gmm", "elm", "gab")


def bench_masks(
    model: str,
    masks: Iterable[str],
    batch: int = 128,
    rounds: int = 20,
    dtype: torch.dtype | None = torch.bfloat16,
    device: str | torch.device = "cpu",
    say: Callable[[str], None] = print,
) -> dict:
    """Time and saved bytes of a step with each mask, over the faster of fused and explicit attention without.

    `spread` is by how much two equal steps without a mask differ: less than that is nothing.
    """

    def built(mask: str | None = None) -> nn.Module:
        torch.manual_seed(0)
        fresh = timm.create_model(model, num_classes=10)
        if mask:
            attach(fresh, mask, start="paper")
        return fresh.to(device).train()

    keep_freed_memory()
    models = {"explicit": set_fused(built(), False), "fused": set_fused(built(), True)}
    models["explicit, again"] = set_fused(built(), False)
    models |= {mask: built(mask) for mask in masks}
    size = models["fused"].pretrained_cfg["input_size"]
    images, labels = torch.randn(batch, *size, device=device), torch.randint(10, (batch,), device=device)
    seconds = interleaved(
        {name: training_step(each, images, labels, dtype) for name, each in models.items()}, rounds, say
    )
    spread = abs(seconds.pop("explicit, again") / seconds["explicit"] - 1)
    plain = min(("explicit", "fused"), key=seconds.get)
    kept = {name: saved_bytes(models[name], images, dtype) for name in seconds}
    return {
        "model": model,
        "batch": batch,
        "dtype": str(dtype or torch.float32),
        "without": plain,
        "images_per_second": {name: batch / s for name, s in seconds.items()},
        "spread": spread,
        "time": {mask: seconds[mask] / seconds[plain] - 1 for mask in masks},
        "bytes": {mask: kept[mask] / kept[plain] - 1 for mask in masks},
    }
