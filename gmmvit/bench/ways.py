"""`gmmvit bench masks --ways`: from how many keys on a fused kernel pays on this device; fills ways.toml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.nn.functional as F

from ..core import ways
from ..core.masks import GaussianBias, GaussianMixtureMask, SpatialMask
from ..core.rewrite import add_bias
from ..core.ways import EXPLICIT, FLEX, FUSED
from .harness import Step, interleaved

SIDES = (4, 7, 8, 14, 16, 24, 32)  # of square token grids
TOKENS, HEADS, WIDTH = 128 * 196, 6, 64  # of a batch, DeiT-S's at 224 px
KINDS = {"multiplicative": (GaussianMixtureMask, FLEX), "additive": (GaussianBias, FUSED)}


def bench_ways(
    device: str, rounds: int = 20, sides: tuple[int, ...] = SIDES, say: Callable[[str], None] = print
) -> dict[str, dict[int, dict[str, float]]]:
    """Seconds of a layer's attention, forward and backward in bfloat16: {kind of mask: {keys: {way: seconds}}}."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for kind, (mask, fast) in KINDS.items():
        found[kind] = {}
        for side in sides:
            steps = {way: _layer(mask((side, side), HEADS).to(device), way, device) for way in (EXPLICIT, fast)}
            found[kind][side**2] = interleaved(steps, rounds, lambda line, side=side: say(f"{side**2} keys: {line}"))
    return found


def _layer(mask: SpatialMask, way: str, device: str) -> Step:
    keys = mask.grid[0] * mask.grid[1]
    shape = max(1, TOKENS // keys), HEADS, keys, WIDTH
    query, key, value = (torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    leaves = [query, key, value, *mask.parameters()]

    def attended() -> torch.Tensor:
        if way == FLEX:
            return ways.flexed(query, key, value, [mask])
        if way == FUSED:
            return F.scaled_dot_product_attention(query, key, value, add_bias(mask, -3, None, query, key))
        return mask(query * WIDTH**-0.5 @ key.transpose(-2, -1)).softmax(-1) @ value

    def step() -> None:
        gradients = torch.autograd.grad(attended().sum(), leaves)
        gradients[-1].sum().item()  # waits for the device

    return step


def steps_of(seconds: Mapping[int, Mapping[str, float]]) -> list[list]:
    """[[least keys, way]] from which on the fast way wins at every length that was tried; [] where it never does."""
    least = None
    for keys in sorted(seconds, reverse=True):
        way = min(seconds[keys], key=seconds[keys].get)
        if way == EXPLICIT:
            break
        least = [keys, way]
    return [least] if least else []


def fill(path: Path, device: str, seconds: Mapping[str, Mapping[int, Mapping[str, float]]], where: str) -> None:
    """Writes ways.toml anew, with what was measured in the place of this device's steps."""
    measured = {kind: steps_of(each) for kind, each in seconds.items()}
    head, *sections = path.read_text().split("\n[")
    kept = [f"[{each}" for each in sections if not each.startswith(f"{device}]")]
    lines = [f"{kind} = {_toml(steps)}" for kind, steps in measured.items()]
    path.write_text("\n".join([head, *kept, f"[{device}]  # measured on {where}", *lines, ""]))


def _toml(steps: list) -> str:
    return "[" + ", ".join(f'[{least}, "{way}"]' for least, way in steps) + "]"
