"""Check a project without starting anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli.terminal.output import printer
from headrace.cli.terminal.project_args import Json, Name, ProjectTarget, project_options
from headrace.core.errors import ProjectError
from headrace.core.lazy import lazy_modules
from headrace.sql.query import parse

if TYPE_CHECKING:
    from headrace.plan import planner
    from headrace.project.loader import Project
else:
    planner = lazy_modules("headrace.plan.planner")


@project_options(Name)
def lint(
    target: ProjectTarget,
    json: Json = False,
) -> None:
    """Check a project without starting anything.

    Reads its files, SQL and schemas; asks no service. All errors are listed, each with its place and a hint.
    """
    checked = target.load()

    planner.make_plan(checked)
    _report(checked, warnings_of(checked), json)


def warnings_of(project: Project) -> list[ProjectError]:
    """What is allowed but probably not meant."""
    read = {table.lower() for flow in project.spec.flows for table in parse(project.sql_of(flow)).tables}
    unread = [
        ProjectError(
            "unread-stream",
            f"no flow reads stream '{name}'",
            where=project.origin("streams", name),
            hint="read it in a flow's SQL, or remove it",
        )
        for name in project.spec.streams
        if name.lower() not in read
    ]
    idle = [
        ProjectError(
            "idle-flow",
            f"flow '{name}' has no sinks and no flow reads it, so it never runs",
            where=project.origin("flows", name),
            hint="add 'sinks:', read it in another flow's SQL, or remove it",
        )
        for name, flow in project.spec.flows.items()
        if not flow.sinks and name.lower() not in read
    ]
    unread_tables = [
        ProjectError(
            "unread-table",
            f"no flow reads table '{name}'",
            where=project.origin("tables", name),
            hint="read it in a flow's SQL, or remove it",
        )
        for name in project.spec.tables
        if name.lower() not in read
    ]
    return [*unread, *unread_tables, *idle]


def _report(project: Project, warnings: list[ProjectError], json: bool) -> None:
    spec = project.spec
    streams, tables, flows = len(spec.streams), len(spec.tables), len(spec.flows)
    if json:
        documents = [{key: value for key, value in warning.to_json().items() if key != "exit"} for warning in warnings]
        printer.document({"ok": True, "streams": streams, "tables": tables, "flows": flows, "warnings": documents})
        return
    for warning in warnings:
        printer.warning(warning)
    counts = [_count(streams, "stream"), *([_count(tables, "table")] if tables else []), _count(flows, "flow")]
    printer.data(f"ok: {', '.join(counts)}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
