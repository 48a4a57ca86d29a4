"""How fast a planned row is trained: what an A100 is assumed to sustain, and what finished rows of a profile showed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

PEAKS = {"float32": 19.5e12, "tf32": 156e12}  # FLOP/s of an A100's products; in 16 bits 312e12
SHARE, FLOAT32_SHARE = 0.4, 0.6  # of them that training keeps up: in float32 it waits for little but the products
SMALL = 1e9  # MACs of an image, below which launching a step's kernels lasts longer than computing them ...
SMALL_SPEED = 20e12  # ... so that no more FLOP/s are done: by count 10e12 (CaiT) to 50e12 (T2T) at 128 images a step
ASSUMED = """A100 hours are assumed, not measured: 40 % of its 312 TFLOP/s (bfloat16; of 156 in TF32), 60 % of 19.5
where the recipe says float32; and at most 20 TFLOP/s, 6 % of the peak, for models below 1 GMAC an image, because their
steps of 128 images wait for 400 to 3,000 kernels to be launched."""


def a100_speed(precision: str, macs: int) -> float:
    """FLOP/s that one A100 is assumed to train with, at a recipe's precision and so many MACs an image."""
    sustained = PEAKS.get(precision, 312e12) * (FLOAT32_SHARE if precision == "float32" else SHARE)
    return min(sustained, SMALL_SPEED) if macs < SMALL else sustained


@dataclass(frozen=True)
class Measured:
    """What the finished rows of a profile on one kind of device came to, as training the plain `vit`."""

    device: str
    rows: int
    slowest: float  # images/s
    fastest: float
    together: float  # all their work by all their time
    left: float  # hours of the rows that have not ended, at that speed, one after the other

    def __str__(self) -> str:
        rows = "1 finished row" if self.rows == 1 else f"{self.rows:,} finished rows"
        spread = f" ({self.slowest:,.0f} to {self.fastest:,.0f})" if self.rows > 1 else ""
        left = f"those that are left take {self.left:,.1f} hours at that speed, one after the other"
        return f"{rows} on {self.device}: {self.together:,.0f} images/s of that vit{spread}; {left}"


def measured(runs: Iterable[Mapping], work: Mapping[str, int], vit: int) -> list[Measured]:
    """One line for each kind of device: `work` {row: images of the plain vit it is worth}, `vit` its MACs."""
    found: dict[str, list[tuple[float, float]]] = {}  # images of the vit, seconds
    ended = set()
    for run in runs:
        timing, name = run["timing"] or {}, run["row"]["name"]
        if name in work and timing.get("images_per_second"):
            worth = run["images"] * run["macs"] / vit
            found.setdefault(timing["device"], []).append((worth, run["images"] / timing["images_per_second"]))
            ended.add(name)
    lines = []
    for device, rows in found.items():
        speeds = [images / seconds for images, seconds in rows]
        together = sum(images for images, _ in rows) / sum(seconds for _, seconds in rows)
        left = sum(images for name, images in work.items() if name not in ended) / together / 3600
        lines.append(Measured(device, len(rows), min(speeds), max(speeds), together, left))
    return lines
