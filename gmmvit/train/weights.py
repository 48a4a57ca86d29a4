"""Weights from elsewhere: timm's pretrained ones, or those of a file, taken by a model that they fit name by name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn as nn

from ..core.errors import first_line
from ..core.keep import fits

IN_A_ROW = "name it in the row: set: {pretrained_file: <path>}, or `gmmvit train ROW --set pretrained_file=<path>`"


class WeightsNotObtained(OSError):
    """Pretrained weights that could not be had: nothing goes on from random ones instead."""


def take(model: nn.Module, state: Mapping[str, torch.Tensor], source: str) -> None:
    """Loads weights that fit a model name by name; only a classifier for other classes, or for none, may differ."""
    own, classifier = model.state_dict(), f"{model.pretrained_cfg.get('classifier')}."
    head = {name for name in own if name.startswith(classifier)}
    if not head or any(name not in state or state[name].shape != own[name].shape for name in head):
        state = {name: value for name, value in state.items() if not name.startswith(classifier)}
        own = {name: value for name, value in own.items() if name not in head}
    fits(own, state, source, f"this {type(model).__name__}")
    model.load_state_dict(state, strict=False)


def from_timm(model: str, instead: str = IN_A_ROW, **options) -> Mapping[str, torch.Tensor]:
    """The pretrained weights of a model of timm; without them an error says what to do `instead`."""
    import timm

    try:
        shipped = timm.create_model(model, pretrained=True, **options)
    except Exception as error:  # of the hub, the network, the disk: each library has its own
        cause = " ".join(str(error).split())[:200] or type(error).__name__
        raise WeightsNotObtained(
            f"the pretrained weights of {model} were asked for and could not be had ({cause}). Where the hub cannot be "
            f"reached, fetch the file elsewhere (.safetensors, .pth or .pt) and {instead}"
        ) from error
    return shipped.state_dict()


def from_file(path: str | Path, model: nn.Module) -> Mapping[str, torch.Tensor]:
    """The weights in a file of timm's or ours, older names put right by the filter of the model's file in timm."""
    from timm.models import load_state_dict

    if not Path(path).is_file():
        raise FileNotFoundError(f"pretrained_file: expected a file of weights, got {path}, which is not there")
    try:
        state = load_state_dict(str(path))
    except Exception as error:  # of torch's, pickle's and safetensors' readers
        raise ValueError(
            f"pretrained_file: expected weights (.safetensors, .pth or .pt), got {path}, which cannot be read as such "
            f"({type(error).__name__})"
        ) from error
    if not isinstance(state, Mapping) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ValueError(f"pretrained_file: expected weights by name, got {path}, which holds something else")
    if odd := [f"{name} is {kind}" for name, value in state.items() if (kind := _odd(value))]:
        raise ValueError(f"pretrained_file: expected dense numbers, got {path}, in which {odd[0]}")
    put_right = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    try:
        state = put_right(state, model) if put_right else state
    except Exception as error:  # of timm's filters, which expect the weights of their model
        raise ValueError(
            f"pretrained_file: expected the weights of this {type(model).__name__}, got {path} ({first_line(error)})"
        ) from error
    own = model.state_dict()
    for name, value in state.items():
        if name in own and own[name].is_floating_point() and not value.is_floating_point():
            raise ValueError(f"pretrained_file: expected floating-point weights, got {path}, in which {name} is not")
        if shapes.get(name, tuple(value.shape)) != tuple(value.shape):
            sizes = f"{shapes[name]} was resampled to {tuple(value.shape)}"
            print(f"pretrained_file: {path} is of another image size: {name} {sizes}", file=sys.stderr)
    return state


def _odd(value: torch.Tensor) -> str:
    """What keeps a tensor from being a weight; "" where nothing does."""
    kinds = {
        "sparse": value.layout != torch.strided,
        "quantised": value.is_quantized,
        "empty of numbers": value.is_meta,
    }
    return next((kind for kind, true in (kinds | {"complex": value.is_complex()}).items() if true), "")
