"""`gmmvit bench dense`: what GAB adds to a Mask R-CNN training step, and to inference once it is folded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch

from ..core.fold import fold
from ..data.memory import keep_freed_memory
from ..dense.backbone import pyramid
from ..dense.detector import Detector
from ..dense.recipes import RECIPES
from ..dense.transforms import Movable
from ..models.parts import set_fused
from ..train.precision import Working, resolve
from ..train.processes import World
from ..train.update import Update
from .harness import Step, interleaved

MODEL = "swin_small_patch4_window7_224"
RECIPE, CLASSES, OBJECTS = "coco-3x", 80, 8
# With A = 0 both arms compute the same function, and so the same proposals, objects and masks: equal work but for GAB.
ARMS = {"plain": {}, "gab": {"mask": "gab", "mask_options": {"amplitude": 0.0}}}


def bench_dense(
    model: str = MODEL, size: int = 512, rounds: int = 5, device: str = "cpu", say: Callable[[str], None] = print
) -> dict:
    """Seconds of a step and of inference, one image of random pixels, random weights; what GAB adds to each."""
    keep_freed_memory()
    world = World(device=torch.device(device))
    dtype = resolve("auto", world.device).dtype
    images, targets = scene(size)
    models = {path: set_fused(detector(model, size, {}), path == "fused") for path in ("explicit", "fused")}
    models["gab"] = detector(model, size, ARMS["gab"])
    steps = {arm: training(each, images, targets, dtype, world) for arm, each in models.items()}
    folded = {arm: detector(model, size, options) for arm, options in ARMS.items()}
    fold(folded["gab"])
    looks = {arm: inference(each, images, dtype, world) for arm, each in folded.items()}
    step, look = (interleaved(each, rounds, lambda line: say(f"{model}: {line}")) for each in (steps, looks))
    without = min(("explicit", "fused"), key=step.get)  # attention of the faster step without GAB
    seconds = {"step": {"plain": step[without], "gab": step["gab"]}, "inference": look}
    return {
        "model": model,
        "size": size,
        "batch": 1,
        "precision": str(dtype)[6:],
        "without": without,
        "seconds": {kind: {arm: round(s, 4) for arm, s in found.items()} for kind, found in seconds.items()},
        "time": {kind: round(found["gab"] / found["plain"] - 1, 4) for kind, found in seconds.items()},
    }


def detector(model: str, size: int, options: dict) -> Detector:
    """A detector of this arm; all arms begin with the same weights."""
    torch.manual_seed(0)
    recipe = RECIPES[RECIPE]
    body = pyramid(model, drop_path=recipe.drop_path, **options)
    return Detector(body, CLASSES, short=size, long=size, width=recipe.width, regions=recipe.regions)


def scene(size: int) -> tuple[Movable, Movable]:
    """An image (3, size, size) of random pixels and the objects in it, rectangles of a sixteenth to half its side."""
    random = np.random.default_rng(0)
    sides = random.integers(size // 16, size // 2, (OBJECTS, 2))
    corners = random.integers(0, size - sides)
    masks = torch.zeros(OBJECTS, size, size, dtype=torch.uint8)
    for mask, (left, top), (width, height) in zip(masks, corners, sides, strict=True):
        mask[top : top + height, left : left + width] = 1
    target = {
        "boxes": torch.from_numpy(np.hstack([corners, corners + sides])).float(),
        "labels": torch.from_numpy(random.integers(1, CLASSES + 1, OBJECTS)),
        "masks": masks,
    }
    return Movable([torch.from_numpy(random.random((3, size, size), np.float32))]), Movable([target])


def training(model: Detector, images: Movable, targets: Movable, dtype: torch.dtype, world: World) -> Step:
    """The engine's own update: forward pass, the five losses, backward pass, AdamW."""
    recipe = dataclasses.replace(RECIPES[RECIPE], batch=1)

    def loss(model: Detector, images: Movable, targets: Movable, step: int) -> torch.Tensor:
        return sum(model(images, targets).values())

    update = Update(model, recipe, loss, images[0][None], steps_per_epoch=100, dtype=dtype, world=world)
    update.working.module.train()
    batch = [(np.arange(1), images, targets)]

    def step() -> float:
        return update(batch, 0)[0].item()  # waits for the device, as the loop does when it looks at the loss

    return step


def inference(model: Detector, images: Movable, dtype: torch.dtype, world: World) -> Step:
    """The detections of one image; every class of every region counts, as a fresh detector is sure of none."""
    model.roi_heads.score_thresh = 0.0
    working = Working(model.to(world.device).eval(), dtype, world.device)
    images = images.to(world.device)

    @torch.inference_mode()
    def step() -> int:
        with working.context():
            return len(working.module(images)[0]["scores"].cpu())

    return step
