"""What a step computes in: the float32 weights themselves, or a half-precision copy that follows every update."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn as nn

from ..core.masks import SpatialMask
from ..core.ways import own_attention
from .norms import quicken

NORMS = (nn.LayerNorm, nn.GroupNorm)
KEPT = (SpatialMask, nn.modules.batchnorm._NormBase)


@dataclass(frozen=True)
class Precision:
    """What a step computes in, and why."""

    name: str  # float32, tf32, bfloat16 or float16
    why: str

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights and activations."""
        return torch.float32 if self.name == "tf32" else getattr(torch, self.name)


def resolve(precision: str, device: torch.device) -> Precision:
    """What `auto` or another of the recipe's words means on a device."""
    kind = device.type
    if precision == "tf32" and not (kind == "cuda" and torch.cuda.is_tf32_supported()):
        return Precision("float32", f"this {kind} has no TF32")
    if precision not in ("auto", "bfloat16") or (precision == "bfloat16" and kind != "cuda"):
        return Precision(precision, "as asked")
    if _has_bfloat16(device):
        return Precision("bfloat16", "as asked" if precision == "bfloat16" else f"this {kind} has it in hardware")
    if precision == "bfloat16":
        return Precision(
            "float16", "its gradients scaled: this cuda would only emulate the bfloat16 that was asked for"
        )
    why = f"this {kind} has no bfloat16 in hardware"
    return Precision("float16", f"its gradients scaled: {why}") if kind == "cuda" else Precision("float32", why)


def _has_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "xpu":
        return torch.xpu.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()


class Working:
    """The model that a step runs.

    In half precision it is a copy whose weights are rounded once after each update; autocast would round them, and
    every normalised activation, in each pass. Gradients and the optimiser's state stay float32. What stays float32 in
    a step as well, and is shared with the original: the masks' few numbers, and norms, whose kernels take mixed types.
    CUDA's do not: there autocast would lift every activation to float32 and back, and norms are rounded as well (their
    kernels add up in float32 all the same).
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype, device: torch.device):
        self.model, self.dtype, self.device = model, dtype, device
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.module = model
        if dtype != torch.float32:
            rounded = device.type == "cuda"
            self.module = _copied(model, dtype, KEPT if rounded else (*KEPT, *NORMS))
            for norm in self.module.modules() if rounded else ():
                if isinstance(norm, NORMS):
                    norm.__class__, norm.computed_in = _left_alone(type(norm)), dtype
            if device.type == "cpu":
                quicken(self.module)
        both = zip(model.parameters(), self.module.parameters(), strict=True)
        self.pairs = [(full, low) for full, low in both if full.requires_grad]  # low is full where it is shared

    @contextmanager
    def context(self) -> Iterator[None]:
        """What model and loss run in."""
        own = own_attention() if self.device.type == "cpu" else nullcontext()
        with own, torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            yield

    def refresh(self) -> None:
        """Rounds the updated weights into the copy."""
        rounded = [(full, low) for full, low in self.pairs if full is not low]
        if rounded:
            with torch.no_grad():
                torch._foreach_copy_([low for _, low in rounded], [full for full, _ in rounded])


def _copied(model: nn.Module, dtype: torch.dtype, kept: tuple[type[nn.Module], ...]) -> nn.Module:
    """A copy whose weights are rounded, and that shares those of modules of the kept kinds."""
    shared = {id(t): t for m in model.modules() if isinstance(m, kept) for t in (*m.parameters(), *m.buffers())}
    module = copy.deepcopy(model, dict(shared))
    for low in module.parameters():
        if id(low) not in shared:
            low.data = low.data.to(dtype)
    for low in module.buffers():
        if id(low) not in shared and low.is_floating_point() and torch.equal(low, low.to(dtype).to(low.dtype)):
            low.data = low.data.to(dtype)  # such as the 0 and -100 of a window mask
    return module


@cache
def _left_alone(kind: type[nn.Module]) -> type[nn.Module]:
    """This kind of norm, computing in the type that it is told whatever autocast thinks of norms."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return kind.forward(self, x.to(self.computed_in))

    return type(kind.__name__, (kind,), {"forward": forward})
