"""The Makefile, run with a pretended interpreter, whose environments hold programs that note how they were called."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PRETENDED_PYTHON = f"""#!/bin/sh
case $1 in
-c) exec {sys.executable} -c "import sys; sys.version_info = tuple(map(int, '$VERSION'.split('.'))); $2" ;;
-m) mkdir -p $3/bin; for name in pip pytest gmmvit; do cp "$PROGRAM" $3/bin/$name; done; echo "venv" >> "$NOTES" ;;
esac
"""
PROGRAM = '#!/bin/sh\necho "${0##*/} $*" >> "$NOTES"\n'


@pytest.fixture
def make(tmp_path):
    """A function that runs make in a copy of the project and returns (its result, the programs it called)."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for name, text in (("python", PRETENDED_PYTHON), ("program", PROGRAM)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    notes = tmp_path / "notes"

    def run(*arguments, version="3.11.7"):
        outer = {name for name in os.environ if name.startswith(("MAKE", "MFLAGS", "PYTHON"))} | {"ARGS"}
        env = {name: value for name, value in os.environ.items() if name not in outer}
        env |= {"NOTES": str(notes), "PROGRAM": str(tmp_path / "program"), "VERSION": version}
        notes.write_text("")
        command = ["make", "PYTHON=./python", *arguments]
        result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        return result, notes.read_text().splitlines()

    return run


def test_make_installs_once_and_again_after_the_requirements_changed(make, tmp_path):
    result, calls = make("test", "ARGS=-k masks")
    assert result.returncode == 0, result.stderr
    assert calls[0] == "venv" and calls[-1] == "pytest -k masks"
    assert [call for call in calls if "-r requirements.lock" in call] == [calls[1]]
    assert make("test")[1] == ["pytest "]
    assert make("repro")[1] == ["gmmvit models"]
    for name in ("requirements.lock", "pyproject.toml"):
        for stamp in (p for p in tmp_path.glob(".*/.*") if p.is_file()):
            os.utime(stamp, (0, 0))
        os.utime(tmp_path / name)
        calls = make("repro")[1]
        assert [call.split()[0] for call in calls] == ["pip", "pip", "gmmvit"]
        assert make("repro")[1] == ["gmmvit models"]


def test_make_says_which_python_it_needs(make):
    result, calls = make("test", version="3.9.18")
    assert result.returncode != 0 and calls == []
    assert "needs Python 3.11 or newer, but ./python is 3.9" in result.stderr
