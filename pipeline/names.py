"""What the pipeline needs of params.yaml: the profile and the names of its rows and data sets.

python pipeline/names.py cpu  # puts a profile in force
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

from gmmvit_command import rooms

ROOT = Path(__file__).parents[1]
ROWS, DATA = ("run", "run_dense"), ("data", "data_dense")  # stages of dvc.yaml; a name of each follows an @


def names() -> dict:
    """{"profile": its name, ROWS, DATA and "shared_weights": the names below each}, all safe in a path and in a shell.

    What gmmvit found when it read and checked the file is kept until the file changes.
    """
    path, kept = ROOT / "params.yaml", ROOT / "build" / "names.json"
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    if kept.is_file() and (found := json.loads(kept.read_text()))["sha256"] == digest:
        return found
    rooms()
    from gmmvit.paper.profiles import read

    params = read(path)
    found = {"sha256": digest, "profile": params.profile, "shared_weights": params.rest.get("shared_weights") or []}
    for dense, (rows, data) in enumerate(zip(ROWS, DATA, strict=True)):
        found[rows] = [name for name, row in params.rows.items() if (row.kind != "classification") == dense]
        found[data] = params.rest.get("dense_datasets" if dense else "datasets") or []
    kept.parent.mkdir(exist_ok=True)
    partial = kept.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(found))
    os.replace(partial, kept)  # rows that run side by side read it
    return found


if __name__ == "__main__":
    rooms()
    from gmmvit.paper.project import put_in_force

    try:
        put_in_force(sys.argv[1])
    except (ValueError, OSError) as error:
        sys.exit(str(error))
