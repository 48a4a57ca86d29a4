"""The records of benchmarks, and what a mask adds to a model, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..bench.harness import stock_speed
from ..core import masks as registered
from ..core.cost import cost
from ..models import create_model
from .names import MASKS, MODELS
from .tables import Column, Table

ARMS = MASKS | {"explicit": "no mask", "fused": "no mask, fused attention"}  # of `gmmvit bench masks`


def cost_table(model: str) -> Table:
    """Parameters, MACs of an image and depth of a backbone without a mask and with each."""
    columns = [
        Column("mask", f"{MODELS.get(model, model)} with"),
        Column("parameters", "parameters", ",d"),
        Column("macs_paper", "MACs, paper's count", ",d"),
        Column("macs_full", "MACs, all", ",d"),
        Column("depth", "attention layers", "d"),
    ]
    masks = {"none": MASKS["none"]} | {mask: MASKS.get(mask, mask) for mask in registered.MASKS}
    return Table(
        columns, [{"mask": title, **vars(cost(create_model(model, mask=mask)))} for mask, title in masks.items()]
    )


def operators_table(shares: Iterable[Mapping]) -> Table:
    """The operators of a step, of gmmvit.bench.train.operators."""
    columns = [
        Column("operator", "operator"),
        Column("calls", "calls", "d"),
        Column("ms", "own time (ms)", ".1f"),
        Column("share", "share", ".1%"),
    ]
    return Table(columns, list(shares))


def masks_table(record: Mapping) -> Table:
    """A step with each mask against the faster one without, of `gmmvit bench masks`."""
    columns = [
        Column("mask", "mask"),
        Column("images_per_second", "images/s", ".0f"),
        Column("time", "time of a step", "+.1%"),
        Column("bytes", "bytes saved for backward", "+.1%"),
    ]
    measured = ("images_per_second", "time", "bytes")
    return Table(
        columns,
        [{"mask": ARMS.get(name, name)} | {key: record[key][name] for key in measured} for name in record["time"]],
    )


def rates(record: Mapping) -> tuple[dict[str, float], str]:
    """Images per second of each arm of `gmmvit bench masks` and the arm without a mask, by the names of masks_table."""
    found = {ARMS.get(name, name): rate for name, rate in record["images_per_second"].items()}
    return found, ARMS.get(record["without"], record["without"])


def throughput_table(record: Mapping) -> Table:
    """Our step against the stock one for each backbone, of `gmmvit bench train`."""
    columns = [
        Column("model", "model"),
        Column("stock", "stock: images/s", ".0f"),
        Column("ours", "ours: images/s", ".0f"),
        Column("times", "ours: times stock"),
        Column("gmm", "ours with GMM: images/s", ".0f"),
        Column("gmm_times", "ours with GMM: times stock"),
    ]
    lines = []
    for name, measured in record["backbones"].items():
        speeds, times = measured["images_per_second"], measured["over_stock"]
        ours = {"ours": speeds["ours"], "times": times["ours"], "gmm": speeds["gmm"], "gmm_times": times["gmm"]}
        lines.append({"model": MODELS.get(name, name), "stock": stock_speed(speeds), **ours})
    return Table(columns, lines)


def dense_table(record: Mapping) -> Table:
    """A step and inference without and with GAB, of `gmmvit bench dense`."""
    names = {"step": "a training step", "inference": "inference, GAB folded"}
    lines = [
        {"what": names[kind]} | found | {"time": record["time"][kind]} for kind, found in record["seconds"].items()
    ]
    columns = [
        Column("what", "Mask R-CNN, one image"),
        Column("plain", "without GAB (s)", ".4f"),
        Column("gab", "with GAB (s)", ".4f"),
        Column("time", "time with GAB", "+.1%"),
    ]
    return Table(columns, lines)
