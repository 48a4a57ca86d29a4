"""The rooms of gmmvit: what each may import, and what lies in the package."""

import ast
import re
import sys
from pathlib import Path

import pytest

import gmmvit

PACKAGE = Path(gmmvit.__file__).parent
ROOMS = ("core", "models", "data", "train", "dense", "fetch", "analysis", "bench", "paper")  # from left to right
LIBRARY, LIBRARYS_OWN = ("core", "models"), {"torch", "timm", "numpy"}
TRAPDOOR = Path("train/tasks.py")  # names the modules of other rooms as texts, which it looks up


def imported(path, package):
    """The modules that a file imports, in functions too, or names in a text, as import_module is given them."""
    here, found = (package.name, *path.relative_to(package).parts), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*(here[: len(here) - node.level] if node.level else ()), *filter(None, [node.module])])
            for alias in node.names:
                is_module = (package.parent / base.replace(".", "/") / f"{alias.name}.py").exists()
                is_room = (package.parent / base.replace(".", "/") / alias.name / "__init__.py").exists()
                found.add(f"{base}.{alias.name}" if is_module or is_room else base)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(rf"{package.name}(\.\w+)+", node.value) and path.relative_to(package) != TRAPDOOR:
                found.add(node.value)
    return found


def against_the_order(package):
    """A sentence for each import of a package that goes against the order of its rooms."""
    wrong = set()
    for path in package.rglob("*.py"):
        place = path.relative_to(package)
        room = place.parts[0] if len(place.parts) > 1 else None
        for module in imported(path, package):
            top, *below = module.split(".")
            if top != package.name:
                if room in LIBRARY and top not in LIBRARYS_OWN | set(sys.stdlib_module_names):
                    wrong.add(f"{place} imports {module}")
            elif room and below and (below[0] not in ROOMS or ROOMS.index(below[0]) > ROOMS.index(room)):
                wrong.add(f"{place} imports {module}")
    return wrong


def test_a_room_imports_only_rooms_to_its_left_and_the_library_torch_timm_and_numpy_alone():
    assert against_the_order(PACKAGE) == set()


@pytest.mark.parametrize(
    "place, text, told",
    [
        ("core/a.py", "from ..models import b", "core/a.py imports gmmvit.models.b"),
        ("data/a.py", "def f():\n    from ..fetch.b import c", "data/a.py imports gmmvit.fetch.b"),
        ("data/a.py", "import gmmvit.paper.tables", "data/a.py imports gmmvit.paper.tables"),
        ("train/a.py", "from .. import cli", "train/a.py imports gmmvit.cli"),
        ("train/a.py", "find('gmmvit.dense.tasks')", "train/a.py imports gmmvit.dense.tasks"),
        ("models/a.py", "import pandas as pd", "models/a.py imports pandas"),
        ("core/a.py", "def f():\n    from PIL import Image", "core/a.py imports PIL"),
        ("paper/a.py", "from ..core.masks import c\nimport pandas\nfrom ..bench import b", None),
        ("train/tasks.py", "MODULE = 'gmmvit.dense'", None),
        ("a.py", "from .paper import b", None),
    ],
)
def test_a_wrong_import_is_named(tmp_path, place, text, told):
    package = tmp_path / "gmmvit"
    for room in ROOMS:
        (package / room).mkdir(parents=True)
        for name in ("__init__.py", "b.py"):
            (package / room / name).touch()
    (package / "cli.py").touch()
    (package / place).write_text(text)
    assert against_the_order(package) == ({told} if told else set())


def test_the_package_holds_its_front_door_its_command_and_nine_rooms():
    here = {path.name for path in PACKAGE.iterdir()} - {"__pycache__"}
    assert here == {"__init__.py", "__main__.py", "cli.py", "py.typed", *ROOMS}


def test_the_command_is_read_without_its_package():
    """What it imports outside its functions is Python's own."""
    body = ast.parse((PACKAGE / "cli.py").read_text()).body
    names = {a.name for node in body if isinstance(node, ast.Import) for a in node.names}
    names |= {node.module for node in body if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= set(sys.stdlib_module_names)
