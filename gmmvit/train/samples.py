"""What a trained model makes of a few test images, kept with its results for the figures that explain the method."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn as nn

from ..analysis import attention_heat
from ..data.loader import stream
from ..masks import GaussianMixtureMask
from ..probe import at_rest
from .classify import Classification

IMAGES = (15, 18, 129, 245, 415)  # the GMM paper's, of Tiny-ImageNet's validation images sorted by class


def samples(task: Classification, model: nn.Module) -> dict[str, np.ndarray]:
    """Of vit_heat: images (5, H, W, 3) and the heat of the last attention on them (5, H, W); of a GMM-ViT: scores."""
    row, source = task.row, task.sources["test"]
    if row.model not in ("vit", "vit_heat"):
        return {}
    order = np.argsort(source.labels, kind="stable") if row.dataset == "tiny-imagenet" else np.arange(len(source))
    places = order[list(IMAGES)]
    ((images, _),) = stream(source, task.augmentation(train=False), [places])
    images = images.to(task.world.device)
    if row.model == "vit_heat":
        return {"images": source.read(places), "heat": attention_heat(model, images).astype(np.float16)}
    return _scores(model, images[:1])


def _scores(model: nn.Module, image: torch.Tensor) -> dict[str, np.ndarray]:
    """The first head's Q K^T / sqrt(d) in the layer in the middle, (N, N), as the mixture there meets it."""
    met = []

    def meet(mask: nn.Module, scores: tuple, options: dict) -> None:
        scale = options.get("scale", scores[1] if len(scores) > 1 else 1.0)
        met.append((scale * scores[0][0, 0]).float().cpu().numpy().astype(np.float16))

    masks = [each for each in model.modules() if isinstance(each, GaussianMixtureMask) and each.where == "scores"]
    if not masks:
        return {}
    hook = masks[len(masks) // 2].register_forward_pre_hook(meet, with_kwargs=True)
    try:
        with at_rest(model):
            model(image)
    finally:
        hook.remove()
    return {"scores": met[0]}
