"""COCO's average precision by pycocotools, and mIoU from a confusion matrix, over any number of processes."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

from ..core.errors import need
from ..train.processes import World
from .ade import IGNORED

LINES = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large")
LINES += ("AR1", "AR10", "AR100", "AR_small", "AR_medium", "AR_large")
PARTS = {"box": "bbox", "mask": "segm"}  # our word: pycocotools'


# ---- detection ------------------------------------------------------------------------------------------------------


def results(outputs: Sequence[Mapping[str, torch.Tensor]], ids: Sequence[int], categories: np.ndarray) -> list[dict]:
    """Detections of torchvision's models in COCO's results format; `ids` are those of the images."""
    tools = need("pycocotools.mask")
    found = []
    for output, image in zip(outputs, ids, strict=True):
        boxes, labels, scores = (output[key].float().cpu().numpy() for key in ("boxes", "labels", "scores"))
        masks = (output["masks"][:, 0] > 0.5).cpu().numpy().astype(np.uint8)  # (N, H, W)
        for box, label, score, mask in zip(boxes.astype(float), labels, scores, masks, strict=True):
            packed = tools.encode(np.asfortranarray(mask))
            found.append(
                {
                    "image_id": int(image),
                    "category_id": int(categories[int(label) - 1]),
                    "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]],
                    "score": float(score),
                    "segmentation": {"size": packed["size"], "counts": packed["counts"].decode()},
                }
            )
    return found


def gathered(found: list[dict], world: World) -> list[dict]:
    """The results of all processes, in each of them."""
    if world.size == 1:
        return found
    everybody: list = [None] * world.size
    dist.all_gather_object(everybody, found)
    return list(itertools.chain(*everybody))


def average_precision(truth: Path, found: list[dict], world: World = World()) -> dict[str, float]:  # noqa: B008
    """The twelve lines each of boxes and masks, box_AP and so on, in per cent; `found` are this process's results.

    A line for objects of a size that does not occur is -1, as pycocotools has it.
    """
    everything = gathered(found, world)
    names = [f"{part}_{line}" for part in PARTS for line in LINES]
    values = torch.zeros(len(names), dtype=torch.float64)
    if world.first:
        lines = [line for kind in PARTS.values() for line in _twelve(truth, everything, kind)]
        values = torch.tensor([100 * line if line >= 0 else -1 for line in lines], dtype=torch.float64)
    return dict(zip(names, world.total(values).tolist(), strict=True))


def _twelve(truth: Path, found: list[dict], kind: str) -> list[float]:
    """What pycocotools prints; without their boxes, masks are sorted into small and large by their own areas."""
    coco, evaluation = need("pycocotools.coco"), need("pycocotools.cocoeval")
    with contextlib.redirect_stdout(io.StringIO()):
        known = coco.COCO(str(truth))
        if found:
            other = "segmentation" if kind == "bbox" else "bbox"
            detected = known.loadRes([{key: value for key, value in each.items() if key != other} for each in found])
        else:
            detected = coco.COCO()
            detected.dataset = {"images": known.dataset["images"], "categories": known.dataset["categories"]}
            detected.dataset["annotations"] = []
            detected.createIndex()
        judged = evaluation.COCOeval(known, detected, kind)
        judged.evaluate()
        judged.accumulate()
        judged.summarize()
    return judged.stats.tolist()


# ---- segmentation ---------------------------------------------------------------------------------------------------


def confusion(predicted: torch.Tensor, labels: torch.Tensor, classes: int) -> torch.Tensor:
    """Pixels of each (class, predicted class), (C, C) int64; those without a class are not counted."""
    counted = labels != IGNORED
    pairs = labels[counted].long() * classes + predicted[counted].long()
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes)


def overlap(matrix: torch.Tensor, world: World = World()) -> dict[str, float]:  # noqa: B008
    """mIoU over the classes that occur in labels or predictions, and pixel accuracy, in per cent; of all processes."""
    matrix = world.total(matrix.clone()).cpu().double()  # not every device has float64
    hits, union = matrix.diag(), matrix.sum(0) + matrix.sum(1) - matrix.diag()
    occurs = union > 0
    return {
        "mIoU": 100 * (hits[occurs] / union[occurs]).mean().item(),
        "aAcc": 100 * (hits.sum() / matrix.sum()).item(),
    }


Logits = Callable[[torch.Tensor], torch.Tensor]  # (1, 3, H, W) -> (1, C, H, W)


def whole(model: Logits, image: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """Classes (H, W) of an image (3, h, w) that is seen at once, at the size of its labels."""
    return _classes(model(image[None]).float(), size)


def sliding(model: Logits, image: torch.Tensor, size: Sequence[int], crop: int = 512, step: int = 341) -> torch.Tensor:
    """Classes (H, W) from the mean of the logits of overlapping crops; the last ones end at the image's edge."""
    rows, columns = image.shape[-2:]
    total, count = 0.0, image.new_zeros(rows, columns)
    for top, left in itertools.product(starts(rows, crop, step), starts(columns, crop, step)):
        place = slice(top, top + crop), slice(left, left + crop)
        logits = model(image[None, :, *place]).float()
        if not torch.is_tensor(total):
            total = logits.new_zeros(1, logits.shape[1], rows, columns)
        total[:, :, *place] += logits
        count[place] += 1
    return _classes(total / count, size)


def starts(side: int, crop: int, step: int) -> list[int]:
    """Where the crops along a side begin."""
    return [*range(0, max(side - crop, 0), step), max(side - crop, 0)]


def _classes(logits: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return F.interpolate(logits, tuple(size), mode="bilinear", align_corners=False)[0].argmax(0)
