"""Create a project that runs without further services."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.terminal.folders import refuse_occupied, write_files
from headrace.cli.terminal.output import printer
from headrace.cli.terminal.project_args import Json

_PLACEHOLDER = "my_project"
_LONGEST_NAME = 60
# a .gitignore among the templates would make git ignore other templates
_RENAMED = {"gitignore": ".gitignore"}


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of the project; created if it does not exist.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that is not empty.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written, and write nothing.")] = False,
    json: Json = False,
) -> None:
    """Create a project that runs without further services.

    It has generated orders as JSON, windowed SQL, a lake table and console output.
    """
    refuse_occupied(folder, force)
    project = project_name(folder)
    contents = {name: text.replace(_PLACEHOLDER, project) for name, text in _templates()}
    if not dry_run:
        write_files(folder, contents)
    if json:
        printer.document({"project": project, "folder": str(folder), "files": sorted(contents), "written": not dry_run})
        return
    for name in sorted(contents):
        printer.data(f"{'would write' if dry_run else 'wrote'} {folder / name}")
    if not dry_run:
        printer.note(f"\nNext:\n  cd {folder}\n  headrace run --for 60s\n  headrace plan")


def project_name(folder: Path) -> str:
    """Convert the name of a folder to a valid project name."""
    words = re.sub(r"[^a-z0-9]+", "_", folder.absolute().name.lower()).strip("_")
    name = words if words[:1].isalpha() else f"project_{words}".rstrip("_")
    return name[:_LONGEST_NAME]


def _templates() -> Iterator[tuple[str, str]]:
    return _texts(files("headrace.cli") / "templates", "")


def _texts(folder: Traversable, prefix: str) -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _texts(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + _RENAMED.get(entry.name, entry.name), entry.read_text(encoding="utf-8")
