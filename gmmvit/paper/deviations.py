"""What differs from the papers (deviations), and what is wrong or unclear in them (errata): deviations.toml.

python -m gmmvit.paper.deviations > docs/deviations.md
"""

from __future__ import annotations

import tomllib
from pathlib import Path

PAPERS = {"G": "GMM (arXiv 2309.05375)", "A": "GAB (arXiv 2305.04722)", "T": "TransMix (arXiv 2111.09833)"}
HEAD = """\
# What differs from the papers, and what is wrong in them

Made of `gmmvit/paper/deviations.toml` by `python -m gmmvit.paper.deviations > docs/deviations.md`.
"Public code" is that of the paper's own repository. Where something was concluded and not read, it says "inferred".
"""


def errata() -> dict[str, dict[str, str]]:
    """{code, such as G12: what was found, what follows here, the source} of each erratum."""
    return _read()["erratum"]


def deviations(*recipes: str) -> list[tuple[list[str], str]]:
    """(recipes, what is done otherwise there or was not stated), those of some recipes or all."""
    found = [(each["of"], each["text"]) for each in _read()["deviation"]]
    return [(of, text) for of, text in found if not recipes or set(of) & set(recipes)]


def page() -> str:
    """All of it in Markdown; each erratum has an anchor, #g12."""
    parts = [HEAD]
    for letter, paper in PAPERS.items():
        parts.append(f"\n## Errata of {paper}\n")
        for code, each in errata().items():
            if code[0] == letter:
                parts.append(f"\n### {code}\n\n{each['what']}\n\n- Here: {each['here']}\n- Source: {each['source']}.\n")
    parts.append("\n## Done otherwise here, or not stated\n")
    every = list(dict.fromkeys(recipe for of, _ in deviations() for recipe in of))
    for recipe in every:
        lines = (f"- {text}\n" for _, text in deviations(recipe))
        parts.append(f"\n### {'All recipes' if recipe == 'all' else f'`{recipe}`'}\n\n{''.join(lines)}")
    return "".join(parts)


def _read() -> dict:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


if __name__ == "__main__":
    print(page(), end="")
