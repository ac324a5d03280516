"""Checks before a flow starts: every source, table, processor and sink must be available and accept the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.errors import ProjectError, ProjectErrors
from headrace.core.processor import Processor
from headrace.core.sink import Sink
from headrace.core.source import HasSplits, Source
from headrace.core.tables import TableSource
from headrace.plan.model import FlowPlan, Plan, StandingInput, TableInput
from headrace.project.loader import Project
from headrace.sql.dialect.dotted import check_dotted_columns

if TYPE_CHECKING:
    import pyarrow as pa


def check_services(project: Project, plan: Plan) -> None:
    """Check every source, table, processor and sink of a plan, without Spark; reports all errors at once.

    A service that only flows with a schedule use may be unavailable: it is needed when the flow runs.
    """
    parts: dict[tuple[str | int, ...], Source | TableSource | Processor | Sink] = {}
    for flow in plan.without_schedules().flows:
        names = [item.name for item in flow.inputs if isinstance(item, TableInput | StandingInput)]
        tables = {name: project.spec.tables[name] for name in names if name in project.spec.tables}
        parts |= {("tables", name, "source"): table.source for name, table in tables.items()}
        parts |= {("streams", stream.name, "source"): stream.spec.source for stream in flow.streams()}
        parts |= {("flows", step.of or flow.name, *step.path): step.processor for step in flow.steps()}
        parts |= {("flows", flow.name, "sinks", i): step.sink for i, step in enumerate(flow.sinks)}
    errors = []
    for path, part in parts.items():
        try:
            part.check(project.context)
        except ProjectError as error:
            errors.append(error.at(project.origin(*path)))
    if errors:
        raise ProjectErrors(errors)


def check_slots(project: Project, flow: FlowPlan, slots: int) -> None:
    """Refuse a real-time flow with more partitions than task slots: Spark would silently not read some of them."""
    if flow.spec.mode != "realtime":
        return
    sources = (stream.spec.source for stream in flow.streams())
    needed = sum(source.splits(project.context) if isinstance(source, HasSplits) else 1 for source in sources)
    if needed > slots:
        raise ProjectError(
            "realtime-starved",
            f"real-time flow '{flow.name}' reads {needed} partitions, but Spark has {slots} task slots",
            where=project.origin("flows", flow.name, "mode"),
            hint=f"use a master with {needed} cores, e.g. --set spark.master=local[{needed}], or mode micro_batch",
        )


def check_rows(project: Project, flow: FlowPlan, schema: pa.Schema) -> None:
    """Check that every sink of a flow accepts its rows."""
    check_dotted_columns(schema.names)
    check_schema(project, flow, schema, flow.spec.output)


def check_schema(project: Project, flow: FlowPlan, schema: pa.Schema, output: str = "update") -> None:
    """Check that every sink of a flow accepts rows with these columns."""
    for index, step in enumerate(flow.sinks):
        try:
            step.sink.check_rows(project.context, schema.names, output, schema)
        except ProjectError as error:
            raise error.at(project.origin("flows", flow.name, "sinks", index)) from None
