"""The program `gmmvit`: runs gmmvit/cli.py by its path, for its package loads torch, which takes seconds."""

import runpy
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    """Ends with the exit code of the verb."""
    runpy.run_path(str(Path(find_spec("gmmvit").origin).with_name("cli.py")), run_name="__main__")


if __name__ == "__main__":
    main()
