"""dvc.lock, written whole or not at all: a stage's entry is put in the place of its old one, as text.

DVC itself parses and writes the file anew after each stage, in place: a process that is killed meanwhile leaves a file
that no command can read, and with hundreds of rows that is half a minute a row.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from dvc.dvcfile import Lockfile
from dvc.stage import serialize
from dvc.utils.serialize import dumps_yaml
from dvc.utils.serialize._yaml import parse_yaml
from names import ROWS

HEAD = "schema: '2.0'\nstages:\n"
ENTRY = re.compile(r"^  (?=[^ :\n])", re.MULTILINE)  # where an entry begins; a long name is `? name`, then `: content`


class WholeLock(Lockfile):
    """DVC's lock file; with `only`, nothing but the entry of that stage is read."""

    only = ""

    def _load(self, **kwargs):
        if not self.only or not os.path.exists(self.path):
            return super()._load(**kwargs)
        entry = entries(Path(self.path).read_text(encoding="utf-8")).get(self.only, "")
        text = HEAD + (entry or "  {}\n")
        return self.validate(parse_yaml(text, self.path), self.relpath), text

    def dump_stages(self, stages, **kwargs):
        for stage in stages:
            record(Path(self.path), stage.name, serialize.to_lockfile(stage, **kwargs)[stage.name])
        self.repo.scm_context.track_file(self.relpath)


def record(path: Path, stage: str, content: dict) -> None:
    """Puts what DVC knows of a stage into the file."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    new = dumps_yaml({"stages": {stage: content}}).partition("\n")[2]
    head, inside, tail = _parts(text)
    found = entries(text)
    if new == found.get(stage):
        return
    found[stage] = new
    replace(path, head + "".join(found.values()) + tail)


def forget(path: Path, profile: str, rows: Collection[str]) -> None:
    """Takes out the rows of a profile that are none of its `rows` any more, unless their records are still here."""
    text = path.read_text(encoding="utf-8")
    head, _, tail = _parts(text)
    kept = {}
    for stage, entry in entries(text).items():
        kind, _, row = stage.partition("@")
        folder = f"reports/{profile}/runs/{row}"
        gone = kind in ROWS and row not in rows and f" {folder}/metrics.json\n" in entry
        if not gone or (path.parent / folder / "metrics.json").is_file():
            kept[stage] = entry
    if len(kept) < len(entries(text)):
        replace(path, head + "".join(kept.values()) + tail)


def entries(text: str) -> dict[str, str]:
    """The lines of each stage, by its name."""
    inside = _parts(text)[1]
    starts = [match.start() for match in ENTRY.finditer(inside)]
    lines = [inside[here:there] for here, there in zip(starts, [*starts[1:], len(inside)], strict=False)]
    return {_name(each): each for each in lines}


def _parts(text: str) -> tuple[str, str, str]:
    """What stands before the stages, their entries, and what stands behind them."""
    if not text.strip():
        return HEAD, "", ""
    found = re.search(r"^stages:[ {}]*\n", text, re.MULTILINE)
    if not found:
        raise ValueError("dvc.lock: expected a file that DVC wrote, with a line `stages:`; put it back with git")
    behind = re.compile(r"^\S", re.MULTILINE).search(text, found.end())
    end = behind.start() if behind else len(text)
    return text[: found.start()] + "stages:\n", text[found.end() : end], text[end:]


def _name(entry: str) -> str:
    line = entry.partition("\n")[0].strip()
    key = line[2:] if line.startswith("? ") else re.sub(r":( .*)?$", "", line)
    return parse_yaml(key, "dvc.lock") if key[:1] in "'\"" else key


def replace(path: Path, text: str) -> None:
    """Writes a file beside the old one, which it then replaces at once."""
    partial = path.with_name(f".{path.name}.partial")  # dvc lets one process at a time write
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
