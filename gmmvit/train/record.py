"""What a run leaves behind: metrics.json, scores.json, history.csv, layers.csv, timing.json, masks.npz, weights.pt."""

from __future__ import annotations

import csv
import json
import platform
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path

import timm
import torch
import torch.nn as nn

from ..core.cost import cost
from ..core.keep import CONFIG, WEIGHTS, described
from ..data.places import atomic, write_json
from . import checkpoint, layers, learned
from .machine import machine


def finished(out: Path, row: dict) -> dict | None:
    """The metrics of a run of this row that has ended; metrics.json is written last."""
    try:
        metrics = json.loads((out / "metrics.json").read_text())
    except (OSError, ValueError):
        return None
    whole = all((out / name).exists() for name in ("history.csv", "timing.json", learned.FILE, "weights.pt"))
    return metrics if whole and isinstance(metrics, dict) and metrics.get("row") == row else None


def refuse_another(out: Path, row: dict) -> None:
    """Raises OtherRun where a folder holds the record of another row, or one that cannot be read."""
    path = out / "metrics.json"
    if path.exists():
        try:
            theirs = dict(json.loads(path.read_text())["row"])
        except (ValueError, KeyError, TypeError) as error:
            raise checkpoint.OtherRun(f"{path} is no record of a run: give another --out, or delete {out}") from error
        checkpoint.differing(path, theirs, row)


def summary(row: dict, model: nn.Module, task, history: Sequence[Mapping], chosen: Mapping, **facts) -> dict:
    """The content of metrics.json: `chosen` is the epoch whose score is the result."""
    score = task.recipe.score
    price = cost(model, tuple(task.image.shape[-2:]))
    best = max(history, key=lambda line: line[score])  # the first of equals
    return {
        "row": row,
        **{key: value for key, value in chosen.items() if key != "lr"},
        f"best_{score}": best[score],
        "best_epoch": best["epoch"],
        "epochs": len(history),
        "parameters": price.parameters,
        "macs": price.macs_full,
        "macs_paper": price.macs_paper,
        "depth": price.depth,
        **facts,
    }


def write_scores(out: Path, metrics: Mapping) -> None:
    """scores.json, the metrics that DVC shows: the result alone, for the settings and costs of a row are none."""
    score = next(key for key in metrics if key != "epoch" and f"best_{key}" in metrics)
    write_json(out / "scores.json", {score: metrics[score]})


def write_lines(path: Path, columns: Sequence[str], lines: Sequence[Mapping]) -> None:
    """A CSV file; what a line has None of is empty."""
    with atomic(path) as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def timing(images: int, seconds: float, total: float, memory: Mapping[str, int], world) -> dict:
    """The content of timing.json."""
    return {
        "images_per_second": round(images / seconds, 1) if seconds else None,
        "training_seconds": round(seconds, 1),
        "seconds": round(total, 1),
        **memory,
        "device": str(world.device.type),
        "processes": world.size,
        **machine(),
        "platform": platform.system(),
    }


def peak_memory(device: torch.device, before: Mapping[str, int]) -> dict[str, int]:
    """The most memory that was ever in use, of the GPU, else of this process; on a GPU also the most torch held.

    `before` is what an earlier start of the same run found.
    """
    if device.type == "cuda":
        now = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    else:
        now = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024),)
    names = ("peak_memory_bytes", "reserved_memory_bytes")
    return {name: max(value, before.get(name, 0)) for name, value in zip(names, now, strict=False)}


def write(out: Path, model: nn.Module, metrics: dict, place, times: dict) -> None:
    """Every file of a finished run; metrics.json, which says that the run has ended, goes first and comes last."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("metrics.json", CONFIG, WEIGHTS):  # the latter two: what was shared of an earlier run
        (out / name).unlink(missing_ok=True)
    write_lines(out / "history.csv", list(place.history[0]), place.history)
    write_lines(out / layers.FILE, layers.COLUMNS, place.layers)
    write_json(out / "timing.json", times)
    learned.save(model, out)
    state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    content = {"row": json.dumps(metrics["row"]), "timm": timm.__version__, "model": state}
    if hasattr(model, "pretrained_cfg"):  # for gmmvit.load; a detector is more than timm can make
        content["config"] = json.dumps(described(model))
    with atomic(out / "weights.pt", "wb") as file:
        torch.save(content, file)
    write_scores(out, metrics)
    write_json(out / "metrics.json", metrics)
