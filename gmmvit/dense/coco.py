"""COCO in its official layout: <home>/annotations/instances_<split>2017.json and <home>/<split>2017/*.jpg.

A sample is (image, annotations); boxes without area and crowds are left out of training, as are images without objects.
The official train2017 has a few boxes without area.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ..core.errors import need
from ..data.images import opened
from ..data.progress import bar
from .outlines import far as _far
from .outlines import mask_problem

SPLITS = {"train": "train2017", "test": "val2017"}
LAST = f"annotations/instances_{SPLITS['test']}.json"
PLACES = (*(f"annotations/instances_{folder}.json" for folder in SPLITS.values()), *SPLITS.values())  # of its files
PARTS = ("images", "annotations", "categories")


def _whole(value: object) -> bool:
    return type(value) is int


def _text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _box(value: object) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(type(each) in (int, float) for each in value)


FIELDS: dict[str, dict[str, Callable[[object], bool]]] = {  # what each part needs, and whether a value is such
    "images": {"id": _whole, "file_name": _text, "width": _whole, "height": _whole},
    "annotations": {"id": _whole, "image_id": _whole, "category_id": _whole, "bbox": _box},
    "categories": {"id": _whole, "name": _text},
}


@dataclass(frozen=True)
class Coco:
    """One split. Annotations are kept as one array of bytes, which workers share."""

    home: Path  # of the images
    truth: Path  # the official file
    names: np.ndarray  # (N,) bytes
    ids: np.ndarray  # (N,)
    content: np.ndarray  # (bytes,) uint8: each image's annotations as JSON, one after the other
    ends: np.ndarray  # (N,) where each ends in `content`
    categories: np.ndarray  # (C,) official ids, ascending; class c of the model is categories[c - 1]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def labels(self) -> np.ndarray:
        """The number of each sample: what a batch carries beside the images."""
        return np.arange(len(self))

    def read(self, indices: np.ndarray) -> list[tuple[Image.Image, list[dict]]]:
        """The RGB images with these numbers and what is annotated in them."""
        return [(opened(self.home / self.names[i].decode()), self.annotations(i)) for i in indices]

    def annotations(self, index: int) -> list[dict]:
        """Objects of an image: bbox (x, y, width, height), category_id, segmentation."""
        start = self.ends[index - 1] if index else 0
        return json.loads(self.content[start : self.ends[index]].tobytes())

    def target(self, annotations: Sequence[Mapping], size: tuple[int, int]) -> dict[str, torch.Tensor]:
        """What torchvision's detectors learn from: boxes (x, y, x, y), labels from 1, masks; of an image (H, W)."""
        boxes = torch.tensor([each["bbox"] for each in annotations], dtype=torch.float32).view(-1, 4)
        numbers = np.searchsorted(self.categories, [each["category_id"] for each in annotations]) + 1
        masks = [bitmap(each["segmentation"], size) for each in annotations]
        return {
            "boxes": torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1),
            "labels": torch.from_numpy(numbers.astype(np.int64)),
            "masks": torch.from_numpy(np.stack(masks)) if masks else torch.zeros(0, *size, dtype=torch.uint8),
        }


def bitmap(segmentation: list | Mapping, size: tuple[int, int]) -> np.ndarray:
    """The pixels of an object, (H, W) uint8: of polygons, of run lengths, or of compressed run lengths."""
    if wrong := mask_problem(segmentation, size):
        raise ValueError(wrong)
    tools = need("pycocotools.mask")
    if isinstance(segmentation, list):
        return tools.decode(tools.merge(tools.frPyObjects(segmentation, *size)))
    packed = isinstance(segmentation["counts"], (str, bytes))
    return tools.decode(segmentation if packed else tools.frPyObjects(segmentation, *size))


def read_split(home: Path, split: str, train: bool | None = None) -> Coco:
    """A split that was checked; for training (`train`, the split of that name) without what cannot be learned from."""
    truth = home / "annotations" / f"instances_{SPLITS[split]}.json"
    train = split == "train" if train is None else train
    content = json.loads(truth.read_text())
    objects: dict[int, list[dict]] = {image["id"]: [] for image in content["images"]}
    for each in content["annotations"]:
        if not train or not (each.get("iscrowd") or _flat(each["bbox"])):
            kept = {key: each[key] for key in ("bbox", "category_id", "segmentation")}
            objects[each["image_id"]].append(kept)
    images = [image for image in content["images"] if objects[image["id"]] or not train]
    texts = [json.dumps(objects[image["id"]]).encode() for image in images]
    categories = sorted(content["categories"], key=lambda category: category["id"])
    return Coco(
        home / SPLITS[split],
        truth,
        np.array([image["file_name"].encode() for image in images]),
        np.array([image["id"] for image in images], np.int64),
        np.frombuffer(b"".join(texts), np.uint8),
        np.cumsum([len(text) for text in texts], dtype=np.int64),
        np.array([category["id"] for category in categories], np.int64),
        tuple(category["name"] for category in categories),
    )


