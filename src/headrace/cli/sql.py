"""`headrace sql`: ask a project's streams, lake tables and dead letters; or just Spark."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli.output import error_document, printer, usage_error
from headrace.cli.project_args import Json, Overrides, Profile, ProjectOption, load_project
from headrace.core.errors import Exit, ProjectError

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.project.loader import Project


def sql(
    statements: Annotated[
        list[str] | None, typer.Argument(metavar="SQL", help="One or more statements; from stdin otherwise.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the statements from a file.")] = None,
    format: Annotated[
        str, typer.Option("--format", help="table, json or csv; table on a terminal, else json.")
    ] = "auto",
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Go on after an error; exit 1 at the end.")] = False,
    project: ProjectOption = None,
    profile: Profile = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Run SQL over a project's streams as they stand now, its flows' lake tables and its dead letters.

    Works outside a project too. With JSON, one document per statement: {"columns", "rows"} or {"error"}.
    """
    from headrace.engine.adhoc import split_statements

    form = _format("json" if json else format)
    script = split_statements(_text(statements, file))
    if not script:
        raise usage_error("there is no statement to run", 'for example: headrace sql "SELECT 1"')
    failed = _run_all(script, form, keep_going, _project(project, profile, overrides))
    if failed:
        raise typer.Exit(int(Exit.FAILED))


def _format(given: str) -> Literal["table", "json", "csv"]:
    if given == "auto":
        return "table" if sys.stdout.isatty() else "json"
    if given not in ("table", "json", "csv"):
        raise usage_error(f"there is no format '{given}'", "table, json or csv")
    return given  # type: ignore[return-value]


def _text(statements: list[str] | None, file: Path | None) -> str:
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except OSError as error:
            raise ProjectError("missing-file", f"{file}: {error.strerror}", exit_code=Exit.NOT_FOUND) from error
    if statements:
        return ";\n".join(statements)
    return sys.stdin.read()


def _project(option: Path | None, profile: str | None, overrides: list[str] | None) -> Project | None:
    path = option or Path(".")
    if option is None and not (path / "headrace.yaml").is_file():
        return None
    return load_project(path, profile, overrides)


def _run_all(script: list[str], form: str, keep_going: bool, project: Project | None) -> bool:
    from headrace.engine.adhoc import AdHoc
    from headrace.engine.session import start_session
    from headrace.engine.state import StateDir
    from headrace.project.model import SparkSpec

    with tempfile.TemporaryDirectory() as scratch:
        state = StateDir.of(project.context) if project else StateDir(Path(scratch))
        spec = project.spec.spark if project else SparkSpec()
        spark = start_session(spec, "sql", state.logs)
        try:
            session = AdHoc(spark, project, state, Path(scratch) / "dead_letters")
            failed = False
            for statement in script:
                failed |= not _one(session, statement, form)
                if failed and not keep_going:
                    break
            return failed
        finally:
            spark.stop()


def _one(session: Any, statement: str, form: str) -> bool:
    """Run and print one statement; whether it went well. With JSON an error is an answer like any other."""
    try:
        table = session.run(statement)
    except ProjectError as error:
        if form == "json":
            printer.line(error_document(error))
        else:
            printer.error(error)
        return False
    _print(table, form)
    for stream, count in session.undecoded().items():
        printer.note(f"note: {count:,} records of '{stream}' could not be decoded and are not in the answer")
    return True


def _print(table: pa.Table, form: str) -> None:
    from headrace.engine.adhoc import to_document

    if form == "json":
        printer.line(to_document(table))
    elif form == "csv":
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(table.column_names)
        writer.writerows(to_document(table)["rows"])
    else:
        _print_table(table)


def _print_table(table: pa.Table) -> None:
    from rich.table import Table

    from headrace.engine.adhoc import to_document

    document = to_document(table)
    shown = Table(*document["columns"])
    for row in document["rows"]:
        shown.add_row(*("" if value is None else printer.redact(str(value)) for value in row))
    printer.render(shown)
