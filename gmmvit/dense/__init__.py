"""Detection and segmentation on any timm pyramid: Mask R-CNN on COCO, UPerNet on ADE20K (GAB, Table 4).

Nothing to the left of this room imports it: gmmvit.train.tasks looks it up by name, and finds what it asks for here.
Two libraries that only this room needs come with `gmmvit[dense]`; without them everything that needs them says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .recipes import RECIPES

if TYPE_CHECKING:
    from ..train.processes import World
    from ..train.rows import Row
    from .tasks import Dense

__all__ = ["RECIPES", "images", "macs", "problems", "task"]


def problems(row: Row, processes: int = 1) -> list[str]:
    """A sentence for each thing that is wrong with a row."""
    from .checks import problems

    return problems(row, processes)


def task(row: Row, world: World, workers: int | None = None) -> Dense:
    """What the loop trains."""
    from .tasks import TASKS

    return TASKS[row.kind](row, world, workers)


def images(row: Row) -> dict[str, int]:
    """Images of each split, before they are there."""
    from .sets import find

    return find(row.dataset).images


def macs(row: Row) -> int:
    """Full MACs of an empty square image of the recipe's shorter side."""
    from .tasks import macs

    return macs(row)
