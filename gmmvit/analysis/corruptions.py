"""The fifteen corruptions of CIFAR-10-C, five severities each, drawn here from their definitions for 32 px.

Definitions and strengths are those of Hendrycks and Dietterich (arXiv 1903.12261) and of the code that made their
CIFAR-10-C; the draws are ours, so the images are not those of the published files. Frost is an approximation: the
original lays photographs over the image, ours noise with the mean colours, spread and spectrum of those photographs.
Images are (B, S, S, 3) in 0..1; each corruption is given a strength and a numpy Generator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from scipy import ndimage

from ..core.errors import unknown

SEVERITIES = (1, 2, 3, 4, 5)
FROST = np.array([[78, 149, 166], [201, 205, 214], [201, 205, 214], [138, 153, 165], [112, 123, 135]]) / 255  # means
FROST_SD, FROST_SLOPE = 20 / 255, -1.2  # of a 32 px cut of the photographs: spread, and amplitude by frequency
GREY = np.array([0.299, 0.587, 0.114])  # luma of red, green and blue
Strength = float | Sequence[float]


def corrupted(images: np.ndarray, kind: str, severity: int, seed: int = 0) -> np.ndarray:
    """The images (B, S, S, 3) uint8 with one corruption; the same draws for the same seed, kind and severity."""
    if kind not in CORRUPTIONS:
        raise ValueError(unknown("corruption", kind, CORRUPTIONS))
    if severity not in SEVERITIES:
        raise ValueError(f"severity: expected one of {SEVERITIES}, got {severity!r}")
    corrupt, strengths = CORRUPTIONS[kind]
    random = np.random.default_rng([seed, list(CORRUPTIONS).index(kind), severity])
    found = corrupt(images / 255, strengths[severity - 1], random)
    return (255 * np.clip(found, 0, 1) + 1e-6).astype(np.uint8)  # cut off and not rounded, as the published ones are


# ---- noise ----------------------------------------------------------------------------------------------------------


def gaussian_noise(images: np.ndarray, sd: float, random: np.random.Generator) -> np.ndarray:
    return images + random.normal(0, sd, images.shape)


def shot_noise(images: np.ndarray, photons: float, random: np.random.Generator) -> np.ndarray:
    return random.poisson(images * photons) / photons


def impulse_noise(images: np.ndarray, share: float, random: np.random.Generator) -> np.ndarray:
    """Salt or pepper, as likely, in this share of the numbers."""
    return np.where(random.random(images.shape) < share, random.random(images.shape) < 0.5, images)


# ---- blur -----------------------------------------------------------------------------------------------------------


def defocus_blur(images: np.ndarray, strength: Sequence[float], random: np.random.Generator) -> np.ndarray:
    """A disk, its edge softened by three taps of a Gaussian."""
    radius, sd = strength
    side = np.arange(-3, 4)
    disk = (side[:, None] ** 2 + side**2 <= radius**2).astype(float)
    taps = np.exp(-np.array([1, 0, 1]) / (2 * sd**2))
    soft = ndimage.convolve(disk / disk.sum(), np.outer(taps, taps) / taps.sum() ** 2, mode="constant")
    return ndimage.correlate(images, soft[None, :, :, None], mode="mirror")


def glass_blur(images: np.ndarray, strength: Sequence[float], random: np.random.Generator) -> np.ndarray:
    """Blurred, pixels taking the value of a random neighbour above and to the left, one after the other, and blurred.

    The original means to swap the two and, by an alias, copies one; so do we.
    """
    sd, rounds = strength
    blur = (0, sd, sd, 0)
    shuffled, size = ndimage.gaussian_filter(images, blur, mode="nearest"), images.shape[1]
    image = np.arange(len(images))
    for _ in range(rounds):
        for row in range(size - 1, 1, -1):
            for column in range(size - 1, 1, -1):
                dy, dx = random.integers(-1, 1, (2, len(images)))
                shuffled[:, row, column] = shuffled[image, row + dy, column + dx]
    return ndimage.gaussian_filter(shuffled, blur, mode="nearest")


def motion_blur(images: np.ndarray, strength: Sequence[float], random: np.random.Generator) -> np.ndarray:
    return _moved(images, strength, random.uniform(-45, 45, len(images)))


def _moved(images: np.ndarray, strength: Sequence[float], degrees: np.ndarray) -> np.ndarray:
    """ImageMagick's motion blur: half a Gaussian along a line of whole pixels, at an angle for each image."""
    radius, sd = strength
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sd**2))
    angle, place = np.radians(degrees)[:, None], np.arange(images.shape[1])
    right, down = (np.ceil(steps * way - 0.5).astype(int) for way in (np.cos(angle), np.sin(angle)))  # (B, steps)
    image, last, total = np.arange(len(images))[:, None, None], images.shape[1] - 1, np.zeros(images.shape)
    for step, weight in enumerate(weights / weights.sum()):
        rows, columns = (np.clip(place + way[:, step, None], 0, last) for way in (down, right))  # (B, S)
        total += weight * images[image, rows[:, :, None], columns[:, None, :]]
    return total


