"""The frozen plan: small steps that `run` and `plan` both interpret, so that they cannot disagree."""

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
    """One processor of a flow. `id` says where it stands: `before.bookings.0`, `after.1`, `other_flow.after.0`."""

    id: str
    processor: Processor
    of: str | None = None
    """The flow that it is written in, where that became part of another."""

    @property
    def path(self) -> tuple[str | int, ...]:
        """Where it is written, from the flow's name on."""
        own = self.id if self.of is None else self.id.removeprefix(f"{self.of}.")
        return tuple(int(part) if part.isdigit() else part for part in own.split("."))

    def within(self, flow: str) -> ProcessorStep:
        """The same step in a flow that reads this one; two steps of a query must not have one id."""
        return self if self.of is not None else replace(self, id=f"{flow}.{self.id}", of=flow)


@dataclass(frozen=True)
class StreamInput:
    """A stream as one flow reads it: only the columns it uses, only the rows it can use."""

    name: str
    spec: StreamSpec
    schema: pa.Schema | None
    """All columns without metadata; None until a sample has been looked at."""
    columns: tuple[str, ...] | None
    filters: tuple[ColumnFilter, ...]
    metadata: tuple[str, ...] = ()
    """The metadata columns that the SQL names; `*` does not mean them."""
    timed: bool = True
    """Whether the flow needs the event time: a stateless flow that does not name it does not."""
    stateful: bool = False
    """Whether the flow keeps state, so that its watermark matters."""
    late: LateRule | None = None
    """When Spark would drop a row of it as too late, if that is certain."""
    before: tuple[ProcessorStep, ...] = ()
    """What happens to its rows before the SQL sees them."""

    @property
    def event_time(self) -> EventTime | None:
        """The event time, if the flow needs it."""
        return self.spec.event_time if self.timed else None

    @property
    def wanted(self) -> pa.Schema:
        """The record's columns this flow uses, and its event time; never none: rows without columns do not count."""
        assert self.schema is not None, f"schema of {self.name} is not known yet"
        if self.columns is None:
            return self.schema
        needed = {*self.columns, *([self.event_time.column] if self.event_time else [])}
        fields = [field for field in self.schema if field.name in needed]
        return pa.schema(fields or _cheapest(self.schema))


def _cheapest(schema: pa.Schema) -> list[pa.Field]:
    """One column, of fixed width if there is such a one."""
    return sorted(schema, key=lambda field: not pa.types.is_primitive(field.type))[:1]


@dataclass(frozen=True)
class LakeInput:
    """Another flow, read through its lake table: the two run apart."""

    name: str
    path: str
    event_time: EventTime | None
    max_records: int | None = None
    columns: tuple[str, ...] | None = None
    """The columns the flow uses, or None for all of them."""
    stateful: bool = False
    late: LateRule | None = None
    before: tuple[ProcessorStep, ...] = ()


@dataclass(frozen=True)
class FlowInput:
    """Another flow without a lake table: its query becomes part of this one."""

    name: str
    sql: str
    inputs: tuple[Input, ...]
    after: tuple[ProcessorStep, ...] = ()
    """What that flow does to the rows of its SQL."""
    before: tuple[ProcessorStep, ...] = ()
    """What this flow does to the rows of that one."""


@dataclass(frozen=True)
class TableInput:
    """A table as a view reads it: what it holds at first, then what changes, from the log of its group."""

    name: str
    spec: TableSpec
    shape: TableShape | None
    """Its columns and key; None until its source has been asked."""
    before: tuple[ProcessorStep, ...] = ()
    event_time: EventTime | None = None


@dataclass(frozen=True)
class StandingInput:
    """A lake table, by its path, or a captured table, as it stands when a report is made."""

    name: str
    path: str | None = None
    table: TableSpec | None = None
    shape: TableShape | None = None
    """Of a captured table; None until its source has been asked."""
    before: tuple[ProcessorStep, ...] = ()
    event_time: EventTime | None = None


Input = StreamInput | LakeInput | FlowInput | TableInput | StandingInput


@dataclass(frozen=True)
class SinkStep:
    """One sink of a flow. `id` is stable: it names the sink in every batch mark."""

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
    """What a flow over tables keeps; also None when the shape of a table is not known yet."""
    views: Mapping[str, str] = field(default_factory=dict)
    """The SQL of the views that a view reads."""
    functions: Mapping[str, str] = field(default_factory=dict)
    """The functions in its SQL that run in Python; of the project's own the digest of their file."""

    @property
    def guarantee(self) -> Delivery:
        """The weakest of its sinks."""
        order: tuple[Delivery, ...] = ("best_effort", "at_least_once", "idempotent", "exactly_once")
        return min((step.sink.guarantee for step in self.sinks), key=order.index, default="exactly_once")

    @property
    def names_known(self) -> bool:
        """Whether the names of its columns can be told without Spark."""
        return all(column and column != "*" for column in self.output_columns)

    def all_inputs(self) -> Iterator[Input]:
        """All it reads, also through flows that became part of it."""
        yield from all_inputs(self.inputs)

    def streams(self) -> Iterator[StreamInput]:
        """All streams it reads, also those of flows that became part of it."""
        return (one for one in self.all_inputs() if isinstance(one, StreamInput))

    def tables(self) -> tuple[TableInput, ...]:
        """The tables it reads: then it is a view, and reads nothing else."""
        return tuple(one for one in self.inputs if isinstance(one, TableInput))

    @property
    def is_report(self) -> bool:
        """Whether each run reads tables as they stand and replaces the result of the last."""
        return self.spec.over == "all"

    def steps(self) -> Iterator[ProcessorStep]:
        """All processors its rows go through, in that order, also those of flows that are part of it."""
        yield from _steps(self.inputs)
        yield from self.after


def _steps(inputs: tuple[Input, ...]) -> Iterator[ProcessorStep]:
    for one in inputs:
        if isinstance(one, FlowInput):
            yield from _steps(one.inputs)
            yield from one.after
        yield from one.before


def all_inputs(inputs: tuple[Input, ...]) -> Iterator[Input]:
    """Inputs, and what the flows among them read that are part of the query."""
    for one in inputs:
        yield one
        if isinstance(one, FlowInput):
            yield from all_inputs(one.inputs)


@dataclass(frozen=True)
class Plan:
    """All flows of a project in an order in which each comes after those it reads."""

    project: str
    flows: tuple[FlowPlan, ...]

    def without_schedules(self) -> Plan:
        """Without the flows that run at times of their own."""
        return replace(self, flows=tuple(flow for flow in self.flows if flow.spec.schedule is None))

    def flow(self, name: str) -> FlowPlan:
        """The plan of one flow."""
        return next(flow for flow in self.flows if flow.name == name)
