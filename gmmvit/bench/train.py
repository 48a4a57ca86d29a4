"""`gmmvit bench train`: our training step against the stock one, and against what the machine can multiply."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import timm.models
import torch
import torch.nn as nn
import torch.nn.functional as F

from ..core.cost import cost
from ..data.memory import keep_freed_memory
from ..models import create_model
from ..models.parts import set_fused
from ..train.precision import resolve
from ..train.processes import World
from ..train.recipes import find
from ..train.update import Update
from .harness import Step, interleaved, training_step

BACKBONES = ("vit", "vit_xs", "swin", "cait", "pit", "t2t")
SIDE, SIDE_ON_CUDA = 2048, 8192  # of the matrices whose product is the peak, and keeps the device busy for a while
COMMON = {"img_size": 32, "num_classes": 10, "drop_path_rate": 0.1, "mlp_ratio": 2.0}
TIMMS_OWN: dict[str, Callable[[], nn.Module]] = {  # timm's classes in the same widths: is our stock model a fair one?
    "vit": lambda: timm.models.VisionTransformer(
        patch_size=4,
        embed_dim=192,
        depth=9,
        num_heads=12,
        qkv_bias=False,
        class_token=False,
        global_pool="avg",
        **COMMON,
    ),
    "swin": lambda: timm.models.SwinTransformer(
        patch_size=2, embed_dim=96, depths=(2, 6, 4), num_heads=(3, 6, 12), window_size=4, **COMMON
    ),
}


def bench_train(
    backbones: Sequence[str] = BACKBONES,
    batch: int = 128,
    rounds: int = 5,
    device: str = "cpu",
    say: Callable[[str], None] = print,
) -> dict:
    """Images/s of every arm of every backbone, their ratios, and the share of the peak that our GMM step reaches."""
    keep_freed_memory()
    world = World(device=torch.device(device))
    precision = resolve("auto", world.device)
    say(f"our step computes in {precision.name} ({precision.why})")
    measured = {name: _backbone(name, batch, rounds, world, precision.dtype, say) for name in backbones}
    return {"batch": batch, "rounds": rounds, "precision": precision.name, "backbones": measured}


def _backbone(name: str, batch: int, rounds: int, world: World, dtype: torch.dtype, say: Callable) -> dict:
    images = torch.randn(batch, 3, 32, 32).to(world.device)
    labels = torch.randint(10, (batch,)).to(world.device)
    steps: dict[str, Step] = stock_steps(name, images, labels)
    for arm, mask in (("ours", None), ("ours, again", None), ("gmm", "gmm"), ("elm", "elm")):
        steps[arm] = our_step(set_fused(create_model(name, mask=mask), True), images, labels, dtype, world)
    steps["peak"] = product(world, dtype)
    seconds = interleaved(steps, rounds, lambda line: say(f"{name}: {line}"))
    peak = 2 * side(world) ** 3 / seconds.pop("peak")
    spread = abs(seconds.pop("ours, again") / seconds["ours"] - 1)
    stock = min(seconds[arm] for arm in seconds if arm.startswith("stock"))
    needed = 6 * batch * cost(create_model(name)).macs_full  # FLOP of a step: three times the forward pass
    return {
        "images_per_second": {arm: round(batch / s, 1) for arm, s in seconds.items()},
        "over_stock": {arm: round(stock / seconds[arm], 3) for arm in ("ours", "gmm")},
        "over_ours": {arm: round(seconds[arm] / seconds["ours"] - 1, 4) for arm in ("gmm", "elm")},
        "spread": round(spread, 4),
        "timm_over_stock": {arm: round(stock / s, 3) for arm, s in seconds.items() if arm == "timm"},
        "peak_gflops": round(peak / 1e9, 1),
        "share_of_peak": round(needed / seconds["gmm"] / peak, 3),
        "operators": operators(steps["gmm"], world),
    }


def stock_steps(name: str, images: torch.Tensor, labels: torch.Tensor) -> dict[str, Step]:
    """What a user would write: the unmasked model in float32, torch's default AdamW; and timm's own class beside it."""
    fused = any(hasattr(module, "fused_attn") for module in create_model(name).modules())
    models = {"stock, explicit": set_fused(create_model(name), False)}
    models |= {"stock, fused": set_fused(create_model(name), True)} if fused else {}
    models |= {"timm": set_fused(TIMMS_OWN[name](), False)} if name in TIMMS_OWN else {}
    return {arm: training_step(model.to(images.device).train(), images, labels, None) for arm, model in models.items()}


def our_step(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    dtype: torch.dtype,
    world: World,
    loss: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
) -> Step:
    """The engine's own update, stochastic depth drawn and learning rate set, without the loader and its copies."""
    loss = loss or (lambda model, images, labels: F.cross_entropy(model(images).float(), labels))
    update = Update(
        model,
        find("gmm"),
        lambda model, images, labels, step: loss(model, images, labels),
        images[:1],
        steps_per_epoch=100,
        dtype=dtype,
        world=world,
    )
    update.working.module.train()
    share = [(np.arange(len(images)), images.to(world.device), labels.to(world.device))]

    def step() -> None:
        update(share, 0).tolist()  # waits for the device, as the loop does when it looks at the loss

    return step


def side(world: World) -> int:
    """Of the two matrices."""
    return SIDE_ON_CUDA if world.device.type == "cuda" else SIDE


def product(world: World, dtype: torch.dtype) -> Step:
    """A product of two square matrices, large enough to keep every core or the whole GPU busy."""
    a, b = (torch.randn(side(world), side(world), device=world.device).to(dtype) for _ in range(2))

    def multiply() -> None:
        (a @ b)[0, 0].item()

    return multiply


def operators(step: Step, world: World, rows: int = 12) -> list[dict]:
    """Where a step's time goes: the operators by their own time, as shares of all."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if world.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        step()
    own = "self_device_time_total" if world.device.type == "cuda" else "self_cpu_time_total"
    events = sorted(profile.key_averages(), key=lambda event: -getattr(event, own))
    total = sum(getattr(event, own) for event in events)
    return [
        {
            "operator": re.sub("^aten::", "", event.key),
            "calls": event.count,
            "ms": round(getattr(event, own) / 1e3, 2),
            "share": round(getattr(event, own) / total, 4),
        }
        for event in events[:rows]
    ]
