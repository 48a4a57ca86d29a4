"""Attention with masks in one pass of a CPU: softmax(M * (scale Q K^T) + B) V by native.c, no N x N array in memory.

Where there is a C compiler (cc, with OpenMP), native.c is compiled the first time it is needed, in about two seconds,
and kept in the user's cache. Where there is none, and for what it cannot do, attention is computed as everywhere.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from .spatial import SpatialMask

MOST_WIDTH = {torch.bfloat16: 32, torch.float32: 64}  # channels of a head; wider ones are torch's: it has tiles
MOST_KEYS = 1024  # the longest that was tried is 257
SWITCH = "GMMVIT_NATIVE"  # an environment variable: 0 leaves the compiler alone
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC")
CHUNKS = 16  # pieces of work that backward is cut into, at least


class _Tensor(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("image", "head", "token", "half"))]


class _Call(ctypes.Structure):
    sizes = "images", "heads", "queries", "keys", "width", "threads", "chunks", "together"
    tensors = "q", "k", "v", "out", "dout", "dq", "dk", "dv", "bias", "dbias"
    numbers = "factor", "log_sum", "dfactor", "dshared"
    _fields_ = [
        *((name, ctypes.c_int64) for name in sizes),
        *((name, _Tensor) for name in tensors),
        *((name, ctypes.c_void_p) for name in numbers),
        ("factor_head", ctypes.c_int64),
        ("scale", ctypes.c_float),
    ]


# ---- the library ----------------------------------------------------------------------------------------------------


@cache
def library() -> ctypes.CDLL | None:
    """native.c, compiled for this processor; None where it cannot be."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or os.environ.get(SWITCH) == "0" or platform.system() != "Linux":
        return None
    source = (files(__package__) / "native.c").read_bytes()
    kind = hashlib.sha256(b"\n".join((source, *map(str.encode, FLAGS), _processor()))).hexdigest()[:16]
    try:
        made = _cache() / f"attention-{kind}.so"
        if not made.is_file():
            _compile(compiler, source, made)
        return ctypes.CDLL(str(made))
    except (OSError, subprocess.CalledProcessError):  # a cache that is read-only, a compiler without OpenMP
        return None


def _compile(compiler: str, source: bytes, made: Path) -> None:
    with NamedTemporaryFile(dir=made.parent, suffix=".so", delete=False) as file:  # whole or not at all
        command = [compiler, *FLAGS, "-x", "c", "-", "-lm", "-o", file.name]
    try:
        subprocess.run(command, input=source, check=True, capture_output=True)
        os.replace(file.name, made)
    finally:
        Path(file.name).unlink(missing_ok=True)


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "gmmvit")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _processor() -> bytes:
    """What -march=native depends on: a home may be shared by machines."""
    info = Path("/proc/cpuinfo")
    lines = info.read_bytes().splitlines() if info.exists() else []
    kinds = (b"flags", b"Features", b"model name")
    return b"\n".join(sorted({line for line in lines if line.startswith(kinds)}))


# ---- attention ------------------------------------------------------------------------------------------------------


def computed_in(operand: torch.Tensor) -> torch.dtype:
    """The type that products with this tensor have."""
    device = operand.device.type
    lowered = operand.dtype != torch.float64 and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if lowered else operand.dtype


def suits(keys: int, width: int | None, dtype: torch.dtype) -> bool:
    """Whether heads of this width are computed faster here than by torch's products."""
    return width is not None and width <= MOST_WIDTH.get(dtype, 0) and keys <= MOST_KEYS and library() is not None


def masked_attention(
    query: torch.Tensor,  # (B, heads, Nq, d)
    key: torch.Tensor,
    value: torch.Tensor,
    masks: Sequence[SpatialMask],
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
    here: bool = True,
) -> torch.Tensor:
    """softmax(M * (scale Q K^T) + attn_mask) V, the masks acting in their order; by torch's products if not `here`."""
    query, key, value = (each.to(computed_in(each)) for each in (query, key, value))
    masks = [mask.fitting((*query.shape[:-1], key.shape[-2])) for mask in masks]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    quick = here and suits(key.shape[-2], query.shape[-1], query.dtype)
    if not (quick and _fits(query, key, value, attn_mask)):
        scores = (query * scale) @ key.transpose(-2, -1)
        for mask in masks:
            scores = mask(scores)
        return (scores if attn_mask is None else _added(scores, attn_mask)).softmax(-1).to(value.dtype) @ value
    factor = bias = None
    for mask in masks:
        weight = mask.full_weight().float()  # (heads or 1, Nq, Nk)
        if mask.additive:
            bias = weight if bias is None else bias + weight
        else:
            factor = weight if factor is None else factor * weight
            bias = None if bias is None else bias * weight
    if bias is not None:
        bias = bias[None]
    if attn_mask is not None:
        bias = _as_bias(attn_mask, query.dtype) if bias is None else bias + _as_bias(attn_mask, torch.float32)
    return _Attention.apply(query, key, value, factor, bias, scale)


def _fits(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None) -> bool:
    """Whether native.c takes these operands."""
    if query.ndim != 4 or query.device.type != "cpu":
        return False
    images, heads, queries, width = query.shape
    like = key.shape == value.shape == (images, heads, key.shape[-2], width) and min(query.shape + key.shape) > 0
    one_type = query.dtype == key.dtype == value.dtype
    shape = () if attn_mask is None else attn_mask.shape
    meets = attn_mask is None or (
        2 <= len(shape) <= 4
        and shape[-2:] == (queries, key.shape[-2])
        and all(own in (1, whole) for own, whole in zip(shape[-3::-1], (heads, images), strict=False))
    )
    return like and one_type and meets


