"""What the verbs of `gmmvit` do: each is one call into the package and a printed table."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

from .core.errors import sentence, unknown
from .words import parser


def table(rows: Sequence[Sequence[object]], head: Sequence[str], left: int = 1) -> str:
    """A plain text table: so many columns to the left, the others to the right."""
    cells = [list(map(str, row)) for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    return "\n".join(line.rstrip() for line in (lines[0], "  ".join("-" * w for w in widths), *lines[1:]))


def models(arguments: argparse.Namespace) -> None:
    """Prints the backbones with their cost beside the published columns, or the list of timm's files."""
    if arguments.attachable:
        print(attachable())
        return
    from .core.cost import cost
    from .models import BACKBONES, create_model
    from .paper.published import table as published

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
    from .paper.attachable import REFUSED, WORKS

    lines = [f"gmmvit.attach works on {len(WORKS)} of timm's model files (tried with):"]
    lines += [f"  {file:28} {config.name}" for file, config in sorted(WORKS.items())]
    lines += [f"and refuses {len(REFUSED)} that mention attention but have no spatial self-attention with a softmax:"]
    lines += [f"  {file:28} {reason}" for file, (_, reason) in sorted(REFUSED.items())]
    return "\n".join(lines)


def data(arguments: argparse.Namespace) -> int:
    """Fetches data sets, or says what is there; 1 where a set that is needed is not there or not whole."""
    from . import fetch as room
    from .data import SETS
    from .dense import room as dense
    from .fetch.content import content

    rooms = dict.fromkeys(SETS, room) | dict.fromkeys(dense.SETS, dense)
    for name in arguments.names:
        if name not in rooms:
            raise ValueError(f"{unknown('data set', name, rooms)}; `gmmvit data` lists them all")
    if arguments.record and (arguments.check or len(arguments.names) != 1):
        got = " ".join([*arguments.names, *(["--check"] if arguments.check else [])])
        raise ValueError(f"--record: expected one data set and no --check, got {got or 'none'}")
    if arguments.check or not arguments.names:
        rows = [row for name in arguments.names or rooms for row in rooms[name].check([name])]
        print(sets_table(rows))
        needed = (arguments.names or sets_in_force()) if arguments.check else ()
        return int(any(row.name in needed and not row.complete for row in rows))
    for name in arguments.names:
        sources = rooms[name].obtain(name)
        print(f"{name}: " + ", ".join(f"{split} {len(source):,}" for split, source in sources.items()))
    if arguments.record:
        from .data.places import write_json

        arguments.record.parent.mkdir(parents=True, exist_ok=True)
        write_json(arguments.record, (dense.content if rooms[name] is dense else content)(name))
    return 0


def sets_table(rows: Sequence) -> str:
    """Which data sets are there and whole, and below it a sentence for what is not."""
    cells = [(r.name, _yes(r.present), _yes(r.complete), f"{r.bytes / 1e6:.1f}", r.source or "-") for r in rows]
    lines = [table(cells, ("data set", "present", "complete", "MB", "where from"))]
    lines += [f"{row.name}: {row.problem}" for row in rows if row.present and row.problem]
    absent = [row for row in rows if not row.present]
    if len(absent) > 1:
        names = ", ".join(row.name for row in absent)
        return "\n".join([*lines, f"not there: {names}; `gmmvit data NAME` fetches or draws a set, or says what to do"])
    return "\n".join([*lines, *(f"{row.name}: {row.problem}" for row in absent)])


def sets_in_force() -> set[str]:
    """The data sets of the rows of params.yaml; none where there is no such file."""
    from .paper.profiles import read
    from .paper.project import root

    path = root() / "params.yaml"
    return {row.dataset for row in read(path).rows.values()} if path.exists() else set()


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def train(arguments: argparse.Namespace) -> None:
    """Trains a row of params.yaml, or one described on the command line."""
    from .paper.profiles import find_row, parse, read
    from .train import train as run
    from .train.rows import row_name

    settings = {}
    for word in arguments.set:
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"--set {word}: expected key=value")
        try:
            settings[key] = parse(value)
        except ValueError as error:
            raise ValueError(f"--set {word} {error}") from error
    described = {k: getattr(arguments, k) for k in ("dataset", "model", "mask", "recipe", "seed")}
    threads = None
    if arguments.row:
        if given := [f"--{key}" for key, value in described.items() if value is not None] + ["--set"] * bool(settings):
            raise ValueError(f"the row {arguments.row} has its own settings: expected no {', '.join(given)}")
        params = read(arguments.params)
        row, threads = vars(find_row(params, arguments.row)), params.threads
        out = arguments.out or Path("reports") / params.profile / "runs" / row["name"]
    else:
        if missing := [f"--{key}" for key in ("dataset", "model") if described[key] is None]:
            wanted = f"a row of {arguments.params} by name, or --dataset and --model"
            raise ValueError(f"expected {wanted}, got no {' and no '.join(missing)}")
        row = {key: value for key, value in described.items() if value is not None} | {"set": settings}
        row["name"] = row_name(**row)
        out = arguments.out or Path("runs") / row["name"]
    options = {"device": arguments.device, "workers": arguments.workers, "tensorboard": arguments.tensorboard}
    run(row, out, threads=threads, **options)


