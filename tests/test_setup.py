"""pyproject.toml, environment.yml, requirements.lock and the package's imports agree with one another."""

import ast
import fnmatch
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import gmmvit
from gmmvit.core.errors import BRINGS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK_LINES = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
LINUX_ONLY = '; sys_platform == "linux"'

IMPORT_NAMES = {
    "ruamel": "ruamel.yaml",
    "IPython": "ipython",
    "PIL": "pillow",
}  # import name -> distribution, where they differ
COMMANDS = {"jupyter", "nbval", "torch-tb-profiler"}  # run or opened with, not imported
EXTRAS = PROJECT["optional-dependencies"]


def direct(*extras):
    """{canonical name: Requirement} of the package and of the named extras, with the extras that these name."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]
    found = {canonicalize_name(r.name): r for r in map(Requirement, lines)}
    inner = found.pop("gmmvit", Requirement("gmmvit")).extras
    return found | (direct(*inner) if inner else {})


def locked():
    """{canonical name: version} of requirements.lock."""
    pins = [line.split(";")[0].strip().split("==") for line in LOCK_LINES]
    return {canonicalize_name(name): version for name, version in pins}


def distribution(module):
    """The name under which a module is installed."""
    return canonicalize_name(IMPORT_NAMES.get(module, module))


def imported(*rooms):
    """The distributions that the files of some rooms import; of all rooms and of pipeline/, where none is named."""
    files = [path for room in rooms or [""] for path in (ROOT / "gmmvit" / room).rglob("*.py")]
    pipeline = [] if rooms else [*(ROOT / "pipeline").glob("*.py")]
    files += pipeline
    trees = [ast.parse(path.read_text()) for path in files]
    names = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.split(".")[0])
    names |= {name for tree in trees for name in needed_by_name(tree)}
    own = {"gmmvit", *(path.stem for path in pipeline)}
    return {distribution(name) for name in names - set(sys.stdlib_module_names) - own}


def needed_by_name(tree):
    """What a file gives to gmmvit.core.errors.need."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    return {call.args[0].value.split(".")[0] for call in calls if call.func.id == "need" and call.args}


def test_lock_is_a_sorted_list_of_plain_pins():
    pin = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+(; sys_platform == \"linux\")?")
    assert [line for line in LOCK_LINES if not pin.fullmatch(line)] == []
    names = [line.split("==")[0].lower() for line in LOCK_LINES]
    assert names == sorted(set(names))


def test_cuda_libraries_and_only_they_are_locked_for_linux_alone():
    cuda = {line for line in LOCK_LINES if re.match(r"(nvidia|cuda)-|triton==", line)}
    assert len(cuda) > 10
    assert cuda == {line for line in LOCK_LINES if line.endswith(LINUX_ONLY)}


def test_every_direct_dependency_has_a_lower_bound_that_its_pin_satisfies():
    pins = locked()
    for name, requirement in direct(*EXTRAS).items():
        assert [s.operator for s in requirement.specifier] == [">="], f"{requirement}: one tested lower bound expected"
        assert requirement.specifier.contains(pins[name]), f"{requirement}, but requirements.lock has {pins[name]}"


def test_environment_yml_pins_the_direct_dependencies_as_the_lock_does():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert pip[-1] == "-e ."
    pins = {canonicalize_name(name): version for name, version in (line.split("==") for line in pip[:-1])}
    assert pins == {name: locked()[name] for name in direct(*EXTRAS)}
    (python,) = [entry.split("=")[1] for entry in environment["dependencies"] if str(entry).startswith("python=")]
    assert SpecifierSet(PROJECT["requires-python"]).contains(python)


def needed_on_linux(requirements):
    """Canonical names of all that these requirements pull in, by the installed packages' own metadata."""
    linux = default_environment() | {"sys_platform": "linux", "platform_system": "Linux"}
    linux |= {"python_version": "3.11", "python_full_version": "3.11.0"}
    todo, seen = list(requirements), set()
    while todo:
        requirement = todo.pop()
        key = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if key not in seen:
            seen.add(key)
            for need in map(Requirement, metadata.requires(requirement.name) or []):
                contexts = [linux | {"extra": extra} for extra in ("", *requirement.extras)]
                if need.marker is None or any(need.marker.evaluate(context) for context in contexts):
                    todo.append(need)
    return {name for name, _ in seen}


def test_lock_holds_what_the_direct_dependencies_need_and_nothing_else():
    pins = locked()
    installed = {canonicalize_name(d.name): d.version for d in metadata.distributions()}
    other = [name for name, version in pins.items() if installed.get(name) != version]
    if other:
        pytest.skip(f"this environment is not the lock's: {len(other)} of {len(pins)} versions differ")
    assert set(pins) == needed_on_linux(direct(*EXTRAS).values())


OURS = {"gmmvit-command"}  # the command's own file, beside the package


def test_package_imports_only_declared_dependencies():
    assert imported("core", "models") <= set(direct())
    engine = imported("data", "train", "fetch", "analysis", "bench") - {"ipykernel"}
    assert engine - set(direct("train")) == imported("dense") - set(direct("dense")) == set()
    assert imported() - set(direct("dense", "paper")) - OURS == set()


def test_every_declared_dependency_is_used():
    assert set(direct("dense", "paper")) - imported() - COMMANDS == set()


def test_every_module_of_an_extra_is_known_by_the_sentence_that_says_what_to_install():
    named = {extra: {distribution(module) for module in modules} - COMMANDS for extra, modules in BRINGS.items()}
    needed = {extra: {canonicalize_name(Requirement(line).name) for line in EXTRAS[extra]} for extra in named}
    assert named == {extra: names - COMMANDS - {"gmmvit"} for extra, names in needed.items()}


def test_every_file_of_the_package_is_installed_with_it():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["*"]
    files = [p for p in (ROOT / "gmmvit").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    left_out = [p for p in files if not any(fnmatch.fnmatch(p.name, pattern) for pattern in [*patterns, "*.py"])]
    assert left_out == []
    folders = {p.parent for p in files} | {ROOT / "gmmvit"}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_citation_names_the_three_papers_and_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    numbers = {reference["identifiers"][0]["value"] for reference in citation["references"]}
    assert numbers == {"arXiv:2309.05375", "arXiv:2305.04722", "arXiv:2111.09833"}
    assert citation["version"] == PROJECT["version"] == gmmvit.__version__


def test_only_the_makefile_knows_where_the_environment_is():
    code = [
        p
        for suffix in ("py", "ipynb")
        for folder in ("gmmvit", "notebooks", "tests")
        for p in (ROOT / folder).rglob(f"*.{suffix}")
    ]
    files = [*code, *ROOT.glob("*.toml"), *ROOT.glob("*.y*ml"), ROOT / ".ci" / "run"]
    assert [p for p in files if "." + "venv" in p.read_text()] == []