def zoom_blur(images: np.ndarray, most: float, random: np.random.Generator) -> np.ndarray:
    """The mean of the image and of itself magnified by 1, 1.01, ... up to this."""
    factors = np.arange(1, most, 0.01)
    return (images + sum(_magnified(images, factor) for factor in factors)) / (len(factors) + 1)


def _magnified(images: np.ndarray, factor: float) -> np.ndarray:
    """The middle of images (B, S, S, C), magnified to their size."""
    size = images.shape[1]
    seen = int(np.ceil(size / factor))
    first = (size - seen) // 2
    middle = torch.from_numpy(images[:, first : first + seen, first : first + seen]).permute(0, 3, 1, 2)
    large = F.interpolate(middle, [round(seen * factor)] * 2, mode="bilinear", align_corners=True)
    first = (large.shape[-1] - size) // 2
    return large[..., first : first + size, first : first + size].permute(0, 2, 3, 1).numpy()


# ---- weather --------------------------------------------------------------------------------------------------------


def snow(images: np.ndarray, strength: Sequence[float], random: np.random.Generator) -> np.ndarray:
    """Flakes that fall at a slant, twice, over a scene that is whiter."""
    mean, sd, size, least, radius, blur, kept = strength
    flakes = _magnified(random.normal(mean, sd, (*images.shape[:3], 1)), size)
    flakes = np.clip(np.where(flakes < least, 0, flakes), 0, 1)
    flakes = _moved(flakes, (radius, blur), random.uniform(-135, -45, len(images)))
    white = np.maximum(images, 1.5 * (images @ GREY)[..., None] + 0.5)
    return kept * images + (1 - kept) * white + flakes + flakes[:, ::-1, ::-1]


def frost(images: np.ndarray, strength: Sequence[float], random: np.random.Generator) -> np.ndarray:
    """An approximation: see above."""
    own, ice = strength
    count, size = images.shape[:2]
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size))
    waves = np.fft.rfft2(random.normal(size=(count, size, size))) * np.maximum(frequency, 1 / size) ** FROST_SLOPE
    texture = np.fft.irfft2(waves, (size, size))
    texture *= FROST_SD / texture.std()
    grounds = FROST[random.integers(len(FROST), size=count)]  # (B, 3)
    return own * images + ice * np.clip(grounds[:, None, None] + texture[..., None], 0, 1)


def fog(images: np.ndarray, strength: Sequence[float], random: np.random.Generator) -> np.ndarray:
    thick, decay = strength
    most = images.max((1, 2, 3), keepdims=True)
    return (images + thick * _plasma(images.shape[:2], decay, random)[..., None]) * most / (most + thick)


def _plasma(shape: tuple[int, int], decay: float, random: np.random.Generator) -> np.ndarray:
    """Clouds (B, S, S) in 0..1 by diamonds and squares on a torus, S a power of two."""
    count, step = shape
    heights, wobble = np.zeros((count, step, step)), 100.0

    def around(*four: np.ndarray) -> np.ndarray:
        return sum(four) / 4 + wobble * random.uniform(-wobble, wobble, four[0].shape)

    while step > 1:
        half = step // 2
        corners = heights[:, ::step, ::step]
        right, below = np.roll(corners, -1, 2), np.roll(corners, -1, 1)
        middle = around(corners, right, below, np.roll(right, -1, 1))
        heights[:, half::step, half::step] = middle
        heights[:, ::step, half::step] = around(corners, right, middle, np.roll(middle, 1, 1))
        heights[:, half::step, ::step] = around(corners, below, middle, np.roll(middle, 1, 2))
        step, wobble = half, wobble / decay
    heights -= heights.min((1, 2), keepdims=True)
    return heights / heights.max((1, 2), keepdims=True)


