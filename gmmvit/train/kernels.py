"""Which kernels CUDA takes during a run, and again afterwards those that it took before; elsewhere nothing changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.backends import cudnn
from torch.utils import deterministic as memory

from .precision import resolve
from .recipes import Recipe

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # cuBLAS reads it as it starts, which is at the first product


@dataclass(frozen=True)
class Kernels:
    """Torch's switches."""

    products: str  # of float32 matrices: "highest", or "high" for TF32
    convolutions: bool  # of float32 in TF32
    searched: bool  # cudnn tries its algorithms for each new shape
    one_order: bool  # sums in one order only, or an error
    warn: bool  # instead of that error
    filled: bool  # fresh memory, before anything is written there
    workspace: str | None

    @classmethod
    def present(cls) -> Kernels:
        """As they are now."""
        order = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        floats = torch.get_float32_matmul_precision(), cudnn.allow_tf32
        return cls(*floats, cudnn.benchmark, *order, memory.fill_uninitialized_memory, os.environ.get(WORKSPACE))

    def take(self) -> None:
        """Sets them so."""
        torch.set_float32_matmul_precision(self.products)
        cudnn.allow_tf32, cudnn.benchmark = self.convolutions, self.searched
        torch.use_deterministic_algorithms(self.one_order, warn_only=self.warn)
        memory.fill_uninitialized_memory = self.filled
        os.environ.pop(WORKSPACE, None)
        if self.workspace is not None:
            os.environ[WORKSPACE] = self.workspace


@contextmanager
def chosen(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Float32 is exact in products and convolutions alike, or TF32 in both; with `deterministic`, one order of sums."""
    if device.type != "cuda":
        yield
        return
    before = Kernels.present()
    tf32 = resolve(recipe.precision, device).name == "tf32"
    order = (before.one_order, before.warn, before.filled, before.workspace)
    if recipe.deterministic:
        order = (True, False, False, before.workspace or ":4096:8")
    searched = recipe.kind == "segmentation" and not order[0]  # whose crops have one shape in all steps
    Kernels("high" if tf32 else "highest", tf32, searched, *order).take()
    try:
        yield
    finally:
        before.take()


@contextmanager
def many_shapes() -> Iterator[None]:
    """Within, cudnn does not try its algorithms: a test meets more shapes than it can tell which is best for."""
    searched, cudnn.benchmark = cudnn.benchmark, False
    try:
        yield
    finally:
        cudnn.benchmark = searched
