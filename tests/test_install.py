"""The installed package: a wheel in an environment that sees torch, timm and numpy alone, used from another folder."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def needed(names):
    """The distributions of these names and all that they need here."""
    found = {}
    while names:
        name = names.pop()
        if name not in found:
            try:
                found[name] = metadata.distribution(name)
            except metadata.PackageNotFoundError:  # of another system
                continue
            wanted = map(Requirement, found[name].requires or [])
            names += [each.name for each in wanted if not each.marker or each.marker.evaluate({"extra": ""})]
    return found.values()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy of what is in the repository."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", "gmmvit_command.py"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "gmmvit", copy / "gmmvit", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    made = copy / "dist"
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", made, copy], check=True)
    return next(made.glob("*.whl"))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The Python of a new environment with the wheel, and links to torch, timm, numpy and what these need."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    python = place / "bin" / "python"
    (site,) = place.glob("lib/python*/site-packages")
    for distribution in needed(["torch", "timm", "numpy"]):
        for top in {file.parts[0] for file in distribution.files if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(distribution.locate_file(top))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python", python]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", wheel], check=True)
    return python


def run(python, folder, *words):
    """The process of a command in a folder, without what the tests' own environment says of gmmvit."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "GMMVIT", "VIRTUAL"))}
    return subprocess.run([python, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=300)


USED = """
import importlib.util, timm, torch, gmmvit
from torch.nn.functional import one_hot
model = timm.create_model("test_vit", num_classes=10)
sites = gmmvit.attach(model, "gmm", kernels=3)
images = torch.randn(4, 3, 160, 160)
with gmmvit.attention_maps(model) as maps:
    logits = model(images)
assert logits.shape == (4, 10) and len(maps) == len(sites)
mixed = gmmvit.TransMix(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=10)
mixed.loss(model, images, torch.arange(4)).backward()
biased = gmmvit.create_model("vit_relpos", img_size=32, mask="gab").eval()
small = torch.randn(1, 3, 32, 32)
before = biased(small)
torch.testing.assert_close(gmmvit.fold(biased)(small), before, atol=1e-4, rtol=1e-4)
print(gmmvit.__file__)
print(*(name for name in ("scipy", "pandas", "matplotlib", "pytest") if importlib.util.find_spec(name)))
"""


def test_the_library_works_where_torch_timm_and_numpy_alone_are_seen(python, tmp_path):
    done = run(python, tmp_path, "-c", USED)
    assert done.returncode == 0, done.stderr
    where, seen = done.stdout.splitlines()
    assert Path(where).is_relative_to(python.parents[1]) and not seen


def test_the_command_works_from_another_folder_and_says_which_extra_a_verb_needs(python, tmp_path):
    command = python.with_name("gmmvit")
    assert "usage: gmmvit" in run(python, tmp_path, command, "--help").stdout
    listed = run(python, tmp_path, command, "models", "--attachable")
    assert listed.returncode == 0 and "swin_transformer_v2" in listed.stdout, listed.stderr
    for words, said in {
        ("results",): "pandas is not installed: expected what `pip install '.[paper]'`",
        ("train", "--dataset", "cifar10-mini", "--model", "vit"): "expected what `pip install '.[train]'`",
    }.items():
        refused = run(python, tmp_path, "-m", "gmmvit", *words)
        assert refused.returncode == 1 and said in refused.stderr
    assert not list(tmp_path.iterdir())


def test_the_wheel_holds_every_file_of_the_package_and_asks_for_torch_timm_and_numpy(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        described = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    here = {path.relative_to(ROOT).as_posix() for path in (ROOT / "gmmvit").rglob("*") if path.is_file()}
    assert {name for name in here if "__pycache__" not in name} | {"gmmvit_command.py"} == {
        name for name in names if ".dist-info/" not in name
    }
    plain = [line for line in described.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert sorted(plain) == sorted(f"Requires-Dist: {line}" for line in declared)
    assert {Requirement(line).name for line in declared} == {"numpy", "timm", "torch"}


# ---- types ----------------------------------------------------------------------------------------------------------

RIGHT = """
import timm
import torch

import gmmvit

model = timm.create_model("vit_tiny_patch16_224")
sites: list[gmmvit.Site] = gmmvit.attach(model, "gmm", kernels=3)
mask: torch.nn.Module = sites[0].mask
with gmmvit.attention_maps(model) as maps:
    model(torch.randn(1, 3, 224, 224))
ours: torch.nn.Module = gmmvit.fold(gmmvit.create_model("vit_relpos", mask="gab", img_size=32))
"""
WRONG = {  # a line, and what is said of it
    'model: int = gmmvit.create_model("vit", mask="gmm")': "Incompatible types in assignment",
    "gmmvit.attach(torch.nn.Linear(2, 2), 3)": 'Argument 2 to "attach" has incompatible type "int"',
    'gmmvit.fold("model")': 'Argument 1 to "fold" has incompatible type "str"',
    "gmmvit.atach(torch.nn.Linear(2, 2))": 'Module has no attribute "atach"',
}


def test_a_users_script_is_checked_against_the_types_of_the_installed_package(python, tmp_path):
    pytest.importorskip("mypy")

    def checked(name, text):
        (tmp_path / name).write_text(text)
        words = ["-m", "mypy", "--cache-dir", tmp_path / "cache", "--python-executable", python, name]
        done = run(sys.executable, tmp_path, *words)
        return done.returncode, done.stdout + done.stderr

    code, said = checked("right.py", RIGHT)
    assert code == 0, said
    code, said = checked("wrong.py", "\n".join(["import torch", "", "import gmmvit", "", *WRONG]))
    assert code == 1 and f"Found {len(WRONG)} errors" in said, said
    for line, sentence in enumerate(WRONG.values(), 5):
        assert f"wrong.py:{line}: error: {sentence}" in said, said