def brightness(images: np.ndarray, more: float, random: np.random.Generator) -> np.ndarray:
    """The value of HSV raised, hue and saturation kept: every colour times the same factor."""
    value = images.max(-1, keepdims=True)
    raised = np.minimum(value + more, 1)
    return np.where(value > 0, images * raised / np.where(value > 0, value, 1), raised)


# ---- digital --------------------------------------------------------------------------------------------------------


def contrast(images: np.ndarray, factor: float, random: np.random.Generator) -> np.ndarray:
    means = images.mean((1, 2), keepdims=True)
    return means + factor * (images - means)


def elastic_transform(images: np.ndarray, strength: Sequence[float], random: np.random.Generator) -> np.ndarray:
    """A random affine map, then smoothed displacements; height, width and jitter are shares of the side."""
    count, size = images.shape[:2]
    height, sd, jitter = (size * each for each in strength)
    corners = size // 2 + (size // 3) * np.array([[1, 1], [1, -1], [-1, -1]])  # (3, 2) of x, y
    moved = corners + random.uniform(-jitter, jitter, (count, 3, 2))
    here = np.concatenate([moved, np.ones((count, 3, 1))], -1)
    back = np.linalg.solve(here, np.broadcast_to(corners.astype(float), (count, 3, 2)))  # (B, 3, 2): x, y, 1 -> x, y
    y, x = np.mgrid[:size, :size]
    images = _looked_up(images, np.stack([x, y, np.ones_like(x)], -1).reshape(-1, 3) @ back, mirror_edge=False)
    smooth = (0, sd, sd, 0)
    shift = height * ndimage.gaussian_filter(
        random.uniform(-1, 1, (count, size, size, 2)), smooth, mode="reflect", truncate=3
    )
    return _looked_up(images, (np.stack([x, y], -1) + shift).reshape(count, -1, 2), mirror_edge=True)


def _looked_up(images: np.ndarray, places: np.ndarray, mirror_edge: bool) -> np.ndarray:
    """The images (B, S, S, 3) at places (B, S * S, 2) of x and y, bilinear; mirrored at the edge, or at its pixels."""
    size = images.shape[1]
    scaled = (2 * places + 1) / size - 1 if mirror_edge else 2 * places / (size - 1) - 1
    grid = torch.from_numpy(scaled.reshape(-1, size, size, 2))
    found = F.grid_sample(
        torch.from_numpy(images).permute(0, 3, 1, 2), grid, padding_mode="reflection", align_corners=not mirror_edge
    )
    return found.permute(0, 2, 3, 1).numpy()


def pixelate(images: np.ndarray, share: float, random: np.random.Generator) -> np.ndarray:
    """At this share of their side, and back."""

    def coarse(image: Image.Image) -> Image.Image:
        return image.resize([int(share * side) for side in image.size], Image.Resampling.BOX).resize(
            image.size, Image.Resampling.BOX
        )

    return _each(images, coarse)


def jpeg_compression(images: np.ndarray, quality: int, random: np.random.Generator) -> np.ndarray:
    def compressed(image: Image.Image) -> Image.Image:
        image.save(file := BytesIO(), "JPEG", quality=quality)
        return Image.open(file)

    return _each(images, compressed)


def _each(images: np.ndarray, change: Callable[[Image.Image], Image.Image]) -> np.ndarray:
    return (
        np.stack([np.asarray(change(Image.fromarray(each))) for each in np.rint(255 * images).astype(np.uint8)]) / 255
    )


CORRUPTIONS: dict[str, tuple[Callable[..., np.ndarray], tuple[Strength, ...]]] = {
    "gaussian_noise": (gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": (shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": (impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus_blur": (defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "glass_blur": (glass_blur, ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))),
    "motion_blur": (motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": (zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
    "snow": (
        snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "frost": (frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "fog": (fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": (brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": (contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic_transform": (
        elastic_transform,
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": (pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": (jpeg_compression, (80, 65, 58, 50, 40)),
}
