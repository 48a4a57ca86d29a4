"""What a trained classifier makes of a few test images, for the figures that explain the method."""

from __future__ import annotations

import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from ..core.grids import layout
from ..core.maps import attention_maps
from ..core.masks import GaussianMixtureMask
from ..core.products import at_rest
from ..train.classify import Classification, numpy_seed
from ..train.mixing import mixed_sample
from ..train.rows import LENGTH, START_OPTIONS, Row
from ..train.start import fresh_model, position_parameters
from .axes import BEGUN, FEW
from .fields import VoidField, effective_receptive_field
from .positions import position_biases, reset_positions

IMAGES = (15, 18, 129, 245, 415)  # the GMM paper's, of Tiny-ImageNet's validation images sorted by class
FIELD_IMAGES, FIELD_BATCH = 128, 32  # test images a receptive field is averaged over
PAIRS, SIDE = 4, 64  # of test images that TransMix mixes; larger ones are kept so many pixels wide


def samples(task: Classification, model: nn.Module) -> dict[str, np.ndarray]:
    """The arrays that figures show of a classifier: heat or scores, receptive fields, position biases, mixed pairs."""
    arrays = _looks(task, model) | _fields(task, model) if of_an_arm(task.row) else {}
    return arrays | _mixed(task, model)


def of_an_arm(row: Row) -> bool:
    """Whether a row has no setting of another question, as those of an ablation have: these are drawn."""
    return row.set.keys() <= {*START_OPTIONS, *LENGTH, *BEGUN, "share_heads"}


def attention_heat(model: nn.Module, images: torch.Tensor, layer: int | str = -1) -> np.ndarray:
    """Attention of one layer, averaged over queries, then heads, up-sampled to the images by nearest: (B, H, W).

    Class and register tokens are left out, as queries (unless they are all a layer asks) and as keys.
    """
    with at_rest(model), attention_maps(model, layers=layer) as maps:
        model(images)
    if len(maps) != 1:
        raise ValueError(f"layer: expected one attention layer, got {len(maps)}: {', '.join(maps)}")
    ((name, attention),) = maps.items()  # (B, heads, Nq, Nk)
    queries, keys = attention.shape[-2:]
    rows, columns = images.shape[-2:]
    grid, prefix = layout(model, keys, (rows, columns)) or (None, 0)
    if grid is None or len(attention) != len(images):
        raise ValueError(
            f"{name} attends {tuple(attention.shape)} (images or windows, heads, queries, keys), which is no map over "
            f"{len(images)} images of {rows} x {columns}"
        )
    seen = attention[:, :, prefix if queries == keys else 0 :, prefix:].float().mean(2).mean(1)  # (B, N)
    heat = seen.view(-1, 1, *grid)
    return F.interpolate(heat, (rows, columns), mode="nearest")[:, 0].cpu().numpy()


def _looks(task: Classification, model: nn.Module) -> dict[str, np.ndarray]:
    """Of vit_heat: images (5, H, W, 3) and the heat of the last attention on them (5, H, W); of a GMM-ViT: scores."""
    row, source = task.row, task.sources["test"]
    if row.model not in ("vit", "vit_heat"):
        return {}
    order = np.argsort(source.labels, kind="stable") if row.dataset == "tiny-imagenet" else np.arange(len(source))
    places = order[list(IMAGES)]
    images, _ = task.shown("test", places)
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


def _fields(task: Classification, model: nn.Module) -> dict[str, np.ndarray]:
    """Of the ViT and of models with relative biases: `erf` (H, W), 1 at most, `erf_reset`, `erf_features`, and
    `position_bias` (layers, 2n-1, 2n-1), the mean over heads, where all layers have one grid."""
    biases = position_biases(model)
    if not biases and task.row.model != "vit":
        return {}
    found, features = _field(task, model)
    kept = {"erf": found, "erf_features": np.array(features)}
    if position_parameters(model):
        anew = reset_positions(copy.deepcopy(model), fresh_model(task.row).to(task.world.device))
        kept["erf_reset"], _ = _field(task, anew, features)
    means = [bias.mean(0) for bias in biases.values()]
    return kept | ({"position_bias": np.stack(means)} if len({mean.shape for mean in means}) == 1 else {})


def _field(task: Classification, model: nn.Module, features: str = "last") -> tuple[np.ndarray, str]:
    """A receptive field by the paper's protocol, before the norm where that one is void (erratum A5)."""
    count = min(FIELD_IMAGES, FEW.get(task.row.dataset, FIELD_IMAGES), len(task.sources["test"]))
    places = np.array_split(np.arange(count), -(-count // FIELD_BATCH))
    try:
        field = effective_receptive_field(model, (task.shown("test", some)[0] for some in places), features, count)
    except VoidField:
        return _field(task, model, "before the norm")
    return (field / field.max()).astype(np.float16), features


def _mixed(task: Classification, model: nn.Module) -> dict[str, np.ndarray]:
    """Of a TransMix run, `mix_images` (2 PAIRS, H, W, 3) in batch order, the `mix_box` of each pair in their pixels,
    `mix_attention` on the mixed images, and `mix_share`: the pasted image's share of the label by area and by TransMix.
    """
    if not task.recipe.transmix:
        return {}
    images, labels = task.shown("test", np.arange(2 * PAIRS))
    with numpy_seed(task.row.seed, 0):
        found = mixed_sample(task.mix, model, images, labels, boxes=PAIRS)
    side = min(SIDE, task.dataset.size)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (task.dataset.mean, task.dataset.std))
    kept = F.interpolate(255 * (images.cpu() * std + mean), (side, side), mode="area").round().clamp(0, 255)
    return {
        "mix_images": kept.permute(0, 2, 3, 1).to(torch.uint8).numpy(),
        "mix_box": (found["box"] * (side / task.dataset.size)).astype(np.float32),
        "mix_attention": found["attention"].astype(np.float16),
        "mix_share": found["share"],
    }
