"""Backbones for small images (the GMM paper's and a relative-position ViT), registered with timm as gmmvit_<name>."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import timm
import torch.nn as nn
from timm.models import build_model_with_cfg, load_pretrained, register_model

from ..core.attach import attach
from ..core.errors import unknown
from .cait import CaiT
from .inits import INITS, initialise
from .parts import Size, explicit_attention_on_cpu, side
from .pit import PiT
from .relpos import RelPosViT
from .swin import Swin
from .t2t import T2T
from .vit import SIZES, ViT

__all__ = ["BACKBONES", "INITS", "CaiT", "PiT", "RelPosViT", "Swin", "T2T", "ViT", "create_model", "initialise"]

BACKBONES: dict[str, Callable[..., nn.Module]] = {
    "vit": partial(ViT, **SIZES["vit"]),
    "swin": Swin,
    "cait": CaiT,
    "pit": PiT,
    "t2t": T2T,
    "vit_relpos": RelPosViT,
    **{name: partial(ViT, **size) for name, size in SIZES.items() if name != "vit"},
}
READOUTS = ("mean", "token")
WITHOUT_CLASS_TOKEN = ("swin", "t2t", "vit_relpos")
TIMM_OPTIONS = {"in_chans", "drop_rate", "proj_drop_rate", "attn_drop_rate", "features_only", "out_indices"}

default_cfgs = {  # timm reads this name; no weights, and the statistics of CIFAR-10
    f"gmmvit_{name}": {
        "num_classes": 10,
        "input_size": (3, 32, 32),
        "fixed_input_size": True,
        "pool_size": None,
        "crop_pct": 1.0,
        "interpolation": "bicubic",
        "mean": (0.4914, 0.4822, 0.4465),
        "std": (0.2470, 0.2435, 0.2616),
        "first_conv": {"pit": "patch_embed.conv", "t2t": None}.get(name, "patch_embed.proj"),
        "classifier": "head.fc" if name == "swin" else "head",
        "license": "mit",
    }
    for name in BACKBONES
}


def create_model(
    name: str,
    img_size: Size = 32,
    num_classes: int = 10,
    mask: str | Callable[..., nn.Module] | None = None,
    readout: str = "mean",
    drop_path: float = 0.1,
    **mask_options: Any,
) -> nn.Module:
    """A backbone of the GMM paper, with a spatial mask on every self-attention where `mask` names one.

    `readout` ("mean" or "token") is a choice of the ViTs: CaiT and PiT always read their class token, Swin and T2T the
    mean. Options beyond these are the mask's (`kernels=3`), or timm's: in_chans, drop_rate, proj_drop_rate and so on.
    """
    if name not in BACKBONES:
        raise ValueError(unknown("model", name, BACKBONES))
    built = {"img_size": img_size, "num_classes": num_classes, "readout": readout, "drop_path_rate": drop_path}
    return timm.create_model(f"gmmvit_{name}", mask=mask, **built, **mask_options)


def _entry_point(name: str) -> Callable[..., nn.Module]:
    """The function timm.create_model calls for gmmvit_<name>; what is no option of the backbone is one of the mask."""

    def build(
        pretrained: bool = False,
        img_size: Size = 32,
        num_classes: int = 10,
        mask: str | Callable[..., nn.Module] | None = None,
        readout: str = "mean",
        drop_path_rate: float = 0.1,
        pretrained_cfg: dict | str | None = None,
        pretrained_cfg_overlay: dict | None = None,
        cache_dir: str | None = None,
        **options: Any,
    ) -> nn.Module:
        source = pretrained_cfg.get("source") if isinstance(pretrained_cfg, dict) else None
        if pretrained and not source:  # timm's "local-dir:..." or "hf-hub:..."
            raise ValueError(f"gmmvit_{name} has no pretrained weights: expected pretrained=False, got {pretrained!r}")
        options.pop("pretrained_model_args", None)
        pool = options.pop("global_pool", None)  # timm writes it down beside readout
        if type(num_classes) is not int or num_classes < 0:
            raise ValueError(f"num_classes: expected a whole number (0 for no head), got {num_classes!r}")
        if not isinstance(drop_path_rate, (int, float)) or not 0 <= drop_path_rate < 1:
            raise ValueError(f"stochastic depth: expected a rate from 0 to below 1, got {drop_path_rate!r}")
        if readout not in READOUTS:
            raise ValueError(unknown("readout", readout, READOUTS))
        if readout == "token" and name in WITHOUT_CLASS_TOKEN:
            raise ValueError(f"{name} has no class token: expected readout='mean', got 'token'")
        model_options = {option: options.pop(option) for option in TIMM_OPTIONS & options.keys()}
        if mask == "none":  # as rows and tables say it
            mask = None
        if mask is None and options:
            raise TypeError(unknown("option", min(options), TIMM_OPTIONS) + " (options of a mask need mask=...)")
        if name in SIZES:
            model_options["readout"] = readout
        pixels = side(img_size)
        model_options |= {"img_size": pixels, "num_classes": num_classes, "drop_path_rate": drop_path_rate}
        own = {"input_size": (model_options.get("in_chans", 3), pixels, pixels), "num_classes": num_classes}
        model = build_model_with_cfg(
            BACKBONES[name],
            f"gmmvit_{name}",
            pretrained=False,
            pretrained_cfg=pretrained_cfg,
            pretrained_cfg_overlay=own | (pretrained_cfg_overlay or {}),
            feature_cfg={"feature_cls": "getter", "out_indices": 3},
            **model_options,
        )
        if pool not in (None, getattr(model, "global_pool", pool)):  # features alone have no readout
            raise TypeError(f"global_pool: expected the readout {readout!r} to say it, got {pool!r}")
        explicit_attention_on_cpu(model)
        if mask is not None:
            attach(model, mask, **{"start": "paper"} | options)
        if pretrained:
            load_pretrained(model, model.pretrained_cfg | pretrained_cfg, num_classes, model_options.get("in_chans", 3))
        return model

    build.__name__ = build.__qualname__ = f"gmmvit_{name}"
    return register_model(build)


globals().update({f"gmmvit_{name}": _entry_point(name) for name in BACKBONES})
