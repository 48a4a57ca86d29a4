"""Copies of notebooks without what Jupyter changes when it saves one: outputs, counts, metadata, cells' ids.

python notebooks/clean.py notebooks build/notebooks
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nbformat

KERNEL = {"name": "python3", "language": "python", "display_name": "Python 3"}
KEPT = ("cell_type", "source", "attachments")  # and the tags


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook's cells and their tags, and nothing else; equal cells make equal copies."""
    fresh = nbformat.v4.new_notebook(metadata={"kernelspec": KERNEL})
    for number, cell in enumerate(notebook.cells):
        tags = {"tags": cell.metadata.tags} if cell.metadata.get("tags") else {}
        kept = {key: cell[key] for key in KEPT if key in cell} | {"id": f"cell-{number}", "metadata": tags}
        run = {"outputs": [], "execution_count": None} if cell.cell_type == "code" else {}
        fresh.cells.append(nbformat.from_dict(kept | run))
    return fresh


def main(source: str, folder: str) -> None:
    """Writes a clean copy of each notebook into the folder, and nothing else stays there."""
    shutil.rmtree(folder, ignore_errors=True)
    Path(folder).mkdir(parents=True)
    for path in sorted(Path(source).glob("*.ipynb")):
        nbformat.write(clean(nbformat.read(path, as_version=4)), Path(folder) / path.name)


if __name__ == "__main__":
    main(*sys.argv[1:])
