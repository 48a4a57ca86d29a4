"""The command `gmmvit`: models, data, bench. Thin: each verb is one call into the package and a printed table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path


def table(rows: Sequence[Sequence[object]], head: Sequence[str]) -> str:
    """A plain text table: the first column to the left, the others to the right."""
    cells = [list(map(str, row)) for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(w) if not i else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    return "\n".join(line.rstrip() for line in (lines[0], "  ".join("-" * w for w in widths), *lines[1:]))


def models(arguments: argparse.Namespace) -> None:
    """Prints the backbones with their cost beside the published columns, or the list of timm's files."""
    if arguments.attachable:
        print(attachable())
        return
    from .measure import cost
    from .models import BACKBONES, create_model
    from .published import table as published

    printed = {(row["model"], row["mask"]): row for row in published("gmm_main")["rows"]}
    rows = []
    for name in BACKBONES:
        for mask in (None, "gmm"):
            model = create_model(name, mask=mask)
            ours, theirs = cost(model), printed.get((name, mask or "none"), {})
            rows.append([
                name + (" + gmm" if mask else ""),
                f"{ours.parameters:,}",
                unreached(model),
                f"{theirs.get('parameters_M', '')}",
                f"{ours.macs_paper / 1e6:.1f}",
                f"{theirs.get('macs_M', '')}",
                f"{ours.macs_full / 1e6:.1f}",
                ours.depth,
                theirs.get("depth", ""),
            ])  # fmt: skip
    head = (
        "model",
        "parameters",
        "unreached",
        "published M",
        "MACs M",
        "published",
        "full MACs M",
        "depth",
        "published",
    )
    print("32 px, 10 classes, mean read-out for ViT; MACs by the paper's convention, and with the attention products;")
    print(
        "unreached: mask parameters that cannot reach the logits, because only a class token is read after their layer."
    )
    print(table(rows, head))


def unreached(model: object) -> int:
    """Parameters of attached masks that cannot reach the model's output."""
    return sum(site.parameters for site in getattr(model, "spatial_sites", ()) if not site.reaches_output)


def attachable() -> str:
    """timm's model files with attention: where masks attach, and where not and why."""
    from .coverage import REFUSED, WORKS

    lines = [f"gmmvit.attach works on {len(WORKS)} of timm's model files (tried with):"]
    lines += [f"  {file:28} {config.name}" for file, config in sorted(WORKS.items())]
    lines += [f"and refuses {len(REFUSED)} that mention attention but have no spatial self-attention with a softmax:"]
    lines += [f"  {file:28} {reason}" for file, (_, reason) in sorted(REFUSED.items())]
    return "\n".join(lines)


def data(arguments: argparse.Namespace) -> None:
    """Fetches data sets, or says what is there."""
    from . import data as room

    if arguments.check or not arguments.names:
        rows = room.check(arguments.names)
        cells = [(r.name, _yes(r.present), _yes(r.complete), f"{r.bytes / 1e6:.1f}", r.source or "-") for r in rows]
        print(table(cells, ("data set", "present", "complete", "MB", "where from")))
        for row in rows:
            if row.problem:
                print(f"{row.name}: {row.problem}")
        return
    for name in arguments.names:
        sources = room.obtain(name)
        print(f"{name}: " + ", ".join(f"{split} {len(source):,}" for split, source in sources.items()))


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def bench(arguments: argparse.Namespace) -> None:
    """Runs one of the benchmarks and saves its figures."""
    import torch

    from .bench import save
    from .bench_masks import bench_masks

    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    figures = bench_masks(arguments.model, arguments.batch, arguments.rounds, device=device)
    speeds = figures["images_per_second"]
    rows = [
        (
            name,
            f"{speed:.0f}",
            *(f"{figures[kind][name]:+.1%}" if name in figures[kind] else "" for kind in ("time", "bytes")),
        )
        for name, speed in speeds.items()
    ]
    print(table(rows, ("a training step with", "images/s", "time", "bytes for backward")))
    print(f"over the faster step without a mask: {figures['without']} attention")
    save(figures, arguments.out)
    print(f"saved to {arguments.out}")


def parser() -> argparse.ArgumentParser:
    """The verbs and their options."""
    top = argparse.ArgumentParser("gmmvit", description="Spatial priors for vision-transformer attention.")
    verbs = top.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("models", help="the backbones, with their cost beside the published columns")
    verb.add_argument("--attachable", action="store_true", help="timm's model files that masks attach to")
    verb.set_defaults(call=models)
    verb = verbs.add_parser("data", help="fetch data sets, or see what is there")
    verb.add_argument("names", nargs="*", metavar="NAME")
    verb.add_argument("--check", action="store_true", help="for every set: present, complete, size, where from")
    verb.set_defaults(call=data)
    verb = verbs.add_parser("bench", help="timings as ratios, in one run")
    verb.add_argument("what", choices=("masks",))
    verb.add_argument("--model", default="gmmvit_vit", help="a model of timm (default: the 2.7M ViT)")
    verb.add_argument("--batch", type=int, default=128)
    verb.add_argument("--rounds", type=int, default=20)
    verb.add_argument("--device")
    verb.add_argument("--out", type=Path, default=Path("reports/bench/masks.json"))
    verb.set_defaults(call=bench)
    return top


def main(words: Iterable[str] | None = None) -> int:
    """Runs a verb; what is wrong with its input is one sentence on stderr and exit code 1."""
    arguments = parser().parse_args(words if words is None else list(words))
    try:
        arguments.call(arguments)
    except (ValueError, TypeError, FileNotFoundError) as error:
        print(f"gmmvit {arguments.verb}: {error}", file=sys.stderr)
        return 1
    return 0
