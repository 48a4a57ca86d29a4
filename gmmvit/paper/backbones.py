"""What `gmmvit models` prints: the backbones with their cost beside the published columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .published import table as published

if TYPE_CHECKING:
    import torch.nn as nn

ABOUT = """32 px, 10 classes, mean read-out for ViT; MACs by the paper's convention, and with the attention products;
unreached: mask parameters that cannot reach the logits, because only a class token is read after their layer."""
HEAD = ("model", "parameters", "unreached", "published M", "MACs M", "published", "full MACs M", "depth", "published")


def costs(names: Iterable[str] = ()) -> list[tuple]:
    """Rows of the table, counted now: each backbone, or those named, plain and with the GMM mask."""
    from ..core.cost import cost
    from ..models import BACKBONES, create_model

    printed = {(row["model"], row["mask"]): row for row in published("gmm_main")["rows"]}
    rows = []
    for name in names or BACKBONES:
        for mask in ("none", "gmm"):
            model = create_model(name, mask=mask)
            ours, theirs = cost(model), printed.get((name, mask), {})
            rows.append((
                name + (" + gmm" if mask == "gmm" else ""),
                f"{ours.parameters:,}",
                unreached(model),
                f"{theirs.get('parameters_M', '')}",
                f"{ours.macs_paper / 1e6:.1f}",
                f"{theirs.get('macs_M', '')}",
                f"{ours.macs_full / 1e6:.1f}",
                ours.depth,
                theirs.get("depth", ""),
            ))  # fmt: skip
    return rows


def unreached(model: nn.Module) -> int:
    """Parameters of attached masks that cannot reach the model's output."""
    return sum(site.parameters for site in getattr(model, "spatial_sites", ()) if not site.reaches_output)
