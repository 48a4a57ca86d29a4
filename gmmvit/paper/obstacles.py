"""What would stop rows on this machine, found in seconds: each cause once, with the rows that it stops."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch

from ..core.masks import MASKS
from ..core.ways import FLEX, way_of
from ..data.places import folder_of, locate, record_of
from ..data.sets import SETS
from ..data.workers import shared_memory_free, too_little_shared_memory
from ..train.checks import BadRow, check
from ..train.rows import Row
from .doctor import compiler, loaded, there

LEAST_DISK = 2 * 2**30  # bytes; two checkpoints of a ViT-B with AdamW's moments take as much


def obstacles(rows: Mapping[str, Row], device: torch.device) -> list[str]:
    """What would stop rows here: a line for each cause, with the rows that it stops."""
    stopped: dict[str, list[str]] = {}
    with patch("timm.layers.weight_init._trunc_normal_", lambda tensor, *_: tensor, create=True):  # half of the time
        for alike in _alike(rows.values()):
            for cause in causes(alike[0], device):
                stopped.setdefault(cause, []).extend(row.name for row in alike)
    found = [f"{_counted(names, len(rows))}: {cause}" for cause, names in stopped.items()]
    if rows and (free := shutil.disk_usage(there(Path.cwd())).free) < LEAST_DISK:
        wanted = f"expected {LEAST_DISK / 2**30:.0f} GB of free disk for checkpoints"
        found.append(f"all rows: {wanted}, got {free / 2**30:.1f} GB")
    return found


def _alike(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows that differ in their seed alone stop or run together."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(repr(replace(row, seed=0, name="any")), []).append(row)
    return list(groups.values())


def _counted(names: list[str], all_rows: int) -> str:
    few = ", ".join(names[:2]) + (", ..." if len(names) > 2 else "")
    return f"{len(names)} of {all_rows} rows ({few})"


def causes(row: Row, device: torch.device) -> list[str]:
    """The sentences about what would stop this row."""
    try:
        check(row)
    except BadRow as error:
        return str(error).splitlines()[1:]
    except ImportError as error:
        return [str(error)]  # of gmmvit.dense.need
    found = []
    if row.dataset in SETS:
        batch, size, workers, pinned = loaded(row, device)
        found.append(too_little_shared_memory(batch, size, workers, shared_memory_free(), pinned))
    else:
        found.append(_unseen(row.dataset))
    flexed = device.type == "cuda" and row.mask in MASKS and way_of(MASKS[row.mask], "cuda", 197) == FLEX
    if (flexed or getattr(row.recipe_settings, "compile", False)) and not compiler():
        found.append("torch.compile and FlexAttention: expected a C compiler (cc, gcc, clang or $CC), got none")
    return [cause for cause in found if cause]


def _unseen(dataset: str) -> str:
    """A sentence where a set of detection or segmentation is neither known nor to be found or drawn."""
    from ..dense.sets import SETS as DENSE
    from ..fetch.annotated import DRAWN

    homes = DENSE[dataset].homes
    if dataset in DRAWN or record_of(folder_of(dataset)) or locate(*(f"{home}/annotations" for home in homes)):
        return ""
    return f"{dataset} is not in {folder_of(dataset)}: `gmmvit data {dataset}` says what to do"
