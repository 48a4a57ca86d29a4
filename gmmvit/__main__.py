"""`python -m gmmvit ...`, and `torchrun --nproc-per-node N -m gmmvit train ROW`."""

import sys

from .cli import main

sys.exit(main())
