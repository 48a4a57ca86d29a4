"""The verbs of `gmmvit bench`: each runs one benchmark; its figures, and what is said of them.

That is sentences, and tables as their rows below a head.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable

from ..core.errors import unknown
from .harness import stock_speed

Said = tuple[dict, list[str | tuple[list[tuple], tuple[str, ...]]]]


def model_of(arguments: Namespace, valid: Iterable[str] = ()) -> str | None:
    """The model that was asked for, if it is one of these; where none are named, of timm's and ours under its names."""
    import timm

    from .. import models  # noqa: F401  registers ours

    valid = valid or timm.list_models()
    if arguments.model and arguments.model not in valid:
        raise ValueError(unknown(f"model of `gmmvit bench {arguments.what}`", arguments.model, valid))
    return arguments.model


def masks(arguments: Namespace, device: str) -> Said:
    """What a mask costs in a training step."""
    from ..core.masks import MASKS
    from .masks import BACKBONES, PAPERS, bench_masks

    model, rounds = model_of(arguments), arguments.rounds or 20
    tried = PAPERS if model else tuple(MASKS)  # all arms are in memory at once, and all of a large model may not fit
    figures = bench_masks(model or "gmmvit_vit", tried, arguments.batch, rounds, device=device)
    parts = _overheads(figures)
    if not model and not arguments.ways:
        figures["backbones"] = {
            name: bench_masks(f"gmmvit_{name}", PAPERS, arguments.batch, -(-rounds // 2), device=device)
            for name in BACKBONES
        }
        parts += [part for each in figures["backbones"].values() for part in _overheads(each)]
    return _with_ways(figures, parts, device, rounds) if arguments.ways else (figures, parts)


def _overheads(figures: dict) -> list:
    """A model's steps with each mask, and how far they can be told apart."""
    rows = [
        (
            name,
            f"{speed:.0f}",
            *(f"{figures[kind][name]:+.1%}" if name in figures[kind] else "" for kind in ("time", "bytes")),
        )
        for name, speed in figures["images_per_second"].items()
    ]
    said = (rows, (f"a training step of {figures['model']} with", "images/s", "time", "bytes for backward"))
    without = f"over the faster step without a mask: {figures['without']} attention"
    return [said, f"{without}; two equal steps differ by {figures['spread']:.1%}"]


def _with_ways(figures: dict, parts: list, device: str, rounds: int) -> Said:
    """Adds from how many keys on a fused kernel pays, and puts it into ways.toml."""
    from pathlib import Path

    import torch

    from ..core import ways
    from . import ways as bench_ways

    if torch.device(device).type == "cpu":
        raise ValueError("--ways: expected the device of a GPU, for FlexAttention has no gradients on a CPU, got cpu")
    seconds, path = bench_ways.bench_ways(device, rounds), Path(ways.__file__).with_name("ways.toml")
    bench_ways.fill(path, torch.device(device).type, seconds, torch.cuda.get_device_name(device))
    rows = [
        (kind, keys, *(f"{way} {1e3 * each:.2f} ms" for way, each in found.items()))
        for kind, lengths in seconds.items()
        for keys, found in lengths.items()
    ]
    parts += [(rows, ("mask", "keys", "explicit product", "fused")), f"ways taken from now on: {path}"]
    return figures | {"ways": seconds}, parts


def train(arguments: Namespace, device: str) -> Said:
    """Our training step against the stock one and against the peak."""
    from .train import BACKBONES, bench_train

    model = model_of(arguments, BACKBONES)
    names = (model,) if model else BACKBONES
    figures = bench_train(names, arguments.batch, arguments.rounds or 5, device)
    rows, parts = [], []
    for name, measured in figures["backbones"].items():
        speeds, ratios = measured["images_per_second"], measured["over_stock"]
        timm = measured["timm_over_stock"].get("timm")
        rows.append((
            name,
            f"{stock_speed(speeds):.0f}",
            "" if timm is None else f"{timm:.2f}",
            f"{speeds['ours']:.0f}",
            f"{ratios['ours']:.2f}",
            f"{speeds['gmm']:.0f}",
            f"{ratios['gmm']:.2f}",
            f"{measured['share_of_peak']:.0%}",
            f"{measured['peak_gflops']:.0f}",
        ))  # fmt: skip
        own = [(o["operator"], o["calls"], f"{o['ms']:.1f}", f"{o['share']:.1%}") for o in measured["operators"]]
        parts += [f"\n{name} + GMM, one step", (own, ("operator", "calls", "ms", "share"))]
    head = ("images/s", "stock", "timm x", "ours", "x", "ours + GMM", "x", "of the peak", "peak GFLOP/s")
    return figures, [(rows, head), *parts]


def data(arguments: Namespace, device: str) -> Said:
    """What augmenting costs."""
    from .data import bench_data

    figures = bench_data(arguments.dataset, batch=arguments.batch, rounds=arguments.rounds or 5)
    speeds, shares = figures["images_per_second_of_a_worker"], figures["share_of_a_step"]
    rows = [(recipe, f"{speed:,}", f"{shares[recipe]:.1%}") for recipe, speed in speeds.items()]
    return figures, [(rows, ("recipe", "images/s of a worker", "of a GMM-ViT step"))]


def mix(arguments: Namespace, device: str) -> Said:
    """What TransMix adds to CutMix."""
    from .mix import MODELS, bench_mix

    model = model_of(arguments)
    names = (model,) if model else tuple(MODELS)
    figures = bench_mix(names, arguments.batch, arguments.rounds or 10, device)
    rows = []
    for name, measured in figures["models"].items():
        speeds = measured["images_per_second"]
        rows.append((name, f"{speeds['cutmix']:.0f}", f"{speeds['transmix']:.0f}", f"{measured['time']:+.1%}"))
    return figures, [(rows, ("images/s", "CutMix", "TransMix", "time of a step"))]


def dense(arguments: Namespace, device: str) -> Said:
    """What GAB adds to a Mask R-CNN."""
    import timm

    from ..dense.backbone import SMALL
    from .dense import MODEL, bench_dense

    model = model_of(arguments, [*SMALL, *timm.list_models()])
    figures = bench_dense(model or MODEL, rounds=arguments.rounds or 5, device=device)
    names = {"step": "a training step", "inference": "inference, folded"}
    rows = [
        (names[kind], f"{found['plain']:.2f}", f"{found['gab']:.2f}", f"{figures['time'][kind]:+.1%}")
        for kind, found in figures["seconds"].items()
    ]
    said = f"Mask R-CNN on {figures['model']} at {figures['size']} px"
    return figures, [(rows, ("one image", "plain (s)", "with GAB", "time")), said]
