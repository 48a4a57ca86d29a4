"""deviations.toml: whole, rendered as docs/deviations.md, and wherever an erratum is named it is one of the list."""

import ast
import json
import re
from pathlib import Path

import pytest

from gmmvit.paper.deviations import deviations, errata, page
from gmmvit.train import tasks

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"(?<![\w-])[GAT][1-9]\d?(?![\w-])")  # G12, and not the A100 of a GPU
PAGE = "docs/deviations.md"


def texts_of(notebook):
    """What a notebook says and computes, without its outputs."""
    return "\n".join("".join(cell["source"]) for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"])


FILES = [
    *(ROOT / "gmmvit").rglob("*.py"),
    *(path for path in (ROOT / "gmmvit").rglob("*.toml") if path.name != "deviations.toml"),
    *(ROOT / "profiles").glob("*.yaml"),
    *(ROOT / "notebooks").glob("*.ipynb"),
    ROOT / "README.md",
    ROOT / "params.yaml",
]


def test_the_page_is_what_the_script_makes():
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page()


def test_every_erratum_says_what_is_wrong_what_follows_and_where_it_can_be_seen():
    for code, each in errata().items():
        assert CODE.fullmatch(code) and set(each) == {"what", "here", "source"} and all(each.values())
        assert f"\n### {code}\n\n{each['what']}\n" in page()
    assert {"G7", "G12", "A2", "A5", "T1", "T5"} <= set(errata())
    named = {code for of, text in deviations() for code in CODE.findall(text)}
    assert named <= set(errata())


def test_every_deviation_is_of_recipes_that_exist():
    for of, text in deviations():
        assert of and set(of) <= {"all", *tasks.recipes()} and text == text.strip()
    gmm = [text for of, text in deviations("gmm")]
    assert any("G7" in text for text in gmm) and any("test loss" in text for text in gmm)
    assert not any("MMDetection" in text for text in gmm)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_erratum_that_is_named_can_be_found(path):
    """Named as one, and of the list; a notebook, which is read alone, says where the list is."""
    text = texts_of(path) if path.suffix == ".ipynb" else path.read_text(encoding="utf-8")
    codes = set(CODE.findall(text))
    assert codes <= set(errata())
    assert not codes or re.search(r"errat(um|a)\b", text)
    if path.suffix == ".ipynb":
        assert not codes or PAGE in text
    assert not re.search(r"\bfacts \d", text, re.IGNORECASE)  # a page of notes that is not here


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix == ".py"], ids=lambda path: path.stem)
def test_no_error_names_a_code_alone(path):
    """Who reads an error has no list beside it: it says in words what is wrong."""
    raised = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Raise)]
    words = [each.value for node in raised for each in ast.walk(node) if isinstance(each, ast.Constant)]
    assert not [text for text in words if isinstance(text, str) and CODE.search(text)]
