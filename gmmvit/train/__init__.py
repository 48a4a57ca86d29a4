"""The training engine: one row, on one device or many processes, resumable at any moment.

metrics = train({"dataset": "cifar10-mini", "model": "vit", "mask": "gmm", "recipe": "short", "seed": 0}, "runs/first")
launch(row, processes=2, out="runs/first")    # or: torchrun --nproc-per-node 2 -m gmmvit train --dataset ...
"""

from .checkpoint import OtherRun
from .loop import Diverged, train
from .processes import launch

__all__ = ["Diverged", "OtherRun", "launch", "train"]
