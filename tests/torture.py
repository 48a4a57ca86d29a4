"""What the torture tests share: a bad input is refused in one sentence with an exit code, and leaves nothing behind."""

import io
import os
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from gmmvit.cli import main

LONGEST = 1500  # characters of a sentence
REFUSALS = (ValueError, TypeError, OSError, ArithmeticError, LookupError)


def tree(folder):
    """Every file below a folder with its content; notes of sizes and times are none of a command's results."""
    files = (path for path in Path(folder).rglob("*") if path.is_file() and not path.name.endswith(".seen.npy"))
    return {str(path): path.read_bytes() for path in files}


def sentence_problem(text):
    """What keeps a text from being one sentence (or a list of problems below one); "" where nothing does."""
    if not text.strip():
        return "says nothing"
    if "Traceback" in text or "weights_only=False" in text or "enforce fail" in text:
        return f"is a wall: {text[:300]}"
    lines = text.strip().splitlines()
    if len(lines) > 1 and not lines[0].rstrip(":").endswith(("problem", "problems")):
        return f"has {len(lines)} lines: {text[:300]}"
    return "" if len(text) < LONGEST else f"has {len(text)} characters: {text[:300]}"


def command_problem(words, left=True):
    """How the command fails to refuse its words well; "" where it does."""
    before, said, errors = tree(os.getcwd()), io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(errors), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = main([str(word) for word in words])
    except SystemExit as stop:  # of argparse: its usage, then a line
        return "" if stop.code == 2 and "error: " in errors.getvalue() else f"leaves with {stop.code}"
    except BaseException as error:
        return f"raises {type(error).__name__}: {error}"
    if code != 1:
        return f"ends with {code}: {said.getvalue()[-300:]}"
    told = [line for line in errors.getvalue().splitlines() if line.startswith("gmmvit ")]
    if len(told) != 1:
        return f"has {len(told)} sentences: {errors.getvalue()[-300:]}"
    text = errors.getvalue()[errors.getvalue().index(told[0]) :]
    if wrong := sentence_problem(text):
        return wrong
    if left and (new := {name: 0 for name, content in tree(os.getcwd()).items() if before.get(name) != content}):
        return f"leaves {', '.join(new)}"
    return ""


def call_problem(call):
    """How a call fails to refuse its arguments well; "" where it does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except REFUSALS as error:
        return sentence_problem(str(error))
    except Exception as error:
        return f"raises {type(error).__name__}: {error}"
    return "accepts it"


def survived(problems):
    """Fails with the name of every input that was not refused well."""
    bad = {name: wrong for name, wrong in problems.items() if wrong}
    assert not bad, "\n" + "\n".join(f"{name}: {wrong}" for name, wrong in bad.items())
