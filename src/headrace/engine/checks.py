"""Questions asked before anything starts: is every source and sink there?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.errors import ProjectError, ProjectErrors
from headrace.core.processor import Processor
from headrace.core.records import spark_schema
from headrace.core.sink import Sink
from headrace.core.source import Source
from headrace.core.tables import TableSource
from headrace.plan.model import FlowPlan, Plan
from headrace.project.loader import Project
from headrace.sql.dialect.dotted import check_dotted_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_services(project: Project, plan: Plan) -> None:
    """Ask every source, table and sink of a plan whether it can be used; needs no Spark. All that is wrong is said at
    once."""
    parts: dict[tuple[str | int, ...], Source | TableSource | Processor | Sink] = {}
    parts |= {("tables", name, "source"): table.source for name, table in project.spec.tables.items()}
    for flow in plan.flows:
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
    needed = sum(stream.spec.source.splits(project.context) or 1 for stream in flow.streams())
    if needed > slots:
        raise ProjectError(
            "realtime-starved",
            f"real-time flow '{flow.name}' reads {needed} partitions, but Spark has {slots} task slots",
            where=project.origin("flows", flow.name, "mode"),
            hint=f"give it a master with {needed} cores, e.g. --set spark.master=local[{needed}], or use micro_batch",
        )


def check_rows(project: Project, flow: FlowPlan, rows: DataFrame) -> None:
    """Ask every sink of a flow whether it can take these rows."""
    check_dotted_columns(rows.columns)
    schema = spark_schema(rows)
    for index, step in enumerate(flow.sinks):
        try:
            step.sink.check_rows(project.context, rows.columns, flow.spec.output, schema)
        except ProjectError as error:
            raise error.at(project.origin("flows", flow.name, "sinks", index)) from None
