"""Frames of rows and runs that were never trained, for tests of the tables made of them."""

from gmmvit.paper import project, runs
from gmmvit.train.rows import Row


def make(mask="none", seeds=(0, 1, 2), model="vit", dataset="cifar10", **settings):
    """Rows of one arm by name."""
    label = "".join(f"-{key}{value}" for key, value in settings.items())
    names = {seed: f"{dataset}-{model}-{mask}{label}-s{seed}" for seed in seeds}
    return {name: Row(dataset, model, mask, seed=seed, set=settings, name=name) for seed, name in names.items()}


def frame(rows, top1, failed=()):
    """The frame of rows {name: Row}, of which some were run: {name: top-1}."""
    cost = {"parameters": 2_693_122, "macs": 184_618_752, "macs_paper": 170_911_338, "depth": 9}
    return runs.of(rows, [{"row": vars(rows[name]), "top1": value, **cost} for name, value in top1.items()], failed)


def recorded(profile):
    """The frame of the runs in the repository, whatever rows the profile's grid has by now."""
    found = runs.runs(project.reports(profile))
    return runs.of({run["row"]["name"]: Row(**run["row"]) for run in found}, found)


def ran(*settings, only=None, failed=()):
    """Rows of ViT with a GMM and what they have instead, each (or these alone) run with an accuracy of its own."""
    rows = {}
    for number, fields in enumerate(settings):
        given = {key: fields[key] for key in ("dataset", "model", "mask", "recipe", "seed") if key in fields}
        row = {"dataset": "cifar10", "model": "vit", "mask": "gmm"} | given
        others = {key: value for key, value in fields.items() if key not in given}
        rows[f"row{number}"] = Row(**row, set=others, name=f"row{number}")
    top1 = {name: 50.0 + number for number, name in enumerate(rows) if only is None or number in only}
    return frame(rows, top1, failed)
