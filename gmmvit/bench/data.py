"""`gmmvit bench data`: how fast one worker augments, and what that is of a training step."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .. import data
from ..data.loader import Stream
from ..data.memory import keep_freed_memory
from ..models import create_model
from ..train.precision import resolve
from ..train.processes import World
from ..train.recipes import find
from .harness import interleaved
from .train import our_step


def bench_data(
    dataset: str = "cifar10-mini",
    recipes: tuple[str, ...] = ("gmm", "short"),
    batch: int = 128,
    rounds: int = 5,
    say: Callable[[str], None] = print,
) -> dict:
    """Images/s of one worker for each recipe, and the loader's share of the GMM-ViT's step on a CPU."""
    keep_freed_memory()
    known, source = data.find(dataset), data.load(dataset)["train"]
    keys = data.epoch_order(len(source), seed=0, epoch=0)

    def loading(recipe: str) -> Callable[[], None]:
        stream = Stream(source, data.augmentation(find(recipe).augmentation, known, train=True))
        return lambda: [stream[keys[at : at + batch]] for at in range(0, len(keys) // batch * batch, batch)]

    seconds = interleaved({recipe: loading(recipe) for recipe in recipes}, rounds, say)
    speeds = {recipe: len(keys) // batch * batch / s for recipe, s in seconds.items()}
    step = _step_seconds(known, batch, rounds)
    return {
        "dataset": dataset,
        "batch": batch,
        "images_per_second_of_a_worker": {recipe: round(speed) for recipe, speed in speeds.items()},
        "images_per_second_of_a_step": round(batch / step, 1),
        "share_of_a_step": {recipe: round(batch / speed / step, 4) for recipe, speed in speeds.items()},
    }


def _step_seconds(dataset: data.DataSet, batch: int, rounds: int) -> float:
    """The best seconds of a GMM-ViT step on the CPU."""
    images = torch.randn(batch, 3, dataset.size, dataset.size)
    labels, world = torch.randint(dataset.classes, (batch,)), World()
    model = create_model("vit", img_size=dataset.size, num_classes=dataset.classes, mask="gmm")
    step = our_step(model, images, labels, resolve("auto", world.device).dtype, world)
    return interleaved({"step": step}, rounds, lambda line: None)["step"]
