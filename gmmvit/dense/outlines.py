"""What is wrong with the mask of an object, before pycocotools reads it: that library trusts what it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

MOST = 2**31 - 1  # pixels of an image, and of a run


def mask_problem(segmentation: object, size: tuple[int, int]) -> str:
    """A sentence about polygons, run lengths or compressed run lengths that are no mask of an image (H, W)."""
    if isinstance(segmentation, list):
        return next((wrong for polygon in segmentation if (wrong := _polygon_problem(polygon, size))), "")
    if not isinstance(segmentation, Mapping):
        return f"its mask is a {type(segmentation).__name__}: expected polygons or run lengths"
    of = segmentation.get("size")
    if not (isinstance(of, Sequence) and len(of) == 2 and all(type(side) is int for side in of)):
        return f"its mask has the size {of!r}: expected rows and columns"
    if tuple(of) != tuple(size):
        return f"its mask is {of[1]} x {of[0]}, the image {size[1]} x {size[0]}"
    counts = segmentation.get("counts")
    if isinstance(counts, (str, bytes)):
        counts = unpacked(counts)
    if not isinstance(counts, list) or not all(type(count) is int and 0 <= count <= MOST for count in counts):
        return "its run lengths are not whole numbers of at least 0"
    if sum(counts) != size[0] * size[1]:
        return f"its run lengths cover {sum(counts):,} pixels, the image has {size[0] * size[1]:,}"
    return ""


def _polygon_problem(polygon: object, size: tuple[int, int]) -> str:
    try:
        points = np.asarray(polygon, float)
    except (TypeError, ValueError, OverflowError):
        return "a polygon of its mask is no list of numbers"
    if points.ndim != 1 or len(points) < 6 or len(points) % 2:
        return f"a polygon of its mask has {points.size} numbers: expected x and y of three points or more"
    if far(points, size):
        return f"a polygon of its mask is far outside the image, {size[1]} x {size[0]}"
    return ""


def far(points: np.ndarray, size: tuple[int, int]) -> bool:
    """Whether a point (x, y, x, y, ...) is not finite, or farther outside an image (H, W) than that is large."""
    sides = np.array(size[::-1], float)
    places = points.reshape(-1, 2)
    return not (np.isfinite(places).all() and (-sides <= places).all() and (places <= 2 * sides).all())


def unpacked(packed: str | bytes) -> list[int] | None:
    """The run lengths in COCO's compressed form; None where it is cut off or holds other characters.

    A character carries five bits, the lowest first, and whether more follow; the last one's fifth bit is the sign.
    From the fourth run on, what is written is the difference to the run before the last.
    """
    codes = packed.encode("ascii", "replace") if isinstance(packed, str) else packed
    counts: list[int] = []
    value = shift = 0
    for code in codes:
        bits = code - 48
        if not 0 <= bits < 64 or shift > 30:
            return None
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            value -= (bits >> 4 & 1) << shift
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    return None if shift else counts
