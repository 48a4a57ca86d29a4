"""`regrid`: the masks of a model, and the model where it needs it, for another image size from now on."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn as nn
from timm.models import get_model_input_config

from .attach import Site, _image, _ready, _softmax_callers
from .cost import input_size
from .grids import Grid
from .masks import SpatialMask
from .rewrite import CHILD
from .rewritten import Paths, Rewritten
from .trace import plain


def regrid(model: nn.Module, img_size: int | Grid) -> list[Site]:
    """The sites of a model that takes images of another size from now on, as do its masks.

    Masks of distances are exact on the new grid; what is learned for each pair of patches is interpolated, and is a new
    parameter. A model that takes any size needs none of it: its masks follow each image.
    """
    model = plain(model)
    if not getattr(model, "spatial_sites", None):
        raise ValueError(f"{type(model).__name__} has no masks: expected some of gmmvit.attach")
    size = input_size(model, img_size)[1:]
    try:
        settle(model, size)
    except ValueError:
        if not hasattr(model, "set_input_size") or get_model_input_config(model)["input_size"][1:] == size:
            raise
        model.set_input_size(img_size=size)  # which settles
    return model.spatial_sites


def settle(model: nn.Module, size: Grid) -> None:
    """Makes a size the one that a model's masks were attached for."""
    with torch.inference_mode(False):
        image = _image(model, size)
        size = tuple(image.shape[-2:])
        for module in (m for m in model.modules() if isinstance(m, Rewritten)):
            module._paths = Paths()  # in which the sizes of windows may be constants
        calls = [c for c in _softmax_callers(model, image, told=True) if isinstance(c.module, Rewritten)]
        masks = [site.mask for site in model.spatial_sites if isinstance(site.mask, SpatialMask)]
        for mask in masks:
            mask.settle(size)
        for module in {id(call.module): call.module for call in calls}.values():
            at = [getattr(module, CHILD)[key] for _, key in module._sites]
            module._sites = [
                (replace(product, queries=mask.counts[0], keys=mask.counts[1]), key)
                if isinstance(mask, SpatialMask)
                else (product, key)
                for (product, key), mask in zip(module._sites, at, strict=True)
            ]
        _ready(calls)
    model.spatial_sites = [_moved(site) for site in model.spatial_sites]


def _moved(site: Site) -> Site:
    mask = site.mask
    if not isinstance(mask, SpatialMask):
        return site
    rows, columns = mask.prefix
    return replace(site, grid=mask.grid, key_grid=mask.key_grid, prefix=rows if rows == columns else (rows, columns))
