"""Timings as ratios: every arm in one run, interleaved, best of several; saved as JSON with machine and versions."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

from ..data.places import write_json
from ..train.machine import machine

Step = Callable[[], None]


def interleaved(steps: dict[str, Step], rounds: int = 7, say: Callable[[str], None] = print) -> dict[str, float]:
    """The best seconds of each step, all steps taking turns in changing order, after one round that warms up.

    A step is timed when the same step came before it, as in a training: one that comes after another model's step finds
    its weights and its memory in no cache, and may be ten per cent slower.
    """
    best = dict.fromkeys(steps, float("inf"))
    for turn in range(rounds + 1):
        names = list(steps)[turn % len(steps) :] + list(steps)[: turn % len(steps)]
        for name in names:
            steps[name]()
            start = time.perf_counter()
            steps[name]()
            if turn:
                best[name] = min(best[name], time.perf_counter() - start)
        if turn:
            say(f"round {turn} of {rounds}: " + ", ".join(f"{name} {1e3 * s:.0f} ms" for name, s in best.items()))
    return best


def training_step(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, dtype: torch.dtype | None) -> Step:
    """One step as in training: forward (autocast where a dtype is given), cross-entropy, backward, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    device = images.device.type

    def step() -> None:
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.synchronize()

    return step


def saved_bytes(model: nn.Module, images: torch.Tensor, dtype: torch.dtype | None) -> int:
    """Bytes that one forward pass keeps for the backward pass, parameters aside, shared storage counted once."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast(images.device.type, dtype=dtype, enabled=dtype is not None),
    ):
        output = model(images)  # kept alive, so that no storage is counted twice
    del output
    return sum(kept.values())


def stock_speed(images_per_second: dict[str, float]) -> float:
    """Images/s of the faster stock step among the arms of `gmmvit bench train`."""
    return max(speed for arm, speed in images_per_second.items() if arm.startswith("stock"))


def save(results: dict, path: Path) -> None:
    """Writes figures with the machine they were measured on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**machine(), **results})
