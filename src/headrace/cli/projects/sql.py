"""Query a project's streams, lake tables and dead letters."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli.terminal.output import error_document, printer, usage_error
from headrace.cli.terminal.project_args import PROJECT_FILE, Json, ProjectTarget, project_options
from headrace.cli.terminal.signals import cancelling
from headrace.core.errors import Exit, Origin, ProjectError
from headrace.core.lazy import lazy_modules
from headrace.engine.adhoc.answers import cell_text, to_document
from headrace.engine.state.state import StateDir
from headrace.sql.errors import SqlError

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.engine.adhoc import query
    from headrace.engine.spark import session as spark_session
    from headrace.engine.state.state import StateDir
    from headrace.project import model
    from headrace.project.loader import Project
else:
    query, spark_session, model = lazy_modules(
        "headrace.engine.adhoc.query", "headrace.engine.spark.session", "headrace.project.model"
    )


@project_options()
def sql(
    target: ProjectTarget,
    statements: Annotated[
        list[str] | None, typer.Argument(metavar="SQL", help="One or more statements; from stdin otherwise.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the statements from a file.")] = None,
    format: Annotated[
        str, typer.Option("--format", help="table, json or csv; table on a terminal, else json.")
    ] = "auto",
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Continue after an error; exit 1 at the end.")
    ] = False,
    json: Json = False,
) -> None:
    """Run SQL over the current content of a project's streams, its flows' lake tables and its dead letters.

    Works outside a project too. With JSON, one document per statement: {"columns", "rows"} or {"error"}.
    """
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns that it cannot parse SHOW TABLES, which Spark can
    form = _format("json" if json else format)
    script = _script(*_text(statements, file))
    if not script:
        raise usage_error("no statement to run", 'for example: headrace sql "SELECT 1"')
    failed = _run_all(script, form, keep_going, _project(target))
    if failed:
        raise typer.Exit(int(Exit.FAILED))


def _format(name: str) -> Literal["table", "json", "csv"]:
    if name == "auto":
        return "table" if sys.stdout.isatty() else "json"
    if name not in ("table", "json", "csv"):
        raise usage_error(f"format '{name}' does not exist", "table, json or csv")
    return name  # type: ignore[return-value]


def _text(statements: list[str] | None, file: Path | None) -> tuple[str, str]:
    """Return the statements, and the name of their source for error messages."""
    if file is not None and statements:
        raise usage_error("arguments and --file exclude each other", "leave one of them out")
    if statements:
        return ";\n".join(statements), "SQL"
    shown = "stdin" if file is None else str(file)
    try:
        return (_stdin() if file is None else file.read_bytes()).decode("utf-8-sig"), shown
    except OSError as error:
        message, hint = f"{shown} cannot be read: {error.strerror}", "name a file of SQL statements"
        raise ProjectError("missing-file", message, hint=hint, exit_code=Exit.NOT_FOUND) from error
    except UnicodeDecodeError as error:
        raise ProjectError("file-unreadable", f"{shown} is not UTF-8 text", hint="save it as UTF-8") from error


def _stdin() -> bytes:
    if sys.stdin.isatty():
        printer.note("write SQL, then press Ctrl-D")
    return sys.stdin.buffer.read()


@dataclass(frozen=True)
class _Statement:
    """One SQL statement and its first line."""

    text: str
    where: Origin

    def place(self, error: ProjectError) -> Origin:
        """Return the location of an error."""
        first_line = self.where.line or 1
        return Origin(self.where.file, first_line + error.line - 1 if isinstance(error, SqlError) else first_line)


def _script(text: str, shown: str) -> list[_Statement]:
    statements, position = [], 0
    for statement in query.split_statements(text):
        position = text.index(statement, position)
        statements.append(_Statement(statement, Origin(shown, text.count("\n", 0, position) + 1)))
        position += len(statement)
    return statements


def _project(target: ProjectTarget) -> Project | None:
    return target.load() if target.is_named or Path(PROJECT_FILE).is_file() else None


def _run_all(script: list[_Statement], form: str, keep_going: bool, project: Project | None) -> bool:
    with tempfile.TemporaryDirectory() as scratch:
        state = StateDir.of(project.context) if project else StateDir(Path(scratch))
        spec = project.spec.spark if project else model.SparkSpec()
        logs = _logs(state, Path(scratch))
        spark = spark_session.start_session(spec, "sql", logs)
        try:
            session = query.AdHocSession(spark, project, state, Path(scratch) / "dead_letters")
            failed = False
            with cancelling(spark.sparkContext.cancelAllJobs) as interrupted:
                for statement in script:
                    failed |= not _run_statement(session, statement, form, interrupted)
                    if failed and not keep_going:
                        break
            return failed
        except Exception as error:
            if not spark_session.is_lost(error):
                raise
            hint = f"see {logs}; a common cause is memory: --set spark.memory=4g, or select fewer rows"
            raise ProjectError(
                "spark-lost", "Spark's process has ended", hint=hint, exit_code=Exit.TRANSIENT
            ) from error
        finally:
            spark_session.stop_session(spark)


def _logs(state: StateDir, scratch: Path) -> Path:
    """Return the folder for Spark's log; a temporary one for users that can only read the project."""
    try:
        state.logs.mkdir(parents=True, exist_ok=True)
    except OSError:
        return scratch
    return state.logs if os.access(state.logs, os.W_OK) else scratch


def _run_statement(session: Any, statement: _Statement, form: str, interrupted: threading.Event) -> bool:
    """Run and print one statement; return whether it succeeded. With JSON an error is printed on stdout."""
    try:
        table = session.run(statement.text)
    except ProjectError as error:
        if interrupted.is_set():  # the error only says that the query was cancelled
            raise KeyboardInterrupt from None
        error.at(statement.place(error))
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
    document = to_document(table)
    if form == "json":
        printer.line(document)
        return
    columns = printer.clean(document["columns"])
    rows = [[cell_text(value) for value in row] for row in printer.clean(document["rows"])]
    if form == "csv":
        import csv

        csv.writer(sys.stdout, lineterminator="\n").writerows([columns, *rows])
        return
    from rich.table import Table

    shown = Table()
    for column in columns:
        shown.add_column(column, overflow="fold")
    for row in rows:
        shown.add_row(*row)
    printer.render(shown)
