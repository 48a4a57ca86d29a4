"""What TransMix makes of a fixed batch: boxes, attention, and the pasted image's share by area and by attention."""

from __future__ import annotations

import copy

import numpy as np
import torch
import torch.nn as nn

from ..core.class_attention import ClassAttention
from ..core.products import at_rest
from ..core.transmix import TransMix

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def mixed_sample(
    mix: TransMix, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, boxes: int = 1
) -> dict[str, np.ndarray]:
    """A batch of CutMix and no other mixing, shown to the model at rest; mixer, model and images stay as they are.

    The batch is cut into `boxes` equal parts, each mixed with itself reversed under a box of its own, so that as many
    boxes as there are pairs mix images 0 and 1, 2 and 3, ...; draws from NumPy's global stream.

    box        (boxes, 4), whole numbers: top, bottom, left, right, in pixels
    attention  (B, rows, columns): of the mixed images, on the grid of patches
    share      (B, 2): the pasted image's share of the label, by the area of the box and by TransMix (its lambda)
    """
    if boxes < 1 or len(images) % (2 * boxes):
        raise ValueError(f"expected an even number of images for each of {boxes} boxes, got {len(images)} images")
    cut = copy.copy(mix)
    cut.mix_prob, cut.mixup_enabled, cut.mixup_alpha, cut.cutmix_alpha = 1.0, True, 0.0, mix.cutmix_alpha or 1.0
    mixed, found = images.clone(), []
    for part, own in zip(mixed.chunk(boxes), labels.chunk(boxes), strict=True):
        cut(part, own)  # in place
        found.append(cut.box or (0, 0, 0, 0))
    reader = ClassAttention(model, mixed[:1])
    with at_rest(model), reader.reading():
        model(mixed)
    attention, size = reader.attention(), images.shape[-2] * images.shape[-1]
    share = torch.empty(len(images), 2)
    for box, part, seen in zip(found, share.chunk(boxes), attention.chunk(boxes), strict=True):
        cut.box = top, bottom, left, right = box
        part[:, 0], part[:, 1] = (bottom - top) * (right - left) / size, cut.share(seen, reader.grid)
    maps = attention.view(-1, *reader.grid).cpu().numpy()
    return {"box": np.array(found), "attention": maps, "share": share.numpy()}


def shift_quantiles(share: np.ndarray) -> dict[str, float]:
    """Quantiles over samples of lambda - area, {shift_q05: ..., shift_q95: ...}, of the shares (B, 2) of a sample."""
    values = np.quantile(share[:, 1] - share[:, 0], QUANTILES)
    return {f"shift_q{round(100 * q):02d}": round(float(value), 6) for q, value in zip(QUANTILES, values, strict=True)}
