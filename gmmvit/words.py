"""The words of the command `gmmvit`: its verbs and their options.

The program reads this file by itself, before the package (see gmmvit_command.py): it imports nothing of it.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """The verbs and their options."""
    top = argparse.ArgumentParser("gmmvit", description="Spatial priors for vision-transformer attention.")
    verbs = top.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("models", help="the backbones, with their cost beside the published columns")
    verb.add_argument("--attachable", action="store_true", help="timm's model files that masks attach to")
    verb = verbs.add_parser("data", help="fetch data sets, or see what is there")
    verb.add_argument("names", nargs="*", metavar="NAME")
    verb.add_argument("--check", action="store_true", help="for every set: present, complete, size, where from")
    verb.add_argument("--record", type=Path, metavar="FILE", help="write down what the set contains")
    verb = verbs.add_parser("train", help="train one row, resumable; in many processes: torchrun -m gmmvit.train ...")
    verb.add_argument("row", nargs="?", metavar="ROW", help="a row of params.yaml, by name")
    verb.add_argument("--params", type=Path, default=Path("params.yaml"), help="the file with the rows")
    verb.add_argument("--dataset")
    verb.add_argument("--model")
    verb.add_argument("--mask", help="gmm, elm, gab or none")
    verb.add_argument("--recipe", help="short, smoke, gmm, gab-finetune, gab-imagenet, deit-transmix, coco-3x, ...")
    verb.add_argument("--seed", type=int)
    verb.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting, such as epochs=3")
    verb.add_argument("--out", type=Path, help="where the results go")
    verb.add_argument("--device")
    verb.add_argument("--workers", type=int, help="processes that load images")
    verb.add_argument("--tensorboard", action="store_true", help="scalars for TensorBoard as well")
    verb = verbs.add_parser("plan", help="what the rows of a profile cost")
    verb.add_argument("params", nargs="?", type=Path, default=Path("params.yaml"), metavar="FILE")
    verb.add_argument("--speed", type=float, default=350.0, help="images/s of the plain vit on the device (350)")
    verb = verbs.add_parser("rows", help="the params.yaml of a profile: the rows of its grid, by name")
    verb.add_argument("profile", metavar="PROFILE", help="its name, or a file")
    verb = verbs.add_parser("check", help="is every name in params.yaml safe? prints the profile in force")
    verb.set_defaults(profile="")
    verb = verbs.add_parser("results", help="what the rows that were run came to: mean, spread, gain of a mask")
    verb.add_argument("profile", nargs="?", metavar="PROFILE", help="default: the one in params.yaml")
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
