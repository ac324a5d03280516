"""Create a project from the configuration of another system."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.terminal.folders import refuse_occupied, write_files
from headrace.cli.terminal.output import printer
from headrace.cli.terminal.project_args import Json
from headrace.core.lazy import lazy_modules

if TYPE_CHECKING:
    from headrace.migrate import dagger as migrate_dagger
    from headrace.migrate.draft import Draft
else:
    migrate_dagger = lazy_modules("headrace.migrate.dagger")

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def _migrate() -> None:
    """Make a project from the configuration of another system."""


@app.command()
def dagger(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A properties or env file of a Dagger job.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Where to; default: named like the job."),
    ] = None,
    descriptors: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A descriptor set, for names of messages and numbers of fields."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also into a folder that is not empty.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be written.")] = False,
    json: Json = False,
) -> None:
    """Make a project that does what a Dagger job does.

    Its SQL stays as it is. What could not be carried over is listed, and written into MIGRATION.md; secrets become
    references to the environment.
    """
    draft = migrate_dagger.migrate(file, descriptors)
    folder = output or Path(str(draft.document["project"]))
    refuse_occupied(folder, force)
    if not dry_run:
        write_files(folder, draft.files)
    _tell(draft, folder, written=not dry_run, json=json)


def _tell(draft: Draft, folder: Path, *, written: bool, json: bool) -> None:
    if json:
        printer.document(
            {
                "project": draft.document["project"],
                "folder": str(folder),
                "files": sorted(draft.files),
                "written": written,
                "secrets": [{"name": name, "key": key} for name, key in draft.secrets.items()],
                "notes": [note.to_json() for note in draft.notes],
            }
        )
    else:
        for name in sorted(draft.files):
            printer.data(f"{'wrote' if written else 'would write'} {folder / name}")
    for name, key in draft.secrets.items():
        printer.note(f"secret: set {name} in the environment (was in {key})")
    words = {"not_carried": "not carried over", "check": "please look"}
    for note in draft.notes:
        if note.kind in words:
            printer.note(f"{words[note.kind]}: {note.key}: {note.message}")
    if written:
        printer.note(f"\nNext:\n  cd {folder}\n  headrace lint\n  headrace run")
