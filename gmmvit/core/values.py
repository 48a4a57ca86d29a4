"""Options of masks, checked: a pair of whole numbers, a number, draws of a normal; constants that keep bits."""

from __future__ import annotations

import torch


def whole_pair(name: str, value: object, least: int) -> tuple[int, int]:
    numbers = value if isinstance(value, (tuple, list)) else ()
    if len(numbers) != 2 or not all(isinstance(n, int) and n >= least for n in numbers):
        raise ValueError(f"{name}: expected two whole numbers of at least {least} (rows, columns), got {value!r}")
    return numbers[0], numbers[1]


def normal(name: str, mean_sd: tuple[float, float], shape: tuple[int, ...]) -> torch.Tensor:
    if not isinstance(mean_sd, (tuple, list)) or len(mean_sd) != 2:
        raise ValueError(f"{name}: expected (mean, standard deviation), got {mean_sd!r}")
    mean, sd = (number(name, value) for value in mean_sd)
    if sd < 0:
        raise ValueError(f"{name}: expected a standard deviation of at least 0, got {mean_sd!r}")
    return mean + sd * torch.randn(shape)


def number(name: str, value: object) -> float:
    """A number whose square float32 can hold, too."""
    most = torch.finfo(torch.float32).max ** 0.5
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < most:
        raise ValueError(f"{name}: expected a finite number below {most:.1e}, got {value!r}")
    return float(value)


# ---- constants ------------------------------------------------------------------------------------------------------


def as_bits(values: torch.Tensor) -> torch.Tensor:
    """Numbers of at least 0 as the bits of float32, which model.half() cannot round.

    In bfloat16 neighbouring distances would be equal.
    """
    return values.float().view(torch.int32)


def from_bits(bits: torch.Tensor, plain: bool = False) -> torch.Tensor:
    """The numbers, float32; by plain operators where they are to be exported."""
    if not plain:
        return bits.view(torch.float32)
    # ONNX cannot read one type as another: 2^(exponent - 150) times the 24 bits that float32 keeps, exactly
    kept = (bits & 0x7FFFFF) + 0x800000
    return kept.float() * 2.0 ** ((bits >> 23) - 150).float()
