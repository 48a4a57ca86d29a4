"""torchvision's AutoAugment on a whole batch, bit for bit what it does to each image alone.

The policies, magnitudes and operations are torchvision's own; who draws what is decided here, from numbers that belong
to each image, and rotations turn one way only, counter-clockwise, as in the port that the GMM paper used. An operation
that moves pixels, or maps values, in the same way whatever the image is asked once for a table, and all images that
drew one of these are then served by one look-up. The others (equalize, sharpness, ...) are called once for all images
that drew the same operation and magnitude.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torchvision.transforms import v2

from .threads import one_thread

FILL = 128
MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
VALUES = ("Brightness", "Invert", "Posterize", "Solarize")

Action = tuple[str, float]  # operation and signed magnitude


class Policy(NamedTuple):
    """An AutoAugment policy for images of one size: pairs of steps, each with a chance and an action for each sign."""

    auto: v2.AutoAugment
    chance: np.ndarray  # (pairs, 2)
    drawn: np.ndarray  # (pairs, 2, 2): number of the action of a pair's step, as it is and with the sign turned
    actions: list[Action]  # moves first, then maps of values, then the others
    origins: torch.Tensor  # (moves, S*S): which pixel each pixel comes from, S*S for the fill
    values: torch.Tensor  # (maps, 256): what becomes of each value


@one_thread()
def policy_tables(name: str, size: int) -> Policy:
    """torchvision's policy of this name ("cifar10", "svhn", "imagenet") for images of size x size pixels."""
    auto = v2.AutoAugment(v2.AutoAugmentPolicy(name), fill=FILL)
    pairs = [[_signed(auto, step, size) for step in pair] for pair in auto._policies]
    actions = sorted({action for pair in pairs for step in pair for action in step}, key=_tables_first)
    # Tables are read off an image of pixel numbers (the fill has the number after the last) and off a grey ramp.
    numbers = torch.arange(size * size, dtype=torch.float32).view(1, 1, size, size)
    outside = v2.AutoAugment(v2.AutoAugmentPolicy(name), fill=float(size * size))
    ramp = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(-1, 3, -1, -1)
    return Policy(
        auto,
        np.array([[step[1] for step in pair] for pair in auto._policies]),
        np.array([[[actions.index(action) for action in step] for step in pair] for pair in pairs]),
        actions,
        torch.stack([operate(outside, a, numbers).flatten().long() for a in actions if a[0] in MOVES]),
        torch.stack([operate(auto, a, ramp)[0, 0].flatten() for a in actions if a[0] in VALUES]),
    )


def autoaugment(policy: Policy, images: torch.Tensor, draws: np.ndarray) -> torch.Tensor:
    """Augment images (B, 3, S, S) uint8, in place.

    draws (5, B) in [0, 1): which pair, then the chance and the sign of each of its two steps.
    """
    first_map = len(policy.origins)
    first_other = first_map + len(policy.values)
    pair = (draws[0] * len(policy.chance)).astype(int)
    for step in (0, 1):
        happens, sign = draws[1 + 2 * step : 3 + 2 * step]
        number = policy.drawn[pair, step, (sign <= 0.5).astype(int)]
        number[happens > policy.chance[pair, step]] = -1
        which = np.flatnonzero((number >= 0) & (number < first_map))
        images[which] = _moved(images[which], policy.origins[number[which]])
        which = np.flatnonzero((number >= first_map) & (number < first_other))
        images[which] = _mapped(images[which], policy.values[number[which] - first_map])
        for other in np.unique(number[number >= first_other]):
            which = np.flatnonzero(number == other)
            images[which] = operate(policy.auto, policy.actions[other], images[which])
    return images


def operate(auto: v2.AutoAugment, action: Action, images: torch.Tensor) -> torch.Tensor:
    """torchvision's operation of this name and magnitude on images (B, channels, S, S)."""
    return auto._apply_image_or_video_transform(images, *action, interpolation=auto.interpolation, fill=auto._fill)


def _signed(auto: v2.AutoAugment, step: tuple[str, float, int | None], size: int) -> tuple[Action, Action]:
    """The operation with its magnitude as it is, and when the sign turns (the same for a rotation, or without sign)."""
    name, _, bin_number = step
    magnitudes, has_sign = auto._AUGMENTATION_SPACE[name]
    table = magnitudes(10, size, size)
    magnitude = 0.0 if table is None else float(table[bin_number])
    return (name, magnitude), (name, -magnitude if has_sign and name != "Rotate" else magnitude)


def _tables_first(action: Action) -> tuple:
    return action[0] not in MOVES, action[0] not in VALUES, action


def _moved(images: torch.Tensor, origins: torch.Tensor) -> torch.Tensor:
    filled = torch.nn.functional.pad(images.flatten(2), (0, 1), value=FILL)  # (B, 3, S*S + 1)
    return filled.gather(2, origins[:, None].expand(-1, 3, -1)).view_as(images)


def _mapped(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return values.gather(1, images.flatten(1).long()).view_as(images)
