"""Arguments that name a project and its flows: the same words for every command that takes a project."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.terminal.completion import complete_flows, complete_profiles
from headrace.cli.terminal.output import printer, usage_error

if TYPE_CHECKING:
    from headrace.project.loader import Project

PROJECT_FILE = "headrace.yaml"
_CAN_BE_A_FLOW = re.compile(r"[a-z][a-z0-9_]*")

Name = Annotated[
    str | None, typer.Argument(metavar="PROJECT", help="Folder or file of the project; the current folder otherwise.")
]
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PROJECT|FLOW",
        help="Folder or file of the project (the current folder otherwise), then the flows meant (all otherwise).",
        autocompletion=complete_flows,
    ),
]
ProjectOption = Annotated[
    Path | None, typer.Option("--project", "-p", metavar="DIR", help="The project; then all arguments are flows.")
]
Profile = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="Lay this profile over the file.", autocompletion=complete_profiles),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=VALUE", help="Set one value of the file; may be repeated.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, also errors (on stderr).")]


def split(names: Sequence[str] | None, option: Path | None) -> tuple[Path, tuple[str, ...]]:
    """The project and the flows that these arguments mean."""
    given = tuple(names or ())
    if option is not None:
        return option, given
    if given and _is_project(given[0]):
        return Path(given[0]), given[1:]
    return Path("."), given


def _is_project(name: str) -> bool:
    """Whether the first argument is a project; inside one, any other folder may share its name with a flow."""
    if not _CAN_BE_A_FLOW.fullmatch(name):
        return True
    return (Path(name) / PROJECT_FILE).is_file() or (Path(name).is_dir() and not Path(PROJECT_FILE).is_file())


def load_project(path: Path, profile: str | None, overrides: Sequence[str] | None) -> Project:
    """The checked project, whose secrets are hidden from here on."""
    from headrace.project.loader import load

    project = load(path, profile=profile, overrides=tuple(overrides or ()))
    printer.hide(project.secrets.redact)
    return project


def only_project(name: str | None, option: Path | None) -> Path:
    """The project of a command that takes no flows."""
    if name is not None and option is not None:
        raise usage_error(f"two projects were named: '{name}' and '{option}'", "leave one of them out")
    return Path(name) if name is not None else option or Path(".")
