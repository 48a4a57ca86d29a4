"""One update of the weights: the gradients of this process's shares, their mean over all processes, the optimiser."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn as nn
from timm.utils import ModelEmaV3
from torch.amp import GradScaler

from ..core.attach import masks_of
from . import recipes
from .depth import Depth
from .gradients import Gradients
from .precision import Working
from .processes import World
from .recipes import Recipe

Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor, int], torch.Tensor]  # model, images, labels, step
Batch = Sequence[tuple[np.ndarray, torch.Tensor, torch.Tensor]]  # keys, images, labels of each share


class Update:
    """A model with what it takes to train it; the weights are float32 whatever a step computes in."""

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        loss: Loss,
        image: torch.Tensor,
        steps_per_epoch: int,
        dtype: torch.dtype,
        seed: int = 0,
        world: World = World(),  # noqa: B008  frozen: one process on the CPU
    ):
        self.recipe, self.loss, self.seed, self.world = recipe, loss, seed, world
        for mask in masks_of(model).values() if recipe.freeze_masks else ():
            mask.requires_grad_(False)
        if recipe.checkpoint_gradients:
            model.set_grad_checkpointing(True)
        self.model = model.to(world.device)
        self.average = ModelEmaV3(self.model, decay=recipe.ema) if recipe.ema else None
        self.working = Working(self.model, dtype, world.device)
        with self.working.context():
            self.depth = Depth(self.working.module, image.to(world.device), seed)
        self.graphs = recipe.compile == "reduce-overhead"
        self.compiled = self.working.module
        if recipe.compile:
            self.compiled = torch.compile(self.working.module, mode="reduce-overhead" if self.graphs else None)
        self.gradients = Gradients(self.working.pairs, world, owned=self.graphs)
        self.optimizer = recipes.optimizer(self.model, recipe)
        self.scaler = GradScaler(world.device.type, enabled=dtype == torch.float16)
        self.skipped = torch.zeros((), device=world.device)  # updates that were left out, for a gradient was too large
        if self.scaler.is_enabled():
            self.optimizer.register_step_post_hook(lambda optimizer, *_: self.skipped.add_(optimizer.found_inf))
        self.set_lr = recipe.schedule(self.optimizer, steps_per_epoch)

    @property
    def result(self) -> nn.Module:
        """The weights that are kept: their average where there is one."""
        return self.model if self.average is None else self.average.module

    @property
    def tested(self) -> nn.Module:
        """The same, in the form that a step computes in."""
        return self.working.module if self.average is None else self.average.module

    @property
    def lr(self) -> float:
        return self.optimizer.param_groups[0]["lr"]

    def __call__(self, batch: Batch, number: int, asked: float = 0.0, pace: float = 0.0) -> torch.Tensor:
        """Step `number` of the run; the means of loss and both flags over all processes, (3,), left on the device."""
        self.set_lr(number)
        torch.manual_seed(self.seed_of(number))  # of dropout and samplers, where a model has some
        loss = torch.zeros((), device=self.world.device)
        for keys, images, labels in batch:
            self.depth.draw(keys, self.world.device, self.working.dtype)
            images = images.to(self.world.device, non_blocking=True)
            labels = labels.to(self.world.device, non_blocking=True)
            if self.graphs:
                torch.compiler.cudagraph_mark_step_begin()  # all that the last replay left has been used
            with self.working.context():
                part = self.loss(self.compiled, images, labels, number) / len(batch)
            self.scaler.scale(part).backward()
            self.gradients.collect()
            loss += part.detach()
        report = self.gradients.exchange(loss, asked, pace)
        if self.scaler.is_enabled():  # after the exchange: what is too large in one process is so in all
            self.scaler.unscale_(self.optimizer)
        if self.recipe.clip:
            nn.utils.clip_grad_norm_(self.working.parameters, self.recipe.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.working.refresh()
        if self.average is not None:
            self.average.update(self.model)
        return report

    def seed_of(self, number: int) -> int:
        """What a step's random draws begin with: other ones in each process, for each has other images."""
        return (self.seed * 1_000_003 + number + self.world.rank * 2_654_435_761) % 2**63

    def unite(self) -> None:
        """Gives every process the first one's weights and buffers; equal seeds alone need equal machines too."""
        averaged = [] if self.average is None else [self.average.module]
        tensors = [t for m in (self.model, self.working.module, *averaged) for t in (*m.parameters(), *m.buffers())]
        self.world.take_the_first_ones({id(tensor): tensor for tensor in tensors}.values())

    def digest(self) -> str:
        """A short name of the present weights and buffers."""
        sha = hashlib.sha256()
        for value in self.model.state_dict().values():
            sha.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return sha.hexdigest()[:12]

    def state(self) -> dict:
        """What a checkpoint keeps."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "scaler": self.scaler.state_dict() | {"skipped": int(self.skipped)},
        }

    def load(self, state: dict) -> None:
        """Takes up a state."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        kept = dict(state["scaler"])
        self.skipped.fill_(kept.pop("skipped"))
        if self.scaler.is_enabled() and kept:  # not where the steps so far were no float16: another GPU's `auto`
            self.scaler.load_state_dict(kept)
        self.working.refresh()
