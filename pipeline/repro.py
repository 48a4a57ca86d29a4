"""`dvc repro`, after a check of params.yaml, with a dvc.lock that no kill can damage.

python pipeline/repro.py                # and the options and stages of dvc repro
python pipeline/repro.py -s run@ROW     # one row, also beside others: only its entry of dvc.lock is read
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

import psutil
from names import ROOT, ROWS, names
from stage import WRAPPER
from stopping import Stop, below, passed_on


def main(words: Sequence[str]) -> int:
    """The exit code of dvc; 143 after a stop, when the stage that was running has saved its state."""
    os.chdir(ROOT)
    try:
        known = names()
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    import dvc.dvcfile
    from dvc.cli import main as dvc_main
    from lockfile import WholeLock, forget

    dvc.dvcfile.Lockfile = WholeLock
    alone = len(words) == 2 and words[0] == "-s"
    WholeLock.only = words[1] if alone else ""
    os.environ[WRAPPER] = str(os.getpid())
    with passed_on(_leave) as stop:
        code = dvc_main([*(["--wait-for-lock"] if alone else []), "repro", *words])
    if not (words or code or stop.code):
        forget(ROOT / "dvc.lock", known["profile"], [row for kind in ROWS for row in known[kind]])
    return stop.code or code


def _leave(stop: Stop) -> None:
    """Leaves dvc when the stage has ended: it would go on with the next one where it is to keep going."""
    logging.disable()
    psutil.wait_procs(below())
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
