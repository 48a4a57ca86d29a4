"""How a mask begins: as its paper draws it, or doing nothing yet, so that a trained model is not spoilt by it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch.nn as nn

from .errors import unknown
from .masks import MASKS

if TYPE_CHECKING:
    from .attach import Site

STARTS = ("paper", "neutral")
WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")
logger = logging.getLogger("gmmvit")


def refuse_wrapped(model: nn.Module) -> None:
    """Raises a sentence where a wrapper has counted the parameters already: each process would train its own masks."""
    for name, module in model.named_modules():
        wrapper = next((kind.__name__ for kind in type(module).__mro__ if kind.__name__ in WRAPPERS), None)
        if wrapper:
            what = f"{name} of {type(model).__name__}" if name else "the model"
            raise ValueError(f"{what} is wrapped in {wrapper}, which would not train the masks: attach before wrapping")


def looks_trained(model: nn.Module) -> bool:
    """Whether the numbers of one of a model's norms differ: they begin equal, and timm does not note what it loaded."""
    norms = (module for module in model.modules() if "norm" in type(module).__name__.lower())
    numbers = (each.detach() for norm in norms for each in norm.parameters(recurse=False) if each.numel() > 1)
    return any(bool(each.min() != each.max()) for each in numbers)


def choose_start(model: nn.Module, mask: object, start: str | None, options: dict) -> tuple[str, str]:
    """How a mask starts on a model, and why."""
    if start not in (None, *STARTS):
        raise ValueError(unknown("start", start, STARTS))
    kind = MASKS.get(mask) if isinstance(mask, str) else mask
    neutral, why = getattr(kind, "neutral", None), "as asked for"
    if neutral is None and start != "neutral":
        return "own", "as it builds itself"
    if start is None:
        given = next((option for option in kind.strengths if option in options), None)
        trained = given is None and looks_trained(model)
        start = "neutral" if trained else "paper"
        why = f"{given} is given" if given else f"its weights look {'trained' if trained else 'fresh'}"
    if start == "neutral" and neutral is None:
        named = f"the mask {mask!r}" if isinstance(mask, str) else repr(kind)
        raise ValueError(
            f"start: {named} has no neutral start: expected its class to have a static method `neutral(**options)`"
        )
    return start, why


def say_start(model: nn.Module, name: str, sites: Sequence[Site], why: str, level: int) -> None:
    """Logs how a mask started, and how far it is from doing nothing."""
    strengths = [site.strength for site in sites]
    if logger.isEnabledFor(level) and None not in strengths:
        mean, (_, of, _) = sum(strengths) / len(strengths), sites[0].mask.words()
        told = f"{name} on {type(model).__name__}: start={sites[0].start!r} ({why}), mean {of} = {mean:.2g}"
        logger.log(level, "%s over %d attentions", told, len(sites))
