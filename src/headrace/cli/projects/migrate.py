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
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that is not empty.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written, and write nothing.")] = False,
    json: Json = False,
) -> None:
    """Convert a Dagger job to a project.

    The SQL is unchanged. Settings that cannot be converted are listed and written to MIGRATION.md. Secrets become
    references to environment variables.
    """
    draft = migrate_dagger.migrate(file, descriptors)
    folder = output or Path(str(draft.document["project"]))
    refuse_occupied(folder, force)
    if not dry_run:
        write_files(folder, draft.files)
    _report(draft, folder, written=not dry_run, json=json)


def _report(draft: Draft, folder: Path, *, written: bool, json: bool) -> None:
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
