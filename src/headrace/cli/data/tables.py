"""Show the tables of a project: columns, rows and lag."""

from __future__ import annotations

import json as jsonlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.terminal.output import printer
from headrace.cli.terminal.positions_output import aligned
from headrace.cli.terminal.project_args import Json, Name, ProjectTarget, project_options
from headrace.core.errors import Exit, ProjectError, did_you_mean
from headrace.core.lazy import lazy_modules
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

    Reads the log and what the capture writes down every second; asks no source.
    """
    loaded = target.load()
    found = [printer.clean(_described(loaded, one)) for one in loaded.spec.tables]
    if json:
        printer.document(found)
        return
    rows = [["table", "state", "source", "key", "rows", "lag", "newest"], *(_cells(one) for one in found)]
    for line in aligned(rows) if found else ["no tables"]:
        printer.data(line)


@app.command()
@project_options()
def show(
    target: ProjectTarget,
    table: _Table,
    json: Json = False,
) -> None:
    """Show one table: its columns and key, its source, how many rows it has, where it is read and how far behind.

    The columns are those of its log; when nothing was read yet, the source is asked.
    """
    loaded = target.load()
    if table not in loaded.spec.tables:
        raise ProjectError(
            "unknown-table",
            f"there is no table '{table}'",
            hint=did_you_mean(table, loaded.spec.tables, "tables"),
            exit_code=Exit.NOT_FOUND,
        )
    found = printer.clean(_described(loaded, table, ask=True))
    if json:
        printer.document(found)
        return
    for line in _lines(found):
        printer.data(line)


def _described(project: Project, name: str, *, ask: bool = False) -> dict[str, Any]:
    """A table as its log has it, with what the capture of this machine says of it."""
    spec, context = project.spec.tables[name], project.context
    log = tables.table_log(context, spec.source.group)
    shape: TableShape | None = log.shapes().get(name)
    if shape is None and ask:
        shape = spec.shape(name, context)
    newest, said = log.newest(), read_group(tables_folder(context), spec.source.group)
    live = said is not None and said["live"]
    at = None if newest is None or newest.at is None else newest.at.isoformat()
    return {
        "name": name,
        "description": spec.description,
        "source": spec.source.label,
        "group": spec.source.group,
        "columns": None if shape is None else schema.to_ddl(shape.columns),
        "key": spec.key if shape is None else list(shape.key),
        "state": said["state"] if said is not None and live else "not followed" if log.end() else "nothing read yet",
        "reason": said["reason"] if said is not None and live else None,
        "complete": name in log.complete(),
        "rows": log.counts().get(name),
        "sequence": log.end(),
        "position": log.position(),
        "lag": said["lag"] if said is not None and live else None,
        "changes_per_s": said["changes_per_s"] if said is not None and live else None,
        "newest": at,
    }


def _cells(one: dict[str, Any]) -> list[str]:
    return [
        one["name"],
        one["state"],
        one["source"],
        ",".join(one["key"]) or _UNKNOWN,
        _number(one["rows"]),
        _number(one["lag"]),
        one["newest"] or _UNKNOWN,
    ]


def _lines(one: dict[str, Any]) -> list[str]:
    whole = "" if one["complete"] else ", its first snapshot is not whole yet"
    lines = [f"{one['name']}: {one['state']}{whole}"]
    if one["description"]:
        lines.append(f"  {one['description']}")
    if one["reason"] is not None:
        lines.append(f"  {one['reason']['text']} [{one['reason']['code']}]")
    lines += [
        f"  source: {one['source']} (read with group {one['group']})",
        f"  columns: {one['columns']}",
        f"  key: {', '.join(one['key'])}",
        f"  rows: {_number(one['rows'])}, at {one['sequence']} of its log",
        f"  lag: {_number(one['lag'])}, newest change: {one['newest'] or _UNKNOWN}",
    ]
    if one["position"] is not None:
        lines.append(f"  position: {jsonlib.dumps(one['position'])}")
    return lines


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"
