"""The device a run computes on: the one asked for, else the fastest there is; a sentence where it is not there."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..core.errors import unknown

COUNTS: dict[str, Callable[[], int]] = {  # how many of each kind torch finds here
    "cpu": lambda: 1,
    "cuda": lambda: torch.cuda.device_count(),
    "mps": lambda: int(torch.backends.mps.is_available()),
    "xpu": lambda: torch.xpu.device_count(),
}


def find(name: str | torch.device | None = None, local: int = 0) -> torch.device:
    """The device of this name; of a kind without a number, the one of process `local` of this machine."""
    kind, _, number = (_fastest() if name is None else str(name)).partition(":")
    if kind not in COUNTS:
        raise ValueError(unknown("device", name, COUNTS))
    count = COUNTS[kind]()
    if not count:
        present = ", ".join(kind for kind, there in COUNTS.items() if there())
        raise ValueError(f"device {name}: torch finds none on this machine; expected one of {present}")
    if number and (not number.isdigit() or int(number) >= count):
        raise ValueError(f"device {name}: expected a number below {count}, for so many are here")
    if kind in ("cpu", "mps"):
        return torch.device(kind)
    return torch.device(kind, int(number) if number else local % count)  # a queue may show each process one GPU alone


def _fastest() -> str:
    kind = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
    return kind if kind in COUNTS else "cpu"


def sent(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The values on a device; on the way to a GPU from memory that it reads by itself, so that nobody waits."""
    if device.type != "cuda" or values.device.type != "cpu":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)
