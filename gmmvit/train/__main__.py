"""`torchrun --nproc-per-node N -m gmmvit.train ROW`: the same words as `gmmvit train`."""

import sys

from ..cli import main

sys.exit(main(["train", *sys.argv[1:]]))