def plan(arguments: argparse.Namespace) -> None:
    """Prints what the rows of a profile cost."""
    from .paper.hours import ASSUMED, measured
    from .paper.plan import plan as cost_of
    from .paper.plan import plan_table
    from .paper.profiles import read
    from .paper.project import reports
    from .paper.runs import runs

    params = read(arguments.params)
    found = cost_of(params.rows, arguments.speed)
    print(table(*plan_table(found)))
    print(f"profile {params.profile}; hours where {arguments.speed:g} images/s of the plain 2.7 M vit are trained")
    for line in measured(runs(reports(params.profile)), found.work, found.vit):
        print(line)
    print(ASSUMED)


def rows(arguments: argparse.Namespace) -> None:
    """Prints the params.yaml of a profile: the rows of its grid by name."""
    from .paper.project import file_of, params_of

    given = Path(arguments.profile)
    print(params_of(given if given.is_file() else file_of(arguments.profile)), end="")


def check(arguments: argparse.Namespace) -> None:
    """Prints the profile in force, if every name in its file is one that is safe in a path and in a shell."""
    print(_profile(arguments))


def results(arguments: argparse.Namespace) -> None:
    """Prints what the rows of a profile came to, and what a mask gained over the plain model."""
    from .paper.project import reports, rows
    from .paper.scores import HEAD, arms, scores_table

    params = rows(_profile(arguments))
    found = arms(params, reports(params.profile))
    ran = sum(arm.result.n for arm in found)
    print(table(scores_table(found), HEAD, left=3))
    print(f"profile {params.profile}: {ran} of {len(params.rows)} rows were run; scores in %, of the test set")


def _profile(arguments: argparse.Namespace) -> str:
    """The profile that was asked for, else the one in force."""
    from .paper.profiles import read
    from .paper.project import root

    return arguments.profile or read(root() / "params.yaml").profile


def report(arguments: argparse.Namespace) -> None:
    """Writes the report of a profile."""
    from .paper.project import reports, rows
    from .paper.report import write

    profile = _profile(arguments)
    print(write(rows(profile), reports(profile), arguments.out, partial=arguments.partial))


def doctor(arguments: argparse.Namespace) -> int:
    """Prints the machine, what the engine makes of it, and what would stop a row; 1 where something would."""
    from .paper.doctor import findings
    from .paper.obstacles import obstacles
    from .paper.profiles import read
    from .paper.project import root
    from .train.devices import find

    device, said = find(), ""
    try:
        params = read(root() / "params.yaml")
        profile, rows = params.profile, params.rows
    except (ValueError, OSError) as error:
        said, profile, rows = str(error), "", {}
    for name, words in findings(device, rows.values()):
        print(f"{name:14} {words}", flush=True)
    if said:
        print(f"no row is known: {said}")
        return 1
    found = obstacles(rows, device)
    print(f"profile {profile}: " + ("nothing stops its rows here" if not found else "what would stop a row"))
    print("".join(f"  {line}\n" for line in found), end="")
    return int(bool(found))


def bench(arguments: argparse.Namespace) -> None:
    """Runs one of the benchmarks; keeps its figures where that is asked for."""
    import torch

    from .bench import verbs as benches
    from .bench.harness import save
    from .paper.project import root
    from .train import devices

    name = "-".join([arguments.what, *([arguments.model] if arguments.model else [])])
    record = root() / "reports" / "bench" / f"{name}.json"
    for option in ("batch", "rounds"):
        if (value := getattr(arguments, option)) is not None and value < 1:
            raise ValueError(f"--{option}: expected at least 1, got {value}")
    device = str(devices.find(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")))
    figures, lines = getattr(benches, arguments.what)(arguments, device)
    print(lines)
    if out := arguments.out or (record if arguments.record else None):
        save(figures, out)
        print(f"saved to {out}")
    else:
        print(f"not saved: --record puts these figures into {record}, --out FILE elsewhere")


VERBS = {verb.__name__: verb for verb in (models, data, train, plan, rows, check, results, report, doctor, bench)}


def main(words: Iterable[str] | None = None) -> int:
    """Runs a verb; every error is one sentence on stderr and exit code 1; GMMVIT_DEBUG=1 shows the traceback too."""
    arguments = parser().parse_args(words if words is None else list(words))
    try:
        return VERBS[arguments.verb](arguments) or 0
    except Exception as error:
        if os.environ.get("GMMVIT_DEBUG", "0") != "0":
            traceback.print_exc()
        print(f"gmmvit {arguments.verb}: {sentence(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"gmmvit {arguments.verb}: interrupted", file=sys.stderr)
        return 130
