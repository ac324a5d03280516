"""Plans views: flows over tables, which are maintained incrementally."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from headrace.core.errors import ProjectError
from headrace.core.sink import Sink
from headrace.core.tables import TableShape
from headrace.log.tables import table_log
from headrace.plan.model import FlowPlan, TableInput
from headrace.plan.sink_ids import sink_steps
from headrace.project.loader import Project
from headrace.project.model import Defaults, FlowSpec, ProjectSpec
from headrace.project.tables import TableSpec
from headrace.sql.query import Query
from headrace.views.algebra.operators import ViewPlan
from headrace.views.compile.identity import columns_of, with_identity
from headrace.views.compile.normalise import normalise

ShapeOf = Callable[[str, TableSpec], TableShape | None]
Placed = tuple[ProjectError, tuple[str | int, ...]]
"""An error and its path in the flow."""


@dataclass(frozen=True)
class ViewReads:
    """The inputs of a view: tables, also those of the views it reads, and the SQL of these views."""

    tables: tuple[TableInput, ...]
    views: Mapping[str, str]
    others: tuple[str, ...] = ()
    """Names in its SQL that are neither."""

    @staticmethod
    def of(
        query: Query, tables: Mapping[str, TableSpec], plans: Mapping[str, FlowPlan | None], shape_of: ShapeOf
    ) -> ViewReads:
        """Resolve the names in the SQL of a view. Flows that it reads are already planned."""
        table_names = {name.lower(): name for name in tables}
        planned = {name.lower(): plan for name, plan in plans.items() if plan is not None and plan.tables()}
        inputs: dict[str, TableInput] = {}
        views: dict[str, str] = {}
        others = []
        for name in input_names(query):
            if name in table_names:
                table = table_names[name]
                inputs[table] = TableInput(table, tables[table], shape_of(table, tables[table]))
            elif name in planned:
                upstream = planned[name]
                inputs |= {input_.name: input_ for input_ in upstream.tables()}
                views |= {**upstream.views, upstream.name: upstream.sql}
            else:
                others.append(name)
        return ViewReads(tuple(inputs.values()), views, tuple(others))

    @property
    def shapes(self) -> dict[str, TableShape] | None:
        """The shapes of all tables; None if one is unknown."""
        shapes = {table.name: table.shape for table in self.tables if table.shape is not None}
        return shapes if len(shapes) == len(self.tables) else None


def reads_tables(query: Query, spec: ProjectSpec, plan: Callable[[str], FlowPlan | None]) -> bool:
    """Whether a query reads a table or a view: then it is a view itself."""
    tables = {name.lower() for name in spec.tables}
    flows = {name.lower(): name for name in spec.flows}

    def is_view(name: str) -> bool:
        planned = plan(flows[name]) if name in flows else None
        return planned is not None and bool(planned.tables())

    return bool(tables) and any(name in tables or is_view(name) for name in input_names(query))


def input_names(query: Query) -> list[str]:
    """The inputs of a query in lower case, also in table functions such as TUMBLE(orders, at, '5 minutes')."""
    return list(dict.fromkeys(name.lower() for table in query.inputs for name in _table_names(table)))


def _table_names(table: exp.Table) -> Iterator[str]:
    if not isinstance(table.this, exp.Func):
        yield table.name
    else:
        first = next(iter(table.this.expressions), None)
        while isinstance(first, exp.Func):
            first = next(iter(first.expressions), None)
        yield first.name if first is not None else ""


def known_shape(project: Project, name: str, spec: TableSpec) -> TableShape | None:
    """The shape of a table without a connection: as last captured, or as declared."""
    shape = table_log(project.context, spec.source.group).shapes().get(name) or spec.source.declared
    return None if shape is None else replace(shape, key=shape.key or tuple(spec.key))


def view_obstacles(name: str, spec: FlowSpec, others: Sequence[str]) -> Iterator[Placed]:
    """Why a flow that reads tables cannot be a view."""
    if others:
        message = f"flow '{name}' reads tables and {', '.join(others)}: a view reads only tables and views"
        hint = "use the processor `table` in the stream's flow to look up rows, or push the stream into a table"
        yield ProjectError("view-mixed", message, hint=hint), ()
    for place in ("before", "after"):
        if getattr(spec, place):
            message = f"flow '{name}' is a view, and views cannot have processors: they do not see deletes"
            yield ProjectError("view-steps", message, hint="express it in the view's SQL"), (place,)
    if spec.mode == "realtime":
        message = f"flow '{name}' is a view, and views are maintained in micro-batches"
        yield ProjectError("realtime-unsupported", message, hint="use mode: micro_batch"), ("mode",)


def view_of(spec: FlowSpec, sql: str, read: ViewReads) -> ViewPlan | None:
    """The compiled view; None while the shape of a table is unknown."""
    shapes = read.shapes
    return None if shapes is None else with_identity(normalise(sql, shapes, read.views, spec.keys))


def view_plan(
    name: str, spec: FlowSpec, sql: str, read: ViewReads, view: ViewPlan | None, sinks: list[Sink], defaults: Defaults
) -> FlowPlan:
    return FlowPlan(
        name=name,
        spec=spec,
        sql=sql,
        inputs=read.tables,
        after=(),
        output_columns=("*",) if view is None else columns_of(view),
        state=(),
        sinks=sink_steps(sinks),
        trigger=spec.trigger or defaults.trigger,
        max_records=spec.max_records or defaults.max_records,
        partitions=spec.partitions or defaults.partitions,
        view=view,
        views=read.views,
    )
