"""Detection and segmentation on any timm pyramid: Mask R-CNN on COCO, UPerNet on ADE20K (GAB, Table 4).

Nothing here is imported by gmmvit itself. Two libraries that only this package needs come with `gmmvit[dense]`; without
them everything that needs them says so.
"""

from __future__ import annotations

import importlib
from types import ModuleType

EXTRA = {"pycocotools": "pycocotools", "segmentation_models_pytorch": "segmentation-models-pytorch"}


def need(module: str) -> ModuleType:
    """A module of an optional library; an ImportError says what to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] in EXTRA:
            raise ImportError(
                f"{EXTRA[error.name.partition('.')[0]]} is not installed: detection and segmentation need "
                "`pip install gmmvit[dense]`",
                name=error.name,
            ) from error
        raise
