"""Where the project's files are: its root, the rows of a profile, the folders of its reports."""

from __future__ import annotations

from pathlib import Path

from ..core.errors import unknown
from ..data.places import CHECKOUT, project
from .profiles import Params, read


def root() -> Path:
    """The nearest folder above the working directory that holds a dvc.yaml, else the checkout of this package."""
    return project() or CHECKOUT


def rows(profile: str) -> Params:
    """The params file of a profile: params.yaml while that profile is in force, else profiles/<profile>.yaml."""
    in_force = root() / "params.yaml"
    if in_force.is_file() and (params := read(in_force)).profile == profile:
        return params
    complete = root() / "profiles" / f"{profile}.yaml"
    if not complete.parent.is_dir():
        wanted = f"the project's folder, or one below it, with the profile {profile!r}"
        raise FileNotFoundError(f"{complete.parent} is not there: expected {wanted}")
    if not complete.is_file():
        raise ValueError(unknown("profile", profile, sorted(file.stem for file in complete.parent.glob("*.yaml"))))
    return read(complete)


def reports(profile: str) -> Path:
    """The folder of a profile's tables, figures and runs."""
    return root() / "reports" / profile


def runs_folder(profile: str) -> Path:
    """The folder that holds one folder for each run of a profile."""
    return reports(profile) / "runs"
