"""The program `gmmvit`: runs gmmvit/cli.py by its path, for its package loads torch, which takes seconds."""

import runpy
import sys
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType


def main() -> None:
    """Ends with the exit code of the verb."""
    runpy.run_path(str(Path(find_spec("gmmvit").origin).with_name("cli.py")), run_name="__main__")


def rooms() -> ModuleType:
    """The package gmmvit with its front door shut, so that rooms that want no torch are reached without loading it.

    The door opens for the first who asks for a name of it; what `import gmmvit` gives elsewhere is open at once.
    """
    if "gmmvit" in sys.modules:
        return sys.modules["gmmvit"]
    spec = find_spec("gmmvit")
    package = module_from_spec(spec)

    def open_for(name: str) -> object:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(f"module 'gmmvit' has no attribute {name!r}")
        del package.__getattr__
        spec.loader.exec_module(package)
        return getattr(package, name)

    package.__getattr__ = open_for
    sys.modules["gmmvit"] = package
    return package


if __name__ == "__main__":
    main()
