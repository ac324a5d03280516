"""Show the tables of a project: columns, rows and lag."""

from __future__ import annotations

import json as jsonlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.terminal.output import printer
from headrace.cli.terminal.positions_output import aligned
from headrace.cli.terminal.project_args import Json, Name, ProjectTarget, project_options
from headrace.core.errors import Exit, ProjectError, did_you_mean
from headrace.core.runtime.lazy import lazy_modules
from headrace.log.tablestatus import read_group, tables_folder

if TYPE_CHECKING:
    from headrace.core import schema
    from headrace.core.tables import TableShape
    from headrace.log import tables
    from headrace.project.loader import Project
else:
    schema, tables = lazy_modules("headrace.core.schema", "headrace.log.tables")

app = typer.Typer(help=__doc__, no_args_is_help=True, rich_markup_mode=None)

_Table = Annotated[str, typer.Argument(metavar="NAME", help="The table.")]
_UNKNOWN = "–"


@app.command("list")
@project_options(Name)
def list_(
    target: ProjectTarget,
    json: Json = False,
) -> None:
    """List the tables: their sources, row counts and lag.

    Reads the log and the status that the capture writes every second; does not connect to a source.
    """
    loaded = target.load()
    documents = [printer.clean(_describe(loaded, name)) for name in loaded.spec.tables]
    if json:
        printer.document(documents)
        return
    rows = [["table", "state", "source", "key", "rows", "lag", "newest"], *(_cells(document) for document in documents)]
    for line in aligned(rows) if documents else ["no tables"]:
        printer.data(line)


@app.command()
@project_options()
def show(
    target: ProjectTarget,
    table: _Table,
    json: Json = False,
) -> None:
    """Show one table: its columns and key, source, row count, position and lag.

    The columns come from its log, or from the source when nothing has been read yet.
    """
    loaded = target.load()
    if table not in loaded.spec.tables:
        raise ProjectError(
            "unknown-table",
            f"table '{table}' does not exist",
            hint=did_you_mean(table, loaded.spec.tables, "tables"),
            exit_code=Exit.NOT_FOUND,
        )
    document = printer.clean(_describe(loaded, table, query_source=True))
    if json:
        printer.document(document)
        return
    for line in _lines(document):
        printer.data(line)


def _describe(project: Project, name: str, *, query_source: bool = False) -> dict[str, Any]:
    """Describe a table: the definition from its log, and the status that this machine's capture reports."""
    spec, context = project.spec.tables[name], project.context
    log = tables.table_log(context, spec.source.group)
    shape: TableShape | None = log.shapes().get(name)
    if shape is None and query_source:
        shape = spec.shape(name, context)
    newest, reported = log.newest(), read_group(tables_folder(context), spec.source.group)
    live = reported is not None and reported["live"]
    at = None if newest is None or newest.at is None else newest.at.isoformat()
    return {
        "name": name,
        "description": spec.description,
        "source": spec.source.label,
        "group": spec.source.group,
        "columns": None if shape is None else schema.to_ddl(shape.columns),
        "key": spec.key if shape is None else list(shape.key),
        "state": reported["state"]
        if reported is not None and live
        else "not followed"
        if log.end()
        else "nothing read yet",
        "reason": reported["reason"] if reported is not None and live else None,
        "complete": name in log.complete(),
        "rows": log.counts().get(name),
        "sequence": log.end(),
        "position": log.position(),
        "lag": reported["lag"] if reported is not None and live else None,
        "changes_per_s": reported["changes_per_s"] if reported is not None and live else None,
        "newest": at,
    }


def _cells(document: dict[str, Any]) -> list[str]:
    return [
        document["name"],
        document["state"],
        document["source"],
        ",".join(document["key"]) or _UNKNOWN,
        _number(document["rows"]),
        _number(document["lag"]),
        document["newest"] or _UNKNOWN,
    ]


def _lines(document: dict[str, Any]) -> list[str]:
    whole = "" if document["complete"] else ", its first snapshot is not complete yet"
    lines = [f"{document['name']}: {document['state']}{whole}"]
    if document["description"]:
        lines.append(f"  {document['description']}")
    if document["reason"] is not None:
        lines.append(f"  {document['reason']['text']} [{document['reason']['code']}]")
    lines += [
        f"  source: {document['source']} (table group {document['group']})",
        f"  columns: {document['columns']}",
        f"  key: {', '.join(document['key'])}",
        f"  rows: {_number(document['rows'])}, at sequence {document['sequence']} of its log",
        f"  lag: {_number(document['lag'])}, newest change: {document['newest'] or _UNKNOWN}",
    ]
    if document["position"] is not None:
        lines.append(f"  position: {jsonlib.dumps(document['position'])}")
    return lines


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"
