"""The command `gmmvit`: its words, and its verbs, each of which is one call into the package and a printed table.

The program runs this file by its path (see gmmvit_command.py), so that --help and wrong words are answered before torch
is loaded: the package is imported inside the verbs alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """The verbs and their options."""
    top = argparse.ArgumentParser("gmmvit", description="Spatial priors for vision-transformer attention.")
    verbs = top.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("models", help="the backbones, with their cost beside the published columns")
    verb.add_argument("--attachable", action="store_true", help="timm's model files that masks attach to")
    verbs.add_parser("masks", help="the masks: formula, learned numbers, options")
    verb = verbs.add_parser("data", help="fetch data sets, or see what is there")
    verb.add_argument("names", nargs="*", metavar="NAME")
    verb.add_argument("--check", action="store_true", help="for every set: present, complete, size, where from")
    verb.add_argument("--record", type=Path, metavar="FILE", help="write down what the set contains")
    verb = verbs.add_parser("train", help="train one row, resumable; in many processes: torchrun -m gmmvit train ...")
    verb.add_argument("row", nargs="?", metavar="ROW", help="a row of params.yaml, by name")
    verb.add_argument("--params", type=Path, metavar="FILE", help="the file with the rows: the project's params.yaml")
    verb.add_argument("--dataset")
    verb.add_argument("--model")
    verb.add_argument("--mask", help="a name of `gmmvit masks`, or none")
    verb.add_argument("--recipe", help="short, smoke, gmm, gab-finetune, gab-imagenet, deit-transmix, coco-3x, ...")
    verb.add_argument("--seed", type=int)
    verb.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting, such as epochs=3")
    verb.add_argument("--out", type=Path, help="where the results go")
    verb.add_argument("--device")
    verb.add_argument("--workers", type=int, help="processes that load images")
    verb.add_argument("--tensorboard", action="store_true", help="scalars for TensorBoard as well")
    verb = verbs.add_parser("plan", help="what the rows of a profile cost")
    verb.add_argument("params", nargs="?", type=Path, metavar="FILE", help="default: the project's params.yaml")
    verb.add_argument("--speed", type=float, default=350.0, help="images/s of the plain vit on the device (350)")
    verb = verbs.add_parser("rows", help="the params.yaml of a profile: the rows of its grid, by name")
    verb.add_argument("profile", metavar="PROFILE", help="its name, or a file")
    verbs.add_parser("check", help="is every name in params.yaml safe? prints the profile in force")
    verb = verbs.add_parser("results", help="what the rows that were run came to: mean, spread, gain of a mask")
    verb.add_argument("profile", nargs="?", metavar="PROFILE", help="default: the one in params.yaml")
    verb = verbs.add_parser("analyse", help="what figures show of images, made of the weights that are here")
    verb.add_argument("names", nargs="*", metavar="PROFILE | ROW", help="default: every row of params.yaml")
    verb = verbs.add_parser("report", help="a page of what was run and found: reports/PROFILE/index.html")
    verb.add_argument("profile", nargs="?", metavar="PROFILE", help="default: the one in params.yaml")
    verb.add_argument("--partial", action="store_true", help="of the tables and figures in reports/PROFILE/partial")
    verb.add_argument("--out", type=Path, metavar="FOLDER", help="where the page goes")
    verbs.add_parser("doctor", help="the machine, what is chosen on it, and what would stop a row of the profile")
    verb = verbs.add_parser("bench", help="timings as ratios, in one run")
    verb.add_argument("what", choices=("masks", "train", "data", "mix", "dense"))
    verb.add_argument("--model", help="masks, dense: a model of timm (the 2.7M ViT, Swin-S); train: one (all five)")
    verb.add_argument("--dataset", default="cifar10-mini", help="data: the set whose images are augmented")
    verb.add_argument("--batch", type=int, default=128)
    verb.add_argument("--rounds", type=int, help="best of so many (masks 20, mix 10, train, data and dense 5)")
    verb.add_argument("--device")
    verb.add_argument("--ways", action="store_true", help="masks: also from how many keys on a fused kernel is taken")
    kept = verb.add_mutually_exclusive_group()
    kept.add_argument("--record", action="store_true", help="keep the figures in reports/bench/WHAT[-MODEL].json")
    kept.add_argument("--out", type=Path, metavar="FILE", help="keep the figures here")
    return top


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
        from gmmvit.paper.attachable import listed

        print(listed())
    else:
        from gmmvit.paper.backbones import ABOUT, HEAD
        from gmmvit.paper.counted import backbones

        print(ABOUT, table(backbones(), HEAD), sep="\n")


def masks(arguments: argparse.Namespace) -> None:
    """Prints the registered masks: how many numbers each learns, its formula and paper, its options."""
    from gmmvit.core.masks import MASKS, options_of

    head = "mask", "on scores", "numbers a layer of a ViT-Ti/16", "options"
    rows = []
    for name, kind in MASKS.items():
        options = ", ".join(f"{option}={default!r}" for option, (default, _) in options_of(name).items())
        learned = sum(parameter.numel() for parameter in kind((14, 14), heads=3).parameters())
        rows.append((name, kind.words()[0], f"{learned:,}", options))
    print(table(rows, head, left=4), "", sep="\n")
    print(*(f"{name}: {(kind.__doc__ or '').splitlines()[0]}" for name, kind in MASKS.items()), sep="\n")


def data(arguments: argparse.Namespace) -> int:
    """Fetches data sets, or says what is there; 1 where a set that is needed is not there or not whole."""
    from gmmvit import fetch

    for name in arguments.names:
        fetch.keeper(name)  # an unknown one is told before anything is fetched
    if arguments.record and (arguments.check or len(arguments.names) != 1):
        got = " ".join([*arguments.names, *(["--check"] if arguments.check else [])])
        raise ValueError(f"--record: expected one data set and no --check, got {got or 'none'}")
    if arguments.check or not arguments.names:
        found = fetch.check(arguments.names)
        cells = [(f.name, *_yes(f.present, f.complete), f"{f.bytes / 1e6:.1f}", f.source or "-") for f in found]
        print(table(cells, ("data set", "present", "complete", "MB", "where from")), *fetch.sentences(found), sep="\n")
        needed = (arguments.names or _sets_in_force()) if arguments.check else ()
        return int(any(each.name in needed and not each.complete for each in found))
    for name in arguments.names:
        sources = fetch.record(name, arguments.record) if arguments.record else fetch.obtain(name)
        print(f"{name}: " + ", ".join(f"{split} {len(source):,}" for split, source in sources.items()))
    return 0


def _yes(*values: bool) -> list[str]:
    return ["yes" if value else "no" for value in values]


def _sets_in_force() -> set[str]:
    """The data sets of the rows of the project's params.yaml; none where there is no such file."""
    from gmmvit.paper.project import root

    return set(_params().datasets) if (root() / "params.yaml").exists() else set()


