"""Where the project's files are: its root, the rows of a profile, the folders of its reports."""

from __future__ import annotations

from pathlib import Path

from ..core.errors import unknown
from ..data.places import project as root
from .arms import text, written_out
from .profiles import Params, parse, read


def rows(profile: str) -> Params:
    """The params file of a profile: params.yaml while that profile is in force, else profiles/<profile>.yaml."""
    in_force = root() / "params.yaml"
    if in_force.is_file() and (params := read(in_force)).profile == profile:
        return params
    return read(file_of(profile))


def file_of(profile: str) -> Path:
    """profiles/<profile>.yaml."""
    folder = root() / "profiles"
    if not folder.is_dir():
        wanted = f"the project's folder, or one below it, with the profile {profile!r}"
        raise FileNotFoundError(f"{folder} is not there: expected {wanted}")
    known = {file.stem: file for file in sorted(folder.glob("*.yaml"))}
    if profile not in known:
        raise ValueError(unknown("profile", profile, known))
    return known[profile]


def params_of(file: Path) -> str:
    """The params.yaml of a profile's file: the rows of its grid by name, or the file itself where it has no grid."""
    given = file.read_text(encoding="utf-8")
    read(file)  # is it sound?
    if "arms" not in (content := parse(given)):
        return given
    return f"# Made by `gmmvit rows {file.stem}` of profiles/{file.name}.\n{text(written_out(content))}"


def put_in_force(profile: str) -> None:
    """Writes the params.yaml of a profile; a file that was none of the profiles' is kept as params.yaml.old."""
    wanted, path = params_of(file_of(profile)), root() / "params.yaml"
    there = path.read_text(encoding="utf-8") if path.is_file() else wanted
    if there != wanted and all(params_of(file) != there for file in (root() / "profiles").glob("*.yaml")):
        path.replace(path.with_suffix(".yaml.old"))
        print("params.yaml, which was none of the profiles, is kept as params.yaml.old")
    if there != wanted or not path.is_file():
        path.write_text(wanted, encoding="utf-8")


def reports(profile: str) -> Path:
    """The folder of a profile's tables, figures and runs."""
    return root() / "reports" / profile


def runs_folder(profile: str) -> Path:
    """The folder that holds one folder for each run of a profile."""
    return reports(profile) / "runs"
