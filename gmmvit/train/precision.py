"""What a step computes in: the float32 weights themselves, or a bfloat16 copy of them that follows every update."""

from __future__ import annotations

import copy

import torch
import torch.nn as nn

from ..masks import SpatialMask

KEPT = (SpatialMask, nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)


def resolve(precision: str, device: torch.device) -> tuple[torch.dtype, str]:
    """The dtype of `auto`, `float32` or `bfloat16` on a device, and why."""
    if precision != "auto":
        return getattr(torch, precision), "as asked"
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()
    if fast:
        return torch.bfloat16, f"this {device.type} has it in hardware"
    return torch.float32, f"this {device.type} has no bfloat16 in hardware"


class Working:
    """The model that a step runs.

    In bfloat16 it is a copy whose weights are rounded once after each update; autocast would round them, and every
    normalised activation, in each pass. Gradients and the optimiser's state stay float32. What stays float32 in a step
    as well, and is shared with the original: the masks' few numbers, and norms (their kernels take mixed types).
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype, device: torch.device):
        self.model, self.dtype, self.device = model, dtype, device
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if dtype == torch.float32:
            self.module, self.pairs = model, []
            return
        kept = [m for m in model.modules() if isinstance(m, KEPT)]
        shared = {id(t): t for m in kept for t in (*m.parameters(), *m.buffers())}
        self.module = copy.deepcopy(model, dict(shared))
        for low in self.module.parameters():
            if id(low) not in shared:
                low.data = low.data.to(dtype)
        for low in self.module.buffers():
            if id(low) not in shared and low.is_floating_point() and torch.equal(low, low.to(dtype).to(low.dtype)):
                low.data = low.data.to(dtype)  # such as the 0 and -100 of a window mask
        both = zip(model.parameters(), self.module.parameters(), strict=True)
        self.pairs = [(full, low) for full, low in both if full is not low and full.requires_grad]

    def context(self) -> torch.autocast:
        """What model and loss run in."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32)

    def collect(self) -> None:
        """Adds the gradients of the copy to those of the original."""
        for full, low in self.pairs:
            if low.grad is not None:
                full.grad = low.grad.to(full.dtype) if full.grad is None else full.grad.add_(low.grad)
                low.grad = None

    def refresh(self) -> None:
        """Rounds the updated weights into the copy."""
        if self.pairs:
            with torch.no_grad():
                torch._foreach_copy_([low for _, low in self.pairs], [full for full, _ in self.pairs])
