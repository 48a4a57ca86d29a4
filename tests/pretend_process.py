"""Tests marked `pretend` run together in a second pytest, which is started with what the pretend GPU needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

import pytest
from pretend import environment

REPORTS = "GMMVIT_PRETEND"  # set in the second process: where it writes how its tests ended
MARK = "pretend"


def inside() -> bool:
    """Whether this is the second process."""
    return REPORTS in os.environ


class Second:
    """The second pytest, with all marked tests of the first: {test: its report}, read while it runs."""

    def __init__(self, config: pytest.Config, tests: list[str]):
        variables = environment()[0] or os.environ  # without a compiler: for what goes forward only
        reading, writing = os.pipe()
        self.output = tempfile.TemporaryFile()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--capture=fd", *tests]
        self.process = subprocess.Popen(
            command,
            cwd=config.rootpath,
            env={**variables, REPORTS: str(writing)},
            pass_fds=[writing],
            stdout=self.output,
            stderr=subprocess.STDOUT,
        )
        os.close(writing)
        self.lines, self.found = open(reading), {}
        config.add_cleanup(self.process.kill)

    def report(self, test: str) -> dict:
        """How a test ended: waits for it."""
        while test not in self.found:
            line = self.lines.readline()
            if not line:
                code = self.process.wait()
                self.output.seek(0)
                said = self.output.read().decode(errors="replace")[-3000:]
                return {"outcome": "failed", "said": f"it ended with {code}:\n{said}"}
            report = json.loads(line)
            self.found[report.pop("test")] = report
        return self.found[test]


SECOND = pytest.StashKey[Second]()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Ends a marked test as it ended in the second process."""
    if inside() or not pyfuncitem.get_closest_marker(MARK):
        return None
    session = pyfuncitem.session
    if SECOND not in session.stash:
        marked = [item.nodeid for item in session.items if item.get_closest_marker(MARK)]
        session.stash[SECOND] = Second(session.config, marked)
    report = session.stash[SECOND].report(pyfuncitem.nodeid)
    if report["outcome"] == "skipped":
        pytest.skip(report["said"])
    if report["outcome"] == "failed":
        pytest.fail(f"in the process of the pretend GPU:\n{report['said']}", pytrace=False)
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the second process: tells the first how a test ended."""
    if inside() and (report.when == "call" or not report.passed):
        said = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        line = {"test": report.nodeid, "outcome": report.outcome, "said": said}
        os.write(int(os.environ[REPORTS]), (json.dumps(line) + "\n").encode())
