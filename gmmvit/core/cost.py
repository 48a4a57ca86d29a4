"""What a model costs: trainable parameters, MACs as the GMM paper counts them and in full, depth."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn as nn
from timm.layers import GELU
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from .grids import Grid, pair
from .products import at_rest
from .ways import NATIVE, avoiding


@dataclass(frozen=True)
class Cost:
    """The cost of one image."""

    parameters: int  # trainable
    macs_paper: int  # by the paper's convention: no attention product, softmax, residual or mask
    macs_full: int  # every matrix product and convolution, those of the attention included
    depth: int  # attention layers


def input_size(model: nn.Module, img_size: int | Grid | None = None) -> tuple[int, int, int]:
    """The (channels, rows, columns) of the images a model takes; those of its own size where `img_size` is None."""
    config = getattr(model, "pretrained_cfg", None) or {}
    told = getattr(model, "config", model)  # Hugging Face's; torchvision's and open_clip's say it themselves
    size = pair(getattr(told, "image_size", None)) or ()
    channels, *own = config.get("input_size", (getattr(told, "num_channels", 3), *size))
    stem = dict(model.named_modules()).get(str(config.get("first_conv")))
    # a stem may see more channels than the image has: TResNet's pixels of 4 x 4 stand side by side
    channels = getattr(model, "in_chans", None) or getattr(stem, "in_channels", channels)
    size = getattr(getattr(model, "patch_embed", None), "img_size", None) or own if img_size is None else img_size
    if not size and img_size is None:
        raise ValueError(
            f"img_size: expected a size in pixels, got None, and {type(model).__name__} does not tell its own"
        )
    sides = pair(size)
    if sides is None or any(type(side) is not int or side < 1 for side in sides):
        raise ValueError(f"img_size: expected one side of an image, or (rows, columns), in pixels, got {img_size!r}")
    return channels, *sides


def cost(model: nn.Module, img_size: int | Grid | None = None) -> Cost:
    """What one image costs, counted during one forward pass; of the model's own size where `img_size` is None."""
    weight = next(p for p in model.parameters() if p.is_floating_point())
    image = weight.new_zeros((1, *input_size(model, img_size))).requires_grad_()
    flops, layers, macs = FlopCounterMode(display=False), _AttentionLayers(), []
    explicit = sdpa_kernel(SDPBackend.MATH)  # older counters do not know the CPU's fused kernel
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d, nn.LayerNorm, nn.GELU, GELU)):
                count = module.register_forward_hook(lambda each, _, output: macs.append(paper_macs(each, output)))
                stack.callback(count.remove)
        for context in (at_rest(model), torch.enable_grad(), explicit, avoiding(NATIVE), flops, layers):
            stack.enter_context(context)
        model(image)  # with gradients: without them fused paths hide products from the counter
    return Cost(
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        macs_paper=sum(macs),
        macs_full=flops.get_total_flops() // 2,
        depth=layers.count,
    )


def paper_macs(module: nn.Module, output: torch.Tensor) -> int:
    """The MACs of one layer as ptflops 0.7 counts: bias once in Linear, per position in Conv2d (erratum G6)."""
    if isinstance(module, nn.Linear):
        return output.numel() * module.in_features + (0 if module.bias is None else module.out_features)
    if isinstance(module, nn.Conv2d):
        return output.numel() * (module.weight[0].numel() + (module.bias is not None))
    return output.numel()  # GELU, LayerNorm: one for each element


class _AttentionLayers(TorchDispatchMode):
    """Counts attention layers as they run: a softmax over scores (not over classes, (N, C)) or a fused kernel each."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = func.overloadpacket.__name__
        softmax = name in ("_softmax", "_safe_softmax") and args[0].ndim > 2
        self.count += softmax or name.startswith("_scaled_dot_product")
        return func(*args, **(kwargs or {}))
