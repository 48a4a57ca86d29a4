"""The sentence of an error: what was expected, what came, and the nearest valid name."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterable
from types import ModuleType

MOST = 12  # names that a sentence lists


def unknown(what: str, got: object, valid: Iterable[str]) -> str:
    """One sentence for a name that is not among the valid ones: the nearest of them first, then all if they are few."""
    valid = sorted(map(str, valid))
    near = difflib.get_close_matches(str(got), valid, n=1, cutoff=0.4)
    hint = f"the nearest is {near[0]!r}; " if near else ""
    listed = valid if len(valid) <= MOST else difflib.get_close_matches(str(got), valid, n=MOST, cutoff=0)
    rest = f" and {len(valid) - MOST:,} more" if len(valid) > MOST else ""
    return f"unknown {what} {shown(got)}: {hint}expected one of {', '.join(listed)}{rest}"


def shown(value: object, longest: int = 200) -> str:
    """A value as Python writes it, cut where that is long."""
    text = repr(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def first_line(error: BaseException) -> str:
    """What an error says first; its kind where it says nothing, as a bare assert does."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


# ---- what is not installed -------------------------------------------------------------------------------------------

BRINGS = {  # the modules that each extra of gmmvit brings
    "train": ("PIL", "ruamel", "scipy", "torchvision", "tqdm"),
    "dense": ("pycocotools", "segmentation_models_pytorch"),
    "paper": (
        *("IPython", "bleach", "dvc", "jinja2", "matplotlib", "nbconvert", "nbformat", "pandas", "papermill", "psutil"),
        "traitlets",
    ),
}


class MissingExtra(ImportError):
    """A module of an extra is not installed."""


def need(module: str) -> ModuleType:
    """A module of an extra; where it is not installed, the error says what to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing(error) from error


def missing(error: ModuleNotFoundError) -> ImportError:
    """The sentence about a module that is not installed; the error itself where no extra brings it."""
    top = str(error.name).partition(".")[0]
    extra = next((extra for extra, modules in BRINGS.items() if top in modules), None)
    said = f"{top} is not installed: expected what `pip install '.[{extra}]'` in a clone of gmmvit brings"
    return MissingExtra(said, name=error.name) if extra else error


# ---- what ends a command ---------------------------------------------------------------------------------------------

SENTENCES = (ValueError, TypeError, OSError, ArithmeticError, MissingExtra)  # whose text is meant to be read
MEMORY = ("out of memory", "allocate memory", "not enough memory", "bad_alloc")  # in the words of torch and of C++


def sentence(error: BaseException) -> str:
    """What to say of an error that ends a command: its own sentence, or one made of an error that has none."""
    error = missing(error) if isinstance(error, ModuleNotFoundError) else error
    text = re.sub(r"^\[enforce fail[^\]]*\][ .]*", "", " ".join(str(error).split()))  # a place in torch's own code
    if isinstance(error, MemoryError) or any(words in text for words in MEMORY):
        return f"out of memory ({shown(text)[1:-1] or 'Python'}): a smaller batch, or accumulate, needs less"
    if isinstance(error, SENTENCES) and text:
        return str(error)
    kind = f"{type(error).__name__}: " if text else f"{type(error).__name__} without a word"
    return f"{kind}{text if len(text) <= 300 else text[:299] + '…'}; GMMVIT_DEBUG=1 shows where"
