"""Drawn discs, squares and triangles in the layouts of COCO and of ADE20K, to try a training on; they mean nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from ..dense import ade, coco
from ..dense.sets import DRAWN, SHAPES, SIDE

SMALLEST, LARGEST = 10, 22  # half the side of a shape


class Shape(NamedTuple):
    """One drawn shape."""

    kind: int  # of SHAPES
    outline: list[tuple[float, float]]  # (x, y), a polygon
    colour: tuple[int, int, int]


def scene(random: np.random.Generator, side: int = SIDE) -> tuple[np.ndarray, list[Shape]]:
    """A noisy background (side, side, 3) uint8 and one to three shapes that do not touch."""
    ground = random.integers(40, 110, 3) + random.integers(-12, 13, (side, side, 3))
    shapes, places = [], []
    for _ in range(random.integers(1, 4)):
        for _ in range(20):
            radius = int(random.integers(SMALLEST, LARGEST + 1))
            x, y = random.integers(radius, side - radius, 2).tolist()
            if all(max(abs(x - u), abs(y - v)) > radius + r + 2 for u, v, r in places):
                kind = int(random.integers(len(SHAPES)))
                colour = tuple(random.integers(140, 256, 3).tolist())
                shapes.append(Shape(kind, _outline(kind, x, y, radius), colour))
                places.append((x, y, radius))
                break
    return ground.astype(np.uint8), shapes


def _outline(kind: int, x: int, y: int, radius: int) -> list[tuple[float, float]]:
    if SHAPES[kind] == "square":
        return [(x - radius, y - radius), (x + radius, y - radius), (x + radius, y + radius), (x - radius, y + radius)]
    if SHAPES[kind] == "triangle":
        return [(x, y - radius), (x + radius, y + radius), (x - radius, y + radius)]
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    return [(round(x + radius * np.cos(a), 2), round(y + radius * np.sin(a), 2)) for a in angles]


def picture(ground: np.ndarray, shapes: list[Shape]) -> Image.Image:
    """The image."""
    image = Image.fromarray(ground)
    for shape in shapes:
        ImageDraw.Draw(image).polygon(shape.outline, fill=shape.colour)
    return image


def write_coco(home: Path, counts: dict[str, int] = DRAWN, seed: int = 0, side: int = SIDE) -> None:
    """Shapes as COCO would have them, the annotation files last."""
    written = {}
    for number, (split, count) in enumerate(counts.items()):
        random, folder = np.random.default_rng([seed, number]), home / coco.SPLITS[split]
        folder.mkdir(parents=True, exist_ok=True)
        images, annotations = [], []
        for i in range(1, count + 1):
            ground, shapes = scene(random, side)
            picture(ground, shapes).save(folder / f"{i:012d}.jpg", quality=95)
            images.append({"id": i, "file_name": f"{i:012d}.jpg", "width": side, "height": side})
            annotations += [_annotation(shape, i, len(annotations) + j + 1) for j, shape in enumerate(shapes)]
        categories = [{"id": kind + 1, "name": name} for kind, name in enumerate(SHAPES)]
        written[coco.SPLITS[split]] = {"images": images, "annotations": annotations, "categories": categories}
    (home / "annotations").mkdir(exist_ok=True)
    for name, content in written.items():
        (home / "annotations" / f"instances_{name}.json").write_text(json.dumps(content))


def _annotation(shape: Shape, image: int, number: int) -> dict:
    x, y = (np.array(values) for values in zip(*shape.outline, strict=True))
    area = 0.5 * abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1)))
    box = [float(v) for v in (x.min(), y.min(), np.ptp(x), np.ptp(y))]
    polygon = [float(value) for point in shape.outline for value in point]
    return {
        "id": number,
        "image_id": image,
        "category_id": shape.kind + 1,
        "bbox": box,
        "area": float(area),
        "iscrowd": 0,
        "segmentation": [polygon],
    }


def write_ade(home: Path, counts: dict[str, int] = DRAWN, seed: int = 0, side: int = SIDE) -> None:
    """Shapes as SceneParse150 would have them: 1 is the ground; a frame of 2 pixels has no class."""
    for number, (split, count) in enumerate(counts.items()):
        random = np.random.default_rng([seed, number])
        for i in range(1, count + 1):
            image, annotation = ade.files(home, split, f"shapes_{i:08d}")
            image.parent.mkdir(parents=True, exist_ok=True)
            annotation.parent.mkdir(parents=True, exist_ok=True)
            ground, shapes = scene(random, side)
            picture(ground, shapes).save(image, quality=95)
            labels = Image.new("L", (side, side), 1)
            for shape in shapes:
                ImageDraw.Draw(labels).polygon(shape.outline, fill=shape.kind + 2)
            ImageDraw.Draw(labels).rectangle((0, 0, side - 1, side - 1), outline=0, width=2)
            labels.save(annotation)
    lines = [
        "Idx\tRatio\tTrain\tVal\tName",
        *(f"{i}\t0\t0\t0\t{name}" for i, name in enumerate(("ground", *SHAPES), 1)),
    ]
    (home / ade.CLASSES).write_text("\n".join(lines) + "\n")
