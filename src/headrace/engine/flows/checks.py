"""Questions asked before anything starts: is every source and sink there?"""

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
    """Ask every source, table and sink of a plan whether it can be used; needs no Spark. All that is wrong is said at
    once. What only flows with a schedule use, or nobody, may be away: it is needed when its time has come."""
    parts: dict[tuple[str | int, ...], Source | TableSource | Processor | Sink] = {}
    for flow in plan.without_schedules().flows:
        read = [one.name for one in flow.inputs if isinstance(one, TableInput | StandingInput)]
        tables = {name: project.spec.tables[name] for name in read if name in project.spec.tables}
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
    """Refuse a real-time flow with more partitions than task slots: Spark would leave some of them unread, silently."""
    if flow.spec.mode != "realtime":
        return
    sources = (stream.spec.source for stream in flow.streams())
    needed = sum(source.splits(project.context) if isinstance(source, HasSplits) else 1 for source in sources)
    if needed > slots:
        raise ProjectError(
            "realtime-starved",
            f"real-time flow '{flow.name}' reads {needed} partitions, but Spark has {slots} task slots",
            where=project.origin("flows", flow.name, "mode"),
            hint=f"give it a master with {needed} cores, e.g. --set spark.master=local[{needed}], or use micro_batch",
        )


def check_rows(project: Project, flow: FlowPlan, schema: pa.Schema) -> None:
    """Ask every sink of a flow whether it can take its rows."""
    check_dotted_columns(schema.names)
    check_schema(project, flow, schema, flow.spec.output)


def check_schema(project: Project, flow: FlowPlan, schema: pa.Schema, output: str = "update") -> None:
    """Ask every sink of a flow whether it can take rows with these columns."""
    for index, step in enumerate(flow.sinks):
        try:
            step.sink.check_rows(project.context, schema.names, output, schema)
        except ProjectError as error:
            raise error.at(project.origin("flows", flow.name, "sinks", index)) from None
