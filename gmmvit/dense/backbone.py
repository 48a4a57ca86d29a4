"""timm's backbones as feature pyramids: maps of strides 4, 8, 16 and 32 of images of any size, channels first."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path

import timm
import torch
import torch.nn as nn
import torch.nn.functional as F
from timm.layers import Format
from timm.models.swin_transformer import SwinTransformerBlock
from timm.models.swin_transformer_v2 import SwinTransformerV2Block

from ..core.attach import Site, attach
from ..core.masks import SpatialMask
from ..models.parts import set_fused
from ..train.weights import from_file, from_timm, take

STRIDES = (4, 8, 16, 32)
# In other frameworks a Swin keeps windows of 7 and its shifts at every stage and size; timm's shrinks them to its maps.
ANY_SIZE = {"strict_img_size": False, "always_partition": True}
SMALL = {  # for smoke runs and tests
    "swin_micro": (
        "swin_tiny_patch4_window7_224",
        {"embed_dim": 32, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 4, 8)},
    )
}


class PaddedFirst:
    """Pads a map to whole windows before it is shifted, as other frameworks do.

    timm shifts first: then the padding lies after the rows that were wrapped around, its window mask misses them, and
    the two ends of the image attend to each other.
    """

    def _attn(self, x: torch.Tensor) -> torch.Tensor:  # (B, H, W, C)
        rows, columns = x.shape[1:3]
        below, right = -rows % self.window_size[0], -columns % self.window_size[1]
        return super()._attn(F.pad(x, (0, 0, 0, right, 0, below)))[:, :rows, :columns]


class SwinBlock(PaddedFirst, SwinTransformerBlock):
    """timm's Swin block, padded before it is shifted."""


class SwinV2Block(PaddedFirst, SwinTransformerV2Block):
    """timm's Swin-v2 block, padded before it is shifted."""


PADDED_FIRST = {SwinTransformerBlock: SwinBlock, SwinTransformerV2Block: SwinV2Block}


class Pyramid(nn.Module):
    """The four maps of a backbone; channels-last ones (Swin's, which are not normalised) get a LayerNorm each.

    Images are padded to sides that are multiples of 32.
    """

    def __init__(self, body: nn.Module):
        super().__init__()
        self.body, self.pretrained_cfg = body, body.pretrained_cfg
        self.channels = body.feature_info.channels()
        self.channels_last = body.output_fmt == Format.NHWC
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in self.channels if self.channels_last)

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:  # (B, 3, H, W) -> (B, C, H / 4, W / 4), ...
        rows, columns = images.shape[-2:]
        maps = self.body(F.pad(images, (0, -columns % STRIDES[-1], 0, -rows % STRIDES[-1])))
        if not self.channels_last:
            return maps
        return [norm(each).permute(0, 3, 1, 2) for norm, each in zip(self.norms, maps, strict=True)]

    def no_weight_decay(self) -> set[str]:
        """Tables and other positions that are learned but not pulled towards 0."""
        ends = ("relative_position_bias_table", "pos_embed")
        return {name for name, _ in self.named_parameters() if name.endswith(ends)}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.body.set_grad_checkpointing(enable)


def sites_within(pyramid: Pyramid, prefix: str) -> list[Site]:
    """The masks of a pyramid by their names in the model around it; none of those that were folded or taken off."""
    attached = {id(module) for module in pyramid.modules() if isinstance(module, SpatialMask)}
    sites = [site for site in getattr(pyramid, "spatial_sites", ()) if id(site.mask) in attached]
    return [dataclasses.replace(site, name=f"{prefix}.{site.name}") for site in sites]


def pyramid(
    name: str,
    *,
    pretrained: bool = False,
    pretrained_file: str | Path = "",
    drop_path: float = 0.0,
    mask: str = "none",
    mask_options: dict | None = None,
    device: torch.device = torch.device("cpu"),  # noqa: B008  a constant
    **options,
) -> Pyramid:
    """timm's backbone of this name as a pyramid, with a mask on its self-attentions where one is named.

    `pretrained` takes timm's weights, `pretrained_file` those of a local file; `device` is where it will run; `options`
    are the backbone's own.
    """
    base, small = SMALL.get(name, (name, {}))
    options = small | options | ({"drop_path_rate": drop_path} if drop_path else {})
    with torch.device("meta"):
        plain = timm.create_model(base, num_classes=0, **options)
    taken = inspect.signature(type(plain).__init__).parameters
    options |= {key: value for key, value in ANY_SIZE.items() if key in taken}
    out_indices = _of_strides(name, plain)
    body = timm.create_model(base, features_only=True, out_indices=out_indices, **options)
    if pretrained or pretrained_file:
        whole = timm.create_model(base, num_classes=0, **options)
        state = from_file(pretrained_file, whole) if pretrained_file else from_timm(base, num_classes=0, **options)
        take(whole, state, str(pretrained_file) or f"timm's {name}")
        _copy(whole, body)
    for block in body.modules():
        block.__class__ = PADDED_FIRST.get(type(block), type(block))
    made = Pyramid(set_fused(body, True) if device.type != "cpu" else body)
    if mask != "none":
        with torch.random.fork_rng(devices=[]):  # a head that comes next starts as it would without the mask
            attach(made, mask, **{"start": "paper"} | (mask_options or {}))
    return made


def statistics(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the channels of images in [0, 1], as the backbone wants them."""
    shipped = timm.get_pretrained_cfg(SMALL.get(name, (name,))[0])
    return shipped.mean, shipped.std


def _of_strides(name: str, plain: nn.Module) -> tuple[int, ...]:
    """Which of a backbone's maps have the strides of a pyramid."""
    strides = [info["reduction"] for info in plain.feature_info]
    if not set(STRIDES) <= set(strides):
        raise ValueError(
            f"{name} has maps of strides {', '.join(map(str, strides))}: expected a backbone with "
            f"{', '.join(map(str, STRIDES))}, such as swin_small_patch4_window7_224"
        )
    return tuple(len(strides) - 1 - strides[::-1].index(stride) for stride in STRIDES)


def _copy(whole: nn.Module, body: nn.Module) -> None:
    """The weights of a model into those of its layers that make maps; timm joins the first two words of names."""
    state = whole.state_dict()
    body.load_state_dict(
        {key: state[name] for key in body.state_dict() for name in state if key in (name, name.replace(".", "_", 1))}
    )