def _params(path: Path | None = None):
    """The rows of a file; of the project's params.yaml where none is named."""
    from gmmvit.paper.profiles import read
    from gmmvit.paper.project import root

    return read(path or root() / "params.yaml")


def train(arguments: argparse.Namespace) -> None:
    """Trains a row of params.yaml, or one described on the command line."""
    from gmmvit.paper.profiles import find_row, parse
    from gmmvit.paper.project import root, runs_folder
    from gmmvit.train import train as run
    from gmmvit.train.rows import row_name

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
        params = _params(arguments.params)
        row, threads = vars(find_row(params, arguments.row)), params.threads
        folder = runs_folder(params.profile)
    else:
        if missing := [f"--{key}" for key in ("dataset", "model") if described[key] is None]:
            wanted = f"a row of {arguments.params or 'params.yaml'} by name, or --dataset and --model"
            raise ValueError(f"expected {wanted}, got no {' and no '.join(missing)}")
        row = {key: value for key, value in described.items() if value is not None} | {"set": settings}
        row["name"] = row_name(**row)
        folder = root() / "runs"
    options = {"device": arguments.device, "workers": arguments.workers, "tensorboard": arguments.tensorboard}
    run(row, arguments.out or folder / row["name"], threads=threads, **options)


def plan(arguments: argparse.Namespace) -> None:
    """Prints what the rows of a profile cost."""
    from gmmvit.paper.hours import ASSUMED, measured
    from gmmvit.paper.plan import plan as cost_of
    from gmmvit.paper.plan import plan_table
    from gmmvit.paper.project import reports
    from gmmvit.paper.runs import its_own, runs

    params = _params(arguments.params)
    found = cost_of(params.rows, arguments.speed)
    print(table(*plan_table(found)))
    print(f"profile {params.profile}; hours where {arguments.speed:g} images/s of the plain 2.7 M vit are trained")
    ended = its_own(params.rows, runs(reports(params.profile)))
    print(*measured(ended, found.work, found.vit), ASSUMED, sep="\n")


