"""TransMix (arXiv 2111.09833): after CutMix, the attention map and not the area of the box weighs the two labels.

mix = TransMix(cutmix_alpha=1.0, mixup_alpha=0.8, num_classes=10)
loss = mix.loss(model, images, labels)                       # one forward pass
images, target = mix(images, labels)                         # or by hand: timm's Mixup, ...
target = mix.weigh(target, attention)                        # ... and one more step

lambda is the share of the pasted image everywhere (the batch reversed): y = (1 - lambda) y_own + lambda y_pasted.
`code` (default): lambda = (area + sum(m a) / sum(a)) / 2, as in the public code; `paper`: lambda = sum(m a), where a is
the class token's attention to the patches (mean of the heads) and m the box on the patch grid.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from timm.data.mixup import Mixup, cutmix_bbox_and_lam, mixup_target

from .class_attention import ClassAttention
from .errors import unknown
from .grids import Grid, grid_of

DEFINITIONS = ("code", "paper")


class TransMix(Mixup):
    """timm's Mixup (whole batches), whose CutMix labels can be weighed by attention."""

    def __init__(self, *args: Any, definition: str = "code", num_classes: int, **options: Any):
        super().__init__(*args, num_classes=num_classes, **options)
        if definition not in DEFINITIONS:
            raise ValueError(unknown("definition of TransMix", definition, DEFINITIONS))
        if self.mode != "batch":
            raise ValueError(f"mode: expected 'batch', for one box belongs to the whole batch, got {self.mode!r}")
        if self.multi_label:
            raise ValueError("multi_label: expected False, for an image has one label here, got True")
        self.definition, self._checked = definition, False
        self.box: tuple[int, int, int, int] | None = None  # top, bottom, left, right of the last batch, if CutMix
        self._read: tuple[nn.Module, Grid, ClassAttention] | None = None  # of which model and size of images

    def __call__(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """timm's mixing; what `weigh` needs of it is kept until the next batch."""
        if len(x) % 2:
            raise ValueError(f"expected an even batch, for images are mixed in pairs, got {len(x)}")
        self._check(target)
        self.size, self.labels = tuple(x.shape[-2:]), target
        return super().__call__(x, target)

    def _check(self, target: torch.Tensor) -> None:
        """Looks at every batch of labels on a CPU, and at the first elsewhere, where a look waits for the device."""
        if target.numel() and (target.device.type == "cpu" or not self._checked):
            self._checked, low, high = True, int(target.min()), int(target.max())
            if not 0 <= low <= high < self.num_classes:
                raise ValueError(f"labels: expected 0 to {self.num_classes - 1} (num_classes), got {low} to {high}")

    def _mix_batch(self, x: torch.Tensor) -> float:
        share_kept, is_cutmix = self._params_per_batch()
        self.box = None
        if share_kept == 1.0:
            return 1.0
        if not is_cutmix:
            x.copy_(share_kept * x + (1 - share_kept) * x.flip(0))
            return share_kept
        limits = {"ratio_minmax": self.cutmix_minmax, "correct_lam": self.correct_lam}
        box, share_kept = cutmix_bbox_and_lam(x.shape, share_kept, **limits)
        self.box = top, bottom, left, right = tuple(int(side) for side in box)
        x[:, :, top:bottom, left:right] = x.flip(0)[:, :, top:bottom, left:right]  # flip copies
        return share_kept

    def weigh(self, target: torch.Tensor, attention: torch.Tensor, grid: Grid | None = None) -> torch.Tensor:
        """The target of the last batch with its labels weighed by attention (B, patches); only CutMix is re-weighed."""
        if self.box is None:
            return target
        grid = grid or grid_of(attention.shape[-1], self.size[0] / self.size[1])
        if attention.ndim != 2 or len(attention) != len(target) or not grid or grid[0] * grid[1] != attention.shape[1]:
            raise ValueError(
                f"attention: expected (batch, patches), {len(target)} by rows * columns of a grid over {self.size[0]} "
                f"x {self.size[1]} pixels, got {tuple(attention.shape)}{f' for the grid {grid}' if grid else ''}"
            )
        if not attention.isfinite().all():
            raise ValueError("attention: expected finite numbers, got some that are not")
        return self._weighed(target, attention, grid)

    def _weighed(self, target: torch.Tensor, attention: torch.Tensor, grid: Grid) -> torch.Tensor:
        share = self.share(attention.detach().to(target.dtype), grid)[:, None]  # (B, 1)
        own = mixup_target(self.labels, self.num_classes, 1.0, self.label_smoothing)  # (B, classes)
        return (1 - share) * own + share * own.flip(0)

    def share(self, attention: torch.Tensor, grid: Grid) -> torch.Tensor:
        """lambda (B,), the share of the pasted image's label, of attention (B, patches)."""
        top, bottom, left, right = self.box
        pixels = attention.new_zeros(1, 1, *self.size)
        pixels[..., top:bottom, left:right] = 1.0
        box = F.interpolate(pixels, grid, mode="nearest").flatten()  # (patches,), each by its top left pixel
        inside = attention @ box
        if self.definition == "paper":
            return inside
        return (pixels.mean() + inside / attention.sum(1)) / 2

    def loss(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of a mixed batch: the model runs once, and the same pass gives the attention."""
        x, target = self(x, y)
        if self.box is None:
            return F.cross_entropy(model(x).float(), target)
        reader = self._reader(model, x)
        logits, attention = reader.beside(model, x)
        return F.cross_entropy(logits.float(), self._weighed(target, attention, reader.grid))

    def _reader(self, model: nn.Module, x: torch.Tensor) -> ClassAttention:
        """The reader of this model for images of this size: found once, with one image."""
        if self._read is None or self._read[0] is not model or self._read[1] != self.size:
            self._read = model, self.size, ClassAttention(model, x[:1])
        return self._read[2]