def _added(scores: torch.Tensor, attn_mask: torch.Tensor) -> torch.Tensor:
    return scores + _as_bias(attn_mask, scores.dtype)


def _as_bias(attn_mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An attention mask as numbers that are added, (images or 1, heads or 1, Nq, Nk)."""
    if attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros(attn_mask.shape, dtype=dtype).masked_fill(~attn_mask, -torch.inf)
    return attn_mask.to(dtype)[(None,) * (4 - attn_mask.ndim)]


PARTS = 3  # query, key and value, which one layer computes


class _Parts(torch.autograd.Function):
    """Tensor.unbind, without a copy backward where the gradients lie as the parts did."""

    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, dim: int) -> tuple[torch.Tensor, ...]:
        ctx.dim, ctx.shape = dim, whole.shape
        return whole.unbind(dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        first, apart = gradients[0], _distance(*gradients)
        if apart is None:
            return torch.stack(gradients, ctx.dim), None
        strides = list(first.stride())
        strides.insert(ctx.dim, apart)
        return first.as_strided(ctx.shape, strides), None


def in_parts(whole: torch.Tensor, dim: int) -> tuple[torch.Tensor, ...]:
    """whole.unbind(dim)."""
    return _Parts.apply(whole, dim)


def _distance(first: torch.Tensor, *others: torch.Tensor) -> int | None:
    """How many numbers lie between tensors of one layout that follow each other in one memory; None where they do not.

    Not less than a token's: so they are parts of a layer's output, or of its gradient.
    """
    apart = first.shape[-2] * first.shape[-1]
    same = all(each.shape == first.shape and each.stride() == first.stride() for each in others)
    one = all(each.untyped_storage().data_ptr() == first.untyped_storage().data_ptr() for each in others)
    places = [first.storage_offset() + i * apart for i in range(len(others) + 1)]
    return apart if same and one and places == [each.storage_offset() for each in (first, *others)] else None


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        factor: torch.Tensor | None,  # (heads or 1, Nq, Nk) float32
        bias: torch.Tensor | None,  # (images or 1, heads or 1, Nq, Nk)
        scale: float,
    ) -> torch.Tensor:
        query, key, value = (_side_by_side(each) for each in (query, key, value))
        factor = None if factor is None else factor.contiguous()
        bias = None if bias is None else _side_by_side(bias)
        out, log_sum = _like(query), torch.empty(query.shape[:-1])
        _run("forward", query, key, value, factor, bias, scale, log_sum, out=out)
        ctx.save_for_backward(query, key, value, factor, bias, log_sum)
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, factor, bias, log_sum = ctx.saved_tensors
        heads, keys, of_factor, of_bias = query.shape[1], key.shape[-2], *ctx.needs_input_grad[3:5]
        together = max(1, 64 // query.shape[-1])
        chunks = min(len(query), -(-CHUNKS // -(-heads // together)))
        sums = heads, chunks, query.shape[-2], keys
        whole = of_bias and bias.shape[0] > 1  # each image has its own
        dfactor = torch.zeros(sums) if of_factor else None
        dshared = torch.zeros(sums) if of_bias and not whole else None
        dbias = bias.new_empty((*query.shape[:-1], keys)) if whole else None
        dq, dk, dv = _gradients(query, key, value)
        made = {"dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "dfactor": dfactor, "dshared": dshared}
        operands = query, key, value, factor, bias, ctx.scale, log_sum
        dout = _side_by_side(gradient.to(query.dtype))
        _run("backward", *operands, dout=dout, chunks=chunks, together=together, **made)
        if dfactor is not None:
            dfactor = dfactor.sum(1).sum_to_size(factor.shape)
        if dshared is not None:
            dbias = dshared.sum(1)[None]
        dbias = None if dbias is None else dbias.sum_to_size(bias.shape).to(bias.dtype)
        return dq, dk, dv, dfactor, dbias, None


def _run(
    name: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    factor: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: float,
    log_sum: torch.Tensor,
    chunks: int = 1,
    together: int = 1,
    **made: torch.Tensor | None,
) -> None:
    images, heads, queries, width = query.shape
    given = {"q": query, "k": key, "v": value, "bias": bias, "factor": factor, "log_sum": log_sum, **made}
    told = {
        each: _operand(tensor) if each in _Call.tensors else tensor.data_ptr()
        for each, tensor in given.items()
        if tensor is not None
    }
    sizes = (images, heads, queries, key.shape[-2], width, torch.get_num_threads(), chunks, together)
    head = 0 if factor is None or len(factor) == 1 else factor.stride(0)
    call = _Call(*sizes, factor_head=head, scale=scale, **told)
    if getattr(library(), f"attention_{name}")(ctypes.byref(call)):
        raise MemoryError("no memory for one head of attention")


def _operand(tensor: torch.Tensor) -> _Tensor:
    image, head = (0 if size == 1 else stride for size, stride in zip(tensor.shape[:2], tensor.stride(), strict=False))
    return _Tensor(tensor.data_ptr(), image, head, tensor.stride(2), tensor.dtype == torch.bfloat16)


def _side_by_side(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """New memory for (B, heads, N, d), a token's heads side by side, as the layer after it wants them."""
    images, heads, tokens, width = tensor.shape
    return tensor.new_empty(images, tokens, heads, width).transpose(1, 2)


def _gradients(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """New memory for the gradients, side by side where the operands are."""
    images, heads, tokens, width = query.shape
    if _distance(*(each.transpose(1, 2) for each in (query, key, value))) is None:
        return tuple(_like(each) for each in (query, key, value))
    return query.new_empty(images, tokens, PARTS, heads, width).permute(2, 0, 3, 1, 4).unbind(0)
