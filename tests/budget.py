"""Kernels and bytes of a training step on CUDA, counted without a GPU.

    python tests/budget.py vit gmm [float32]    the sums, and the groups of operators that move most
    python tests/budget.py > tests/budget.json  the sums of all

The engine's own step runs on fake tensors of cuda:0, which have shapes and no numbers. Every operator below autograd is
counted: views are free, the others read their arguments and write their results once. FlexAttention is counted as the
kernels that it is compiled to. What Inductor would fuse in a compiled model cannot be counted: all else runs as it is
written.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import timm
import torch
import torch.nn.attention.flex_attention as flex
import torch.nn.functional as F
from pretend import backward_works, environment, without_driver
from pretend_kernels import FusedAttention
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gmmvit
from gmmvit.train import recipes
from gmmvit.train.processes import World
from gmmvit.train.update import Update

TABLE = Path(__file__).with_name("budget.json")  # {model: {mask: {"kernels": , "gigabytes": }}}, batch 128, bfloat16
BATCH = 128
MODELS = {"vit": 32, "deit": 224}  # the 2.7M ViT and DeiT-S, with the side of their images
MASKS = ("none", "gmm", "elm", "gab")
VIEWS = """view _unsafe_view _reshape_alias t transpose permute expand unsqueeze squeeze slice select diagonal split
    split_with_sizes unbind unfold detach alias as_strided view_as_real lift_fresh set_ device
    empty empty_like empty_strided new_empty new_empty_strided""".split()
KERNELS = {  # of operators that launch more than one
    "convolution_backward": 4,
    "native_layer_norm_backward": 2,
    "_scaled_dot_product_flash_attention_backward": 3,
    "_scaled_dot_product_efficient_attention_backward": 2,
}
FOREACH_TENSORS, FOREACH_CHUNK, FOREACH_BLOCKS = {"_fused_adamw_": 30}, 65536, 320  # a launch of multi_tensor_apply
PHASES = {"backward": "backward", "collect": "collect", "refresh": "optimiser", "step": "optimiser", "loss": "forward"}


@dataclass(frozen=True)
class Launch:
    """An operator that ran on the GPU."""

    operator: str
    dtype: str  # of its largest tensor
    phase: str
    kernels: int
    bytes: int


class Counting(TorchDispatchMode):
    """Collects the launches."""

    supports_higher_order_operators = True

    def __init__(self):
        super().__init__()
        self.launches: list[Launch] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        name = getattr(func, "overloadpacket", func).__name__
        if name not in VIEWS:
            self.add(name, _kernels(name, args), _distinct((args, kwargs)), _distinct(results))
        return results

    def add(self, name: str, kernels: int, read: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        """An operator, where it runs on the GPU."""
        tensors = [*read, *written]
        if any(tensor.device.type == "cuda" for tensor in tensors):
            dtype = str(max(tensors, key=torch.Tensor.numel).dtype)[6:]
            self.launches.append(Launch(name, dtype, _phase(), kernels, _bytes(name, read, written)))

    def flex_attention(self, query, key, value, score_mod, block_mask=None, scale=None):
        """FlexAttention's compiled kernels: the tensors that score_mod has captured are read as well."""
        captured = _distinct([cell.cell_contents for cell in score_mod.__closure__ or ()])
        return _Flex.apply(self, query, key, value, *captured)


class _Flex(torch.autograd.Function):
    @staticmethod
    def forward(ctx, counting, query, key, value, *captured):
        out, logsumexp = torch.empty_like(query), query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, *captured, out, logsumexp)
        ctx.counting = counting
        counting.add("flex_attention", 1, [query, key, value, *captured], [out, logsumexp])
        return out

    @staticmethod
    def backward(ctx, gradient):
        """A first kernel sums out * gradient for each query; the gradients of captured tensors begin at 0."""
        *inputs, out, logsumexp = ctx.saved_tensors
        wanted = list(zip(inputs, ctx.needs_input_grad[1:], strict=True))
        gradients = [torch.empty_like(tensor) if needed else None for tensor, needed in wanted]
        zeroed = [gradient for gradient in gradients[3:] if gradient is not None]
        written = [*gradients[:3], *zeroed]
        ctx.counting.add("flex_attention_backward", 1, [out, gradient], [logsumexp])
        for tensor in zeroed:
            ctx.counting.add("zeros", 1, [], [tensor])
        ctx.counting.add("flex_attention_backward", 1, [*inputs, gradient, logsumexp, logsumexp, *zeroed], written)
        return None, *gradients