def rows(arguments: argparse.Namespace) -> None:
    """Prints the params.yaml of a profile: the rows of its grid by name."""
    from gmmvit.paper.project import file_of, params_of

    given = Path(arguments.profile)
    print(params_of(given if given.is_file() else file_of(arguments.profile)), end="")


def check(arguments: argparse.Namespace) -> None:
    """Prints the profile in force, if every name in its file is one that is safe in a path and in a shell."""
    print(_params().profile)


def results(arguments: argparse.Namespace) -> None:
    """Prints what the rows of a profile came to, and what a mask gained over the plain model."""
    from gmmvit.paper.runs import DONE, frame
    from gmmvit.paper.scores import HEAD, scores_table

    profile = arguments.profile or _params().profile
    rows = frame(profile)
    print(table(scores_table(rows), HEAD, left=3))
    print(f"profile {profile}: {(rows.state == DONE).sum()} of {len(rows)} rows were run; scores in %, of the test set")


def analyse(arguments: argparse.Namespace) -> None:
    """Makes what figures show of images from the weights that are here: of some rows, or of all rows of a profile."""
    from gmmvit.analysis.drawn import analysed
    from gmmvit.analysis.shared import shared
    from gmmvit.paper.profiles import find_row
    from gmmvit.paper.project import rows, runs_folder

    names, params = arguments.names, _params()
    if len(names) == 1 and names[0] not in params.rows and runs_folder(names[0]).is_dir():
        names, params = [], rows(names[0])
    runs = [runs_folder(params.profile) / find_row(params, name).name for name in names or params.rows]
    if names and (missing := [run for run in runs if not (run / "weights.pt").is_file()]):
        raise FileNotFoundError(f"{missing[0].name}: expected weights.pt in {missing[0]}, where training leaves it")
    for line in chain(analysed(runs), shared(runs, params.rest.get("shared_weights") or ())):
        print(line, flush=True)


def report(arguments: argparse.Namespace) -> None:
    """Writes the report of a profile."""
    from gmmvit.paper.project import reports, rows
    from gmmvit.paper.report import write

    profile = arguments.profile or _params().profile
    print(write(rows(profile), reports(profile), arguments.out, partial=arguments.partial))


def doctor(arguments: argparse.Namespace) -> int:
    """Prints the machine, what the engine makes of it, and what would stop a row; 1 where something would."""
    from gmmvit.paper.doctor import findings
    from gmmvit.paper.obstacles import obstacles
    from gmmvit.train.devices import find

    device, said = find(), ""
    try:
        params = _params()
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

    from gmmvit.bench import verbs as benches
    from gmmvit.bench.harness import save
    from gmmvit.paper.project import root
    from gmmvit.train import devices

    name = "-".join([arguments.what, *([arguments.model] if arguments.model else [])])
    record = root() / "reports" / "bench" / f"{name}.json"
    for option in ("batch", "rounds"):
        if (value := getattr(arguments, option)) is not None and value < 1:
            raise ValueError(f"--{option}: expected at least 1, got {value}")
    device = str(devices.find(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")))
    figures, parts = getattr(benches, arguments.what)(arguments, device)
    print(*(part if isinstance(part, str) else table(*part) for part in parts), sep="\n")
    if out := arguments.out or (record if arguments.record else None):
        save(figures, out)
        print(f"saved to {out}")
    else:
        print(f"not saved: --record puts these figures into {record}, --out FILE elsewhere")


VERBS = {
    verb.__name__: verb
    for verb in (models, masks, data, train, plan, rows, check, results, analyse, report, doctor, bench)
}


def main(words: Iterable[str] | None = None) -> int:
    """Runs a verb; every error is one sentence on stderr and exit code 1; GMMVIT_DEBUG=1 shows the traceback too."""
    arguments = parser().parse_args(words if words is None else list(words))
    if "gmmvit" not in sys.modules:
        from gmmvit_command import rooms

        rooms()
    try:
        return VERBS[arguments.verb](arguments) or 0
    except Exception as error:
        from gmmvit.core.errors import sentence

        if os.environ.get("GMMVIT_DEBUG", "0") != "0":
            traceback.print_exc()
        print(f"gmmvit {arguments.verb}: {sentence(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"gmmvit {arguments.verb}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
