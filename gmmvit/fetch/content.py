"""What a laid-out set contains, wherever it came from: the record that runs depend on."""

from __future__ import annotations

import hashlib

from ..data.files import INDEX, SPLIT
from ..data.places import folder_of, record_of
from ..data.sums import SUMS


def content(name: str) -> dict:
    """{name, counts, sha256} of a set that is there: of its arrays, or of its index, split and sums."""
    folder = folder_of(name)
    record = record_of(folder)
    sums = record.get("sha256") or {
        part: hashlib.sha256((folder / part).read_bytes()).hexdigest()
        for part in (INDEX, SPLIT, SUMS)
        if (folder / part).is_file()
    }
    return {"name": name, "counts": record["counts"], "sha256": sums}
