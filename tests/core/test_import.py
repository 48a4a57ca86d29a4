"""The package's front door: what it exports, and what importing it costs."""

import subprocess
import sys

import pytest

import gmmvit

TIMED = """
import time, timm
start = time.perf_counter()
import gmmvit
print(time.perf_counter() - start)
"""


def test_everything_promised_is_there():
    assert all(hasattr(gmmvit, name) for name in gmmvit.__all__)


@pytest.mark.slow
def test_importing_gmmvit_adds_little_to_importing_timm():
    runs = [subprocess.run([sys.executable, "-c", TIMED], capture_output=True, text=True, check=True) for _ in range(3)]
    assert min(float(run.stdout) for run in runs) < 0.3
