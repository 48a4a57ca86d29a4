"""The loop: steps, a test after every epoch, a checkpoint that loses nothing; the same for every task.

A step is a function of (row, step): order, augmentation, mixing, stochastic depth and dropout are drawn from them. So
the state of a run is its weights, its optimiser and its place, and a killed run ends as if it had not been killed.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..core.attach import masks_of
from ..data.memory import keep_freed_memory
from ..data.progress import bar
from . import checkpoint, kernels, layers, moved, precision, processes, record, signals, tasks
from .checks import check
from .engine import engine, made_by
from .machine import computing
from .pace import Pace
from .rows import Row
from .update import Update

SAVE_EVERY = 600  # seconds between the checkpoints inside an epoch


class Diverged(ArithmeticError):
    """The loss, the weights or a score are not finite any more."""


@dataclass
class Place:
    """How far a run has come."""

    epoch: int = 0
    step: int = 0  # inside the epoch
    loss: float = 0.0  # sum over the steps of the epoch
    images: int = 0
    seconds: float = 0.0  # in steps
    total: float = 0.0  # with tests, over all starts of this run
    history: list[dict] = field(default_factory=list)
    layers: list[dict] = field(default_factory=list)  # the lines of layers.csv
    memory: dict[str, int] = field(default_factory=dict)  # the most that any start of this run needed

    def sensible(self, epochs: int, steps: int) -> bool:
        """Whether a run of so many epochs can have come here, and has a line of each epoch that it went through."""
        numbered = [line["epoch"] for line in self.history] == list(range(1, self.epoch + 1))
        ended = self.epoch == epochs and self.step == 0
        finite = all(math.isfinite(value) for value in (self.loss, self.images, self.seconds, self.total))
        return numbered and finite and (ended or 0 <= self.epoch < epochs and 0 <= self.step <= steps)


def train(
    row: Mapping | Row,
    out: str | Path,
    *,
    device: str | None = None,
    workers: int | None = None,
    threads: int | None = None,
    tensorboard: bool = False,
    on_epoch: Callable[[list[dict]], None] | None = None,
    say: Callable[[str], None] = print,
) -> dict:
    """Trains a row and writes its results to `out`; goes on where an earlier start of the same row was stopped."""
    row = check(row, processes.size_asked_for())
    out, plain = Path(out), json.loads(json.dumps(vars(row)))
    told = f"{row.name} has already ended in {out}: delete that folder to train it anew"
    saved = checkpoint.folder_for(out)
    done = record.finished(out, plain)
    if done and (out / "scores.json").exists() and not checkpoint.left(out) and processes.size_asked_for() == 1:
        say(told)
        return done
    with (
        processes.joined(device) as world,
        checkpoint.held(out, say) if world.first else nullcontext(),
        signals.remembered() as stop,
        kernels.chosen(row.recipe_settings, world.device),
        computing(threads),
    ):
        world.agreed(row.name)  # the others wait here until the first one has the folder
        say = say if world.first else (lambda line: None)
        if done := record.finished(out, plain):  # while we waited, or its process was killed right after
            world.agreed(f"{row.name} has ended")
            if world.first:
                record.write_scores(out, done)  # of a run from before there was such a file
                checkpoint.remove(saved / "last.pt")
            say(told)
            return done
        record.refuse_another(out, plain)
        run = Run(row, plain, out, world, workers, say)
        run.resume()
        watch = _tensorboard(out, run.place.history) if tensorboard and world.first else None
        try:
            return run.to_the_end(stop, on_epoch or (lambda history: None), watch)
        finally:
            run.task.close()
            if watch:
                watch.close()


class Run:
    """One row being trained: its task, its state, and the moves of the loop."""

    def __init__(self, row: Row, plain: dict, out: Path, world: processes.World, workers: int | None, say: Callable):
        keep_freed_memory()
        self.plain, self.out, self.world, self.say = plain, out, world, say
        self.engine, self.made_by = engine(row.kind), made_by(row.kind)
        self.saved = checkpoint.folder_for(out) / "last.pt"
        self.recipe, self.task = row.recipe_settings, tasks.of(row.kind).task(row, world, workers)
        self.precision = precision.resolve(self.recipe.precision, world.device)
        say(
            f"{row.name}: {world.size} process(es) on {world.device.type}, {self.precision.name} ({self.precision.why})"
        )
        parts = self.task.model(), self.recipe, self.task.loss, self.task.image, self.task.steps
        self.update = Update(*parts, self.precision.dtype, row.seed, world)
        if masks_of(self.update.model):
            say(moved.reach(self.recipe, self.task.steps))
        self.start = moved.Start(self.update.result)
        self.place, self.best, self.pace = Place(), None, Pace(world)
        self.clock = self.written = time.monotonic()

    # the state on the disk

    def resume(self) -> None:
        """Takes up the state of an earlier start, where there is one: every process the same."""
        content = checkpoint.read(self.saved, self.plain, self.engine, self.say)
        at = "its start"
        if content is not None:
            self.take_up(content)
            at = f"epoch {self.place.epoch}, step {self.place.step}"
            self.say(f"resumed at {at} from {self.saved}")
            at += f", weights {self.update.digest()}" if self.world.size > 1 else ""
        self.world.agreed(f"{self.plain['name']} at {at}")
        self.update.unite()

    def take_up(self, content: dict) -> None:
        """The state of a checkpoint, if it is one that this row can have come to."""
        try:
            place = Place(**content["place"])
            if not place.sensible(self.recipe.total_epochs, self.task.steps):
                raise ValueError("its place is none of this run")
            self.update.load(content["state"])
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise checkpoint.Damaged(
                f"{self.saved} is no checkpoint of this row ({' '.join(str(error).split())[:200]}): "
                f"delete {self.saved.parent} and the run begins anew"
            ) from error
        self.place, self.best = place, content["best"]
        if content["threads"] != (threads := torch.get_num_threads()):
            self.say(f"begun with {content['threads']} thread(s), goes on with {threads}: its last digits may differ")

    def save(self) -> None:
        """Writes the state; every process has the same, so the first one's is enough."""
        if self.world.first:
            self._tick()
            place, state = dict(vars(self.place)), self.update.state()
            content = {"row": json.dumps(self.plain), "engine": self.engine, "threads": torch.get_num_threads()}
            checkpoint.write(self.saved, content | {"state": state, "place": place, "best": self.best})
        self.written = time.monotonic()

    def _tick(self) -> None:
        now = time.monotonic()
        self.place.total += now - self.clock
        self.place.memory = record.peak_memory(self.world.device, self.place.memory)
        self.clock = now

    # the moves

    def to_the_end(self, stop: signals.Stop, on_epoch: Callable, watch) -> dict:
        """The epochs that are left, then the results."""
        if self.place.epoch == self.place.step == 0:
            self.look_at_layers()
        while self.place.epoch < self.recipe.total_epochs:
            self.epoch(stop)
            self.look_at_weights()
            line = self.test()
            if self.world.first:
                on_epoch(self.place.history)
                if watch:
                    _record(watch, line)
            self.save()
        return self.finish()

    def epoch(self, stop: signals.Stop) -> None:
        """The steps of an epoch from the present place on."""
        place, task = self.place, self.task
        self.update.working.module.train()
        title = f"epoch {place.epoch + 1} of {self.recipe.total_epochs}"
        pending: list[torch.Tensor] = []
        since = time.monotonic()
        with bar(total=task.steps, initial=place.step, desc=title, leave=False) as progress:
            for batch in task.batches(place.epoch, place.step):
                number = place.epoch * task.steps + place.step
                pending.append(self.update(batch, number, float(stop.asked), self.pace.flag))
                place.step += 1
                place.images += self.recipe.batch
                if not self.pace.due() and place.step < task.steps:
                    continue
                stopping = self.look(pending, since)
                place.seconds += time.monotonic() - since
                progress.update(place.step - progress.n)
                progress.set_postfix(loss=f"{place.loss / place.step:.3f}")
                if stopping or time.monotonic() - self.written > SAVE_EVERY:
                    self.look_at_weights()
                    self.save()
                if stopping:
                    stop.leave(f"stopped in {title}, step {place.step}; the same command goes on from {self.saved}")
                since = time.monotonic()

    def look(self, pending: list[torch.Tensor], since: float) -> bool:
        """Adds up the losses of the last steps, and raises at one that is not finite; whether to stop here."""
        losses, stops, paces = torch.stack(pending).t().tolist()
        self.pace.looked(paces[-1], len(pending), time.monotonic() - since)
        for number, loss in enumerate(losses):
            if not math.isfinite(loss):
                raise self.diverged(f"the loss is {loss}", self.place.step - len(pending) + number + 1)
        self.place.loss += math.fsum(losses)
        pending.clear()
        return any(stops)

    def look_at_weights(self) -> None:
        """Raises at weights that the last step has made infinite or no numbers: they are not to be saved."""
        kept = [self.update.model, *([self.update.average] if self.update.average is not None else [])]
        values = [value for model in kept for value in model.state_dict().values() if value.is_floating_point()]
        if not torch.stack([value.isfinite().all() for value in values]).all():
            raise self.diverged("weights are not finite", self.place.step)

    def diverged(self, what: str, step: int) -> Diverged:
        """The error that says where a run went wrong, and what there is from before."""
        good = f"the last good checkpoint is {self.saved}" if self.saved.exists() else "no checkpoint was written"
        return Diverged(f"{what} in epoch {self.place.epoch + 1}, step {step}; {good}")

    def look_at_layers(self) -> None:
        """Adds the lines of layers.csv as the weights are now, after `place.epoch` epochs."""
        with self.update.working.context():
            self.place.layers += layers.lines(self.place.epoch, self.update.tested, self.task.sample, self.start)

    def test(self) -> dict:
        """Ends an epoch: its line of the history, and the place moves to the next one."""
        place, model = self.place, self.update.tested.eval()
        with self.update.working.context():
            scores = self.task.test(model)
            checks = self.task.test(model, "val") if "val" in self.task.sources else {}
            notes = self.task.notes(model)
        line = {
            "epoch": place.epoch + 1,
            "lr": float(f"{self.update.lr:.6g}"),
            "train_loss": round(place.loss / max(place.step, 1), 6),
            **({"test_loss": scores.pop("loss")} if "loss" in scores else {}),
            **scores,
            **{f"val_{name}": value for name, value in checks.items()},
            **notes,
        }
        for name, value in line.items():
            if not math.isfinite(value):
                raise self.diverged(f"{name} is {value}", place.step)
        place.history.append(line)
        place.epoch, place.step, place.loss = place.epoch + 1, 0, 0.0
        self.look_at_layers()
        speed = place.images / place.seconds if place.seconds else 0.0
        self.say(", ".join(f"{name} {value}" for name, value in line.items()) + f"; {speed:.0f} images/s")
        if self.recipe.select == "validation" and (
            self.best is None or line["val_top1"] > self.best["line"]["val_top1"]
        ):
            weights = {name: value.detach().cpu().clone() for name, value in self.update.result.state_dict().items()}
            self.best = {"line": line, "model": weights}
        return line

    def finish(self) -> dict:
        """Writes the results, and removes the checkpoint that they make needless."""
        self._tick()
        history, model = self.place.history, self.update.result
        chosen = history[-1]
        if self.best is not None:
            chosen = self.best["line"]
            model.load_state_dict(self.best["model"])
        facts = {"images": self.place.images, "precision": self.precision.name, "threads": torch.get_num_threads()}
        if self.precision.name == "float16":
            facts["skipped_steps"] = int(self.update.skipped)
        last = [line for line in self.place.layers if line["epoch"] == chosen["epoch"]]
        facts |= layers.summary(last) | {"engine": self.made_by}
        metrics = record.summary(self.plain, model, self.task, history, chosen, **facts)
        if self.world.first:
            place = self.place
            times = record.timing(place.images, place.seconds, place.total, place.memory, self.world)
            record.write(self.out, model, metrics, place, times)
            checkpoint.remove(self.saved)
            score = self.recipe.score
            said = f"{score.replace('top1', 'top-1')} {metrics[score]:.2f} % (best {metrics[f'best_{score}']:.2f} %)"
            for line in layers.told(last):
                self.say(line)
            self.say(f"{said}; results in {self.out}")
        return metrics


def _tensorboard(out: Path, history: list[dict]):
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(out / "tensorboard"), purge_step=len(history) + 1)


def _record(watch, line: dict) -> None:
    for name, value in line.items():
        if name != "epoch":
            watch.add_scalar(name, value, line["epoch"])
    watch.flush()
