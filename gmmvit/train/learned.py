"""What the masks of a model learned, in one small file (npz without pickle): each mask's place and its parameters.

Learned scalars (sigma, alpha, amplitude) are kept in float32: the mask is rebuilt exactly from its formula. Free-form
elements are kept in float16, and where a file would pass LIMIT with them, the largest are rounded to the finest
multiples of a step with which it does not; the record of each mask names its step (0: float16, nothing rounded).
The worst there is: T2T's 1,024 x 1,024 element at 64 px, which, were it pure noise, would be off by 0.8 of its sd.
"""

from __future__ import annotations

import bisect
import io
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn

from ..core.attach import masks_of
from ..core.grids import Grid
from ..core.masks import KINDS, SpatialMask

LIMIT = 300_000  # bytes of a file
MANY = 4_096  # numbers; a parameter with as many is coded, one with fewer is kept in float32
EXPONENTS = np.arange(-10, 6, 0.25)  # steps tried, as powers of two of an element's standard deviation
RECORD = "masks"  # the array that holds the masks' places, as JSON


@dataclass(frozen=True, eq=False)
class LearnedMask:
    """One mask as it was learned: where it sits, and its parameters by name."""

    name: str  # of the attention module
    kind: str  # gmm, elm, gab
    grid: Grid
    key_grid: Grid
    prefix: tuple[int, int]  # class and register tokens among queries and keys, which the mask leaves alone
    heads: int
    share_heads: bool
    reaches_output: bool
    where: str  # "scores" or "probabilities"
    parameters: dict[str, np.ndarray]
    steps: dict[str, float]  # of the parameters kept in 16 bits or fewer: what they were rounded to; 0 for float16
    options: dict = field(default_factory=dict)  # that change the weights

    def weight(self) -> np.ndarray:
        """The mask without prefix tokens, (heads or 1, Nq, Nk)."""
        place = {"prefix": self.prefix, "key_grid": self.key_grid, "share_heads": self.share_heads} | self.options
        mask = KINDS[self.kind](self.grid, self.heads, **place)
        for name, values in self.parameters.items():
            setattr(mask, name, nn.Parameter(torch.from_numpy(values)))
        with torch.no_grad():
            return mask.weight().numpy()


def save(model: nn.Module, path: str | Path, /, **arrays: np.ndarray) -> None:
    """Writes the masks of a model, in forward order, and further arrays by name; equal content makes equal bytes."""
    for name in arrays:
        if name.partition("/")[0] == RECORD:
            raise ValueError(f"{name!r}: expected a name of an array that does not begin with {RECORD!r}, its own")
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    places = {id(site.mask): site for site in getattr(model, "spatial_sites", ())}
    masks = masks_of(model)
    records = [_record(name, mask, places[id(mask)]) for name, mask in masks.items()]
    values = {
        (i, name): parameter.detach().cpu().float().numpy()
        for i, mask in enumerate(masks.values())
        for name, parameter in mask.named_parameters()
    }
    Path(path).write_bytes(_fitted(records, values, {name: np.asarray(array) for name, array in arrays.items()}))


def read(path: str | Path) -> list[LearnedMask]:
    """The masks of a file, in forward order."""
    with np.load(path, allow_pickle=False) as file:
        masks = []
        for i, record in enumerate(json.loads(str(file[RECORD]))):
            coded = record.pop("coded")
            steps = {name: step for name, (_, step) in coded.items()}
            parameters = {name: file[f"{RECORD}/{i}/{name}"] for name in record.pop("parameters")}
            parameters |= {name: _decoded(parameters[name], *code) for name, code in coded.items()}
            pairs = {key: tuple(record.pop(key)) for key in ("grid", "key_grid", "prefix")}
            masks.append(LearnedMask(**record, **pairs, parameters=parameters, steps=steps))
        return masks


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """The further arrays of a file."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files if name.partition("/")[0] != RECORD}


def _record(name: str, mask: nn.Module, site) -> dict:
    kind = next((kind for kind, each in KINDS.items() if type(mask) is each), None)
    if kind is None or not isinstance(mask, SpatialMask):
        known = ", ".join(each.__name__ for each in KINDS.values())
        raise TypeError(f"{name}: expected one of the masks that can be rebuilt ({known}), got {type(mask).__name__}")
    return {
        "name": site.name,
        "kind": kind,
        "grid": mask.grid,
        "key_grid": mask.key_grid,
        "prefix": mask.prefix,
        "heads": mask.heads,
        "share_heads": mask.share_heads,
        "reaches_output": site.reaches_output,
        "where": mask.where,
        "parameters": [parameter for parameter, _ in mask.named_parameters()],
    } | ({"options": {"underflow": True}} if getattr(mask, "underflow", False) else {})


# ---- fitting elements into the limit --------------------------------------------------------------------------------


def _fitted(records: list[dict], values: dict[tuple[int, str], np.ndarray], arrays: dict[str, np.ndarray]) -> bytes:
    """The file with everything in float16 if it fits, else with the finest step for the elements that are too large."""
    large = [key for key, value in values.items() if value.size >= MANY]

    def file(exponent: float | None) -> bytes:
        rounded = {} if exponent is None else {k for k in large if 2 * values[k].size * len(large) > LIMIT}
        content = {f"{RECORD}/{i}/{name}": value for (i, name), value in values.items()}
        codes: list[dict] = [{} for _ in records]
        for i, name in large:
            step = float(values[i, name].std() * 2**exponent) if (i, name) in rounded else 0.0
            content[f"{RECORD}/{i}/{name}"], dtype = _coded(values[i, name], step)
            codes[i][name] = dtype, step
        listed = json.dumps([record | {"coded": code} for record, code in zip(records, codes, strict=True)])
        return _zipped({RECORD: np.array(listed)} | content | arrays)

    if len(exact := file(None)) <= LIMIT:
        return exact
    finest = bisect.bisect_left(EXPONENTS, True, key=lambda exponent: len(file(exponent)) <= LIMIT)
    if finest == len(EXPONENTS):
        raise ValueError(f"learned masks: expected at most {LIMIT:,} bytes, got {len(file(EXPONENTS[-1])):,}")
    return file(EXPONENTS[finest])


def _coded(values: np.ndarray, step: float) -> tuple[np.ndarray, str]:
    """Numbers as planes of equal bytes (bytes, ...), which deflate packs best, and their type."""
    if step:
        values = np.round(values / step)
        values = values.astype("i1" if np.abs(values).max() < 128 else "<i2")
    else:
        values = values.astype("<f2")
    return np.moveaxis(values[..., None].view(np.uint8), -1, 0), values.dtype.str


def _decoded(planes: np.ndarray, dtype: str, step: float) -> np.ndarray:
    values = np.ascontiguousarray(np.moveaxis(planes, 0, -1)).view(dtype)[..., 0].astype(np.float32)
    return values * np.float32(step) if step else values


def _zipped(arrays: dict[str, np.ndarray]) -> bytes:
    """An npz as np.savez_compressed writes it, but without the time of day and the system it was written on."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy")  # of 1 January 1980
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            content = io.BytesIO()
            np.lib.format.write_array(content, np.asarray(array, order="C"), allow_pickle=False)
            archive.writestr(entry, content.getvalue())
    return buffer.getvalue()
