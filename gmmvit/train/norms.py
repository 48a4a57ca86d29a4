"""LayerNorm of a step on a CPU, by native.c: torch takes twice as long, and more on widths that its vectors miss."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
import torch.nn as nn
from torch.autograd.function import once_differentiable

from ..core.native import library
from ..core.ways import NATIVE, avoided

CHUNKS = 32  # of rows, whose sums are added up in one order on any number of threads


class _Call(ctypes.Structure):
    sizes = "rows", "width", "half", "threads", "chunks"
    places = "x", "out", "dout", "dx", "weight", "bias", "mean", "inverse", "dweight", "dbias"
    _fields_ = [
        *((name, ctypes.c_int64) for name in sizes),
        *((name, ctypes.c_void_p) for name in places),
        ("eps", ctypes.c_float),
    ]


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        x, out = x.contiguous(), torch.empty(x.shape, dtype=x.dtype)
        mean, inverse = torch.empty(2, x.numel() // x.shape[-1])
        _run("forward", x, eps, out=out, weight=weight, bias=bias, mean=mean, inverse=inverse)
        ctx.save_for_backward(x, weight, mean, inverse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        dx, sums = torch.empty_like(x), torch.zeros(2, CHUNKS, x.shape[-1])
        kept = {"weight": weight, "mean": mean, "inverse": inverse, "dweight": sums[0], "dbias": sums[1]}
        _run("backward", x, 0.0, dout=gradient.to(x.dtype).contiguous(), dx=dx, **kept)
        return dx, *sums.sum(1), None


def _run(name: str, x: torch.Tensor, eps: float, **places: torch.Tensor) -> None:
    sizes = x.numel() // x.shape[-1], x.shape[-1], x.dtype == torch.bfloat16, torch.get_num_threads(), CHUNKS
    call = _Call(*sizes, x=x.data_ptr(), eps=eps, **{key: tensor.data_ptr() for key, tensor in places.items()})
    getattr(library(), f"norm_{name}")(ctypes.byref(call))


def quicken(module: nn.Module) -> None:
    """Lets the norms of a step's model on a CPU take native.c, where it can be compiled."""
    for norm in module.modules() if library() is not None else ():
        if isinstance(norm, nn.LayerNorm):
            norm.__class__ = _quick(type(norm))


@cache
def _quick(kind: type[nn.Module]) -> type[nn.Module]:
    """This kind of norm, by native.c for what that takes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        learned = self.weight is not None and self.bias is not None and self.weight.dtype == torch.float32
        fits = learned and x.dtype in (torch.float32, torch.bfloat16) and x.shape[-1:] == self.normalized_shape
        off = avoided(NATIVE) or torch.compiler.is_compiling()
        if off or not fits or not x.numel() or x.device.type != "cpu":
            return kind.forward(self, x)
        return _Norm.apply(x, self.weight, self.bias, self.eps)

    return type(kind.__name__, (kind,), {"forward": forward})