def _distinct(values) -> list[torch.Tensor]:
    return list({id(value): value for value in tree_leaves(values) if isinstance(value, torch.Tensor)}.values())


def _kernels(name: str, args: tuple) -> int:
    if name.startswith(("_foreach", "_fused")):
        tensors = args[0]
        chunks = sum(-(-tensor.numel() // FOREACH_CHUNK) for tensor in tensors)
        return max(-(-len(tensors) // FOREACH_TENSORS.get(name, 64)), -(-chunks // FOREACH_BLOCKS))
    return -(-len(args[0]) // 64) if name == "cat" else KERNELS.get(name, 1)


def _bytes(name: str, read: list[torch.Tensor], written: list[torch.Tensor]) -> int:
    if name.startswith(("_foreach", "_fused")):  # in place: their results are among their arguments
        return sum(map(_size, read)) * (2 if name.startswith("_fused") else 1)
    return sum(map(_size, [*read, *written]))


def _size(tensor: torch.Tensor) -> int:
    """Bytes in memory: an expanded dimension is there once."""
    counts = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return int(np.prod(list(counts), dtype=np.int64)) * tensor.element_size()


def _phase() -> str:
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in PHASES:
            return PHASES[frame.f_code.co_name]
        frame = frame.f_back
    return "between"


def model_of(name: str, mask: str) -> torch.nn.Module:
    """A model of the budget."""
    torch.manual_seed(0)
    if name == "vit":
        return gmmvit.create_model("vit", mask=None if mask == "none" else mask)
    model = timm.create_model("deit_small_patch16_224", drop_path_rate=0.1)
    if mask != "none":
        gmmvit.attach(model, mask)
    return model


def count(name: str, mask: str, dtype: torch.dtype = torch.bfloat16, batch: int = BATCH) -> list[Launch]:
    """The launches of a training step, after a first step that makes the optimiser's state."""

    def loss(model, images, labels, step):
        return F.cross_entropy(model(images).float(), labels, label_smoothing=0.1)

    size, recipe, counting = MODELS[name], recipes.find("gmm"), Counting()
    with without_driver(swap=False), contextlib.ExitStack() as stack:
        model = model_of(name, mask).train()
        for place in (
            (torch._C, "_select_conv_backend", lambda *args, **kwargs: torch._C._ConvBackend.Cudnn),
            (torch._C, "_conv_determine_backend_memory_format", lambda *args, **kwargs: torch.contiguous_format),
            (torch, "equal", lambda one, other: True),  # of numbers, which there are none
            (flex, "flex_attention", counting.flex_attention),
            (torch.cuda, "is_available", lambda: False),  # else FakeTensorMode would try it
        ):
            stack.enter_context(mock.patch.object(*place))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # by Tensor.__deepcopy__
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(FusedAttention(torch.Tensor))
        world = World(device=torch.device("cuda:0"))
        update = Update(model, recipe, loss, torch.zeros(1, 3, size, size), 10, dtype, 0, world)
        update.working.module.train()
        part = np.arange(batch), torch.zeros(batch, 3, size, size), torch.zeros(batch, dtype=torch.int64)
        update([part], 1)
        counting.launches.clear()
        with counting:
            update([part], 2)
    return counting.launches


def total(launches: list[Launch]) -> dict[str, float]:
    """A row of the table."""
    return {
        "kernels": sum(launch.kernels for launch in launches),
        "gigabytes": round(sum(launch.bytes for launch in launches) / 1e9, 3),
    }


def show(launches: list[Launch], groups: int = 10) -> None:
    """Prints the sums and the groups that move most."""
    kernels, size = Counter(), Counter()
    for launch in launches:
        group = launch.operator, launch.dtype, launch.phase
        kernels[group] += launch.kernels
        size[group] += launch.bytes
    by_phase = Counter()
    for launch in launches:
        by_phase[launch.phase] += launch.kernels
    print("{kernels} kernels, {gigabytes:.2f} GB;".format(**total(launches)), dict(by_phase))
    for group, moved in size.most_common(groups):
        print(f"  {group[0]:50s} {group[1]:9s} {kernels[group]:4d} kernels {moved / 1e9:7.2f} GB  {group[2]}")


def main(model: str | None = None, mask: str = "none", dtype: str = "bfloat16") -> int:
    if not backward_works():
        variables, why = environment()
        if variables is None:
            sys.exit(why)
        return subprocess.run([sys.executable, *sys.argv], env=variables).returncode
    if model is None:
        print(json.dumps({name: {mask: total(count(name, mask)) for mask in MASKS} for name in MODELS}, indent=2))
    else:
        show(count(model, mask, getattr(torch, dtype)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