def problems(home: Path) -> tuple[list[str], list[str]]:
    """What is wrong with a set, by name, and what is left out of its training; every image is looked at."""
    wrong, left_out = [], []
    for folder in SPLITS.values():
        path = home / "annotations" / f"instances_{folder}.json"
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError, RecursionError) as error:
            wrong.append(f"{path} cannot be read ({error})")
            continue
        if absent := [part for part in PARTS if not isinstance(content, dict) or part not in content]:
            wrong.append(f"{path}: expected {', '.join(PARTS)}, but {' and '.join(absent)} is not there")
            continue
        if malformed := _malformed(content):
            wrong += [f"{path.name}: {sentence}" for sentence in malformed]
            continue
        wrong += _image_problems(home / folder, content["images"])
        bad, flat = _annotation_problems(content)
        wrong += [f"{path.name}: {sentence}" for sentence in bad]
        left_out += [f"{path.name}: {sentence}" for sentence in flat]
    return wrong, left_out


def _malformed(content: Mapping) -> list[str]:
    """A sentence for each entry that is not what the format says, and for each number that two entries share."""
    wrong = []
    for part, fields in FIELDS.items():
        entries = content[part]
        if not isinstance(entries, list):
            return [f"{part}: expected a list, got {type(entries).__name__}"]
        seen = set()
        for place, entry in enumerate(entries):
            entry = entry if isinstance(entry, dict) else {}
            lacking = [name for name, fits in fields.items() if not fits(entry.get(name))]
            if lacking:
                wrong.append(f"{part}[{place}]: expected {', '.join(fields)}, but its {lacking[0]} is none")
            elif entry["id"] in seen:
                wrong.append(f"{part}[{place}]: another entry has its id {entry['id']} too")
            seen.add(entry.get("id") if not lacking else None)
    return wrong


def _image_problems(folder: Path, images: Sequence[Mapping]) -> list[str]:
    def problem(image: Mapping) -> str:
        path, size = folder / image["file_name"], (image["width"], image["height"])
        if not path.is_file():
            return f"{path} is missing"
        try:
            found = opened(path).size
        except ValueError as error:
            return str(error)
        return "" if found == size else f"{path} is {found[0]} x {found[1]}, not {size[0]} x {size[1]} as annotated"

    with ThreadPoolExecutor() as pool:  # decoding releases the interpreter's lock
        found = pool.map(problem, images)
        return [each for each in bar(found, total=len(images), desc=f"decoding {folder.name}", unit="image") if each]


def _annotation_problems(content: Mapping) -> tuple[list[str], list[str]]:
    sizes = {image["id"]: (image["height"], image["width"]) for image in content["images"]}
    categories = {category["id"] for category in content["categories"]}
    wrong, left_out = [], []
    for each in bar(content["annotations"], desc="decoding masks", unit="mask"):
        name = f"annotation {each['id']} of image {each['image_id']}"
        size = sizes.get(each["image_id"])
        if size is None:
            wrong.append(f"{name}: that image is not listed")
        elif each["category_id"] not in categories:
            wrong.append(f"{name}: its category {each['category_id']} is not listed")
        elif not each.get("segmentation"):
            wrong.append(f"{name} has no mask")
        elif _far(np.asarray(each["bbox"][:2], float), size):
            wrong.append(f"{name}: its box {each['bbox']} is far outside the image, {size[1]} x {size[0]}")
        else:
            try:
                bitmap(each["segmentation"], size)
            except (ValueError, TypeError, MemoryError) as error:
                wrong.append(f"{name}: {error}")
                continue
            if _flat(each["bbox"]):
                left_out.append(f"{name} has a box without area: {each['bbox']}")
    return wrong, left_out


def _flat(box: Sequence[float]) -> bool:
    """Whether a box (x, y, width, height) has no area."""
    return not (all(map(math.isfinite, box)) and box[2] > 0 and box[3] > 0)
