"""The frozen plan: small steps that `run` and `plan` both interpret, so they cannot disagree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pyarrow as pa

from headrace.core.filters import ColumnFilter
from headrace.core.processor import Processor
from headrace.core.sink import Delivery, Sink
from headrace.core.tables import TableShape
from headrace.project.model import EventTime, FlowSpec, StreamSpec
from headrace.project.tables import TableSpec
from headrace.sql.lateness import LateRule
from headrace.views.algebra.operators import ViewPlan


@dataclass(frozen=True)
class ProcessorStep:
    """One processor of a flow. `id` is its place: `before.bookings.0`, `after.1`, `other_flow.after.0`."""

    id: str
    processor: Processor
    of: str | None = None
    """The flow it is declared in, if that flow is inlined into another."""

    @property
    def path(self) -> tuple[str | int, ...]:
        """Its path in the project file, below the flow."""
        own = self.id if self.of is None else self.id.removeprefix(f"{self.of}.")
        return tuple(int(part) if part.isdigit() else part for part in own.split("."))

    def within(self, flow: str) -> ProcessorStep:
        """The step in a flow that inlines this one; ids are unique within a query."""
        return self if self.of is not None else replace(self, id=f"{flow}.{self.id}", of=flow)


@dataclass(frozen=True)
class StreamInput:
    """A stream as one flow reads it: only the columns and rows it uses."""

    name: str
    spec: StreamSpec
    schema: pa.Schema | None
    """All columns without metadata; None until a sample was read."""
    columns: tuple[str, ...] | None
    filters: tuple[ColumnFilter, ...]
    metadata: tuple[str, ...] = ()
    """The metadata columns that the SQL names; `*` does not include them."""
    timed: bool = True
    """Whether the flow needs the event time: not if it is stateless and does not use it."""
    stateful: bool = False
    """Whether the flow keeps state, so that its watermark matters."""
    late: LateRule | None = None
    """When Spark drops a row as too late, if that is certain."""
    before: tuple[ProcessorStep, ...] = ()
    """The steps before the SQL."""

    @property
    def event_time(self) -> EventTime | None:
        """The event time, if the flow needs it."""
        return self.spec.event_time if self.timed else None

    @property
    def wanted(self) -> pa.Schema:
        """The record columns this flow uses, and the event time; at least one: rows without columns are not counted."""
        assert self.schema is not None, f"schema of {self.name} is not known yet"
        if self.columns is None:
            return self.schema
        needed = {*self.columns, *([self.event_time.column] if self.event_time else [])}
        fields = [field for field in self.schema if field.name in needed]
        return pa.schema(fields or _cheapest(self.schema))


def _cheapest(schema: pa.Schema) -> list[pa.Field]:
    """One column, of fixed width if possible."""
    return sorted(schema, key=lambda field: not pa.types.is_primitive(field.type))[:1]


@dataclass(frozen=True)
class LakeInput:
    """Another flow, read through its lake table: both run independently."""

    name: str
    path: str
    event_time: EventTime | None
    max_records: int | None = None
    columns: tuple[str, ...] | None = None
    """The columns the flow uses; None for all."""
    stateful: bool = False
    late: LateRule | None = None
    before: tuple[ProcessorStep, ...] = ()


@dataclass(frozen=True)
class FlowInput:
    """Another flow without a lake table: its query is inlined into this one."""

    name: str
    sql: str
    inputs: tuple[Input, ...]
    after: tuple[ProcessorStep, ...] = ()
    """The steps of that flow after its SQL."""
    before: tuple[ProcessorStep, ...] = ()
    """The steps of this flow before its SQL."""


@dataclass(frozen=True)
class TableInput:
    """A table as a view reads it: a snapshot, then changes, from the log of its table group."""

    name: str
    spec: TableSpec
    shape: TableShape | None
    """Columns and key; None until the source was queried."""
    before: tuple[ProcessorStep, ...] = ()
    event_time: EventTime | None = None


@dataclass(frozen=True)
class StandingInput:
    """A lake table by its path, or a captured table, with its rows at the time of a report."""

    name: str
    path: str | None = None
    table: TableSpec | None = None
    shape: TableShape | None = None
    """Of a captured table; None until the source was queried."""
    before: tuple[ProcessorStep, ...] = ()
    event_time: EventTime | None = None


Input = StreamInput | LakeInput | FlowInput | TableInput | StandingInput


@dataclass(frozen=True)
class SinkStep:
    """One sink of a flow. `id` is stable: every batch mark contains it."""

    id: str
    sink: Sink


@dataclass(frozen=True)
class FlowPlan:
    """Everything needed to run one flow."""

    name: str
    spec: FlowSpec
    sql: str
    inputs: tuple[Input, ...]
    after: tuple[ProcessorStep, ...]
    output_columns: tuple[str, ...]
    state: tuple[str, ...]
    sinks: tuple[SinkStep, ...]
    trigger: timedelta
    max_records: int
    partitions: int
    view: ViewPlan | None = None
    """The compiled view; None for other flows, and while the shape of a table is unknown."""
    views: Mapping[str, str] = field(default_factory=dict)
    """The SQL of the views that a view reads."""
    functions: Mapping[str, str] = field(default_factory=dict)
    """The functions in its SQL that run in Python; for those of the project, the digest of the file."""

    @property
    def guarantee(self) -> Delivery:
        """The weakest guarantee of its sinks."""
        order: tuple[Delivery, ...] = ("best_effort", "at_least_once", "idempotent", "exactly_once")
        return min((step.sink.guarantee for step in self.sinks), key=order.index, default="exactly_once")

    @property
    def names_known(self) -> bool:
        """Whether its column names are known without Spark."""
        return all(column and column != "*" for column in self.output_columns)

    def all_inputs(self) -> Iterator[Input]:
        """All inputs, also of inlined flows."""
        yield from all_inputs(self.inputs)

    def streams(self) -> Iterator[StreamInput]:
        """All streams, also of inlined flows."""
        return (input_ for input_ in self.all_inputs() if isinstance(input_, StreamInput))

    def tables(self) -> tuple[TableInput, ...]:
        """The tables it reads: a view reads nothing else."""
        return tuple(input_ for input_ in self.inputs if isinstance(input_, TableInput))

    @property
    def is_report(self) -> bool:
        """Whether each run reads the current rows of tables and replaces the result of the last."""
        return self.spec.over == "all"

    def steps(self) -> Iterator[ProcessorStep]:
        """All processors in order, also of inlined flows."""
        yield from _steps(self.inputs)
        yield from self.after


def _steps(inputs: tuple[Input, ...]) -> Iterator[ProcessorStep]:
    for input_ in inputs:
        if isinstance(input_, FlowInput):
            yield from _steps(input_.inputs)
            yield from input_.after
        yield from input_.before


def all_inputs(inputs: tuple[Input, ...]) -> Iterator[Input]:
    """The inputs, and recursively those of inlined flows."""
    for one in inputs:
        yield one
        if isinstance(one, FlowInput):
            yield from all_inputs(one.inputs)


@dataclass(frozen=True)
class Plan:
    """All flows of a project, each after the flows it reads."""

    project: str
    flows: tuple[FlowPlan, ...]

    def without_schedules(self) -> Plan:
        """The plan without flows that have a schedule."""
        return replace(self, flows=tuple(flow for flow in self.flows if flow.spec.schedule is None))

    def flow(self, name: str) -> FlowPlan:
        return next(flow for flow in self.flows if flow.name == name)
