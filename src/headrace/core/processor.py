"""The contract of processors: one step between an input and SQL, or between SQL and the sinks.

A processor is `uses`, `output` and `apply`. What only some can do is a tier or a capability, asked by `isinstance`:

| it … | class | kinds, e.g. |
|---|---|---|
| works on Arrow batches | `ArrowProcessor` | explode, http |
| keeps state between batches | `StatefulStep` | deduplicate, sessions |
| runs SQL of the project | `RunsSql` | filter, route |
| knows all values of a column that it adds | `KnowsValues` | route |
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import pyarrow as pa

from headrace.core.component import Component
from headrace.core.context import Context
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.python_stage import Batches, PythonStage, StepLetters, Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "ArrowProcessor",
    "Batches",
    "FlowLakeTable",
    "KnowsValues",
    "PlanContext",
    "Processor",
    "PythonStage",
    "RunsSql",
    "StandingClock",
    "StatefulStep",
    "StepClock",
    "StepContext",
    "StepLetters",
    "Work",
    "require",
]


class StepClock(Protocol):
    """The times of the running batch, in microseconds since 1970. Recorded before it runs, so a replay sees the same.

    Called by tasks; pickled to executors.
    """

    def number(self) -> int:
        """The id of the batch."""

    def planned(self) -> int:
        """When the batch was planned: what counts as now."""

    def watermark(self) -> int:
        """Spark's bound for late rows in this batch; 0 while there is none."""


@dataclass(frozen=True)
class StandingClock:
    """The clock of rows that belong to no batch: it stands still at one moment."""

    moment: int = field(default_factory=lambda: time.time_ns() // 1000)

    def number(self) -> int:
        return 0

    def planned(self) -> int:
        return self.moment

    def watermark(self) -> int:
        return 0


@dataclass(frozen=True)
class FlowLakeTable:
    """The lake table that a flow of the project writes."""

    path: str
    columns: tuple[str, ...] | None = None
    """The names of its columns, if they are known without opening it."""


class PlanContext(Protocol):
    """What a step can learn about its project and its flow while the flow is planned."""

    @property
    def context(self) -> Context:
        """The project's files and state."""

    @property
    def mode(self) -> str:
        """The mode of the flow: batch, micro_batch or realtime."""

    def lake_table(self, flow: str) -> FlowLakeTable:
        """The lake table of a flow. Raises a ProjectError if the flow does not exist or writes none."""

    def written_out(self, sql: str) -> str:
        """The query in plain Spark SQL: calls of library and project functions are replaced by their definitions."""


@dataclass(frozen=True)
class StepContext:
    """Where a step runs: in which flow, and as which of its steps."""

    context: Context
    flow: str
    step: str
    """`before.bookings.0`, `after.1`: names the step in dead letters and metrics."""
    letters: StepLetters
    clock: StepClock = field(default_factory=StandingClock)
    generation: str = ""
    streaming: bool = True
    event_time: str | None = None
    """The event-time column of the rows of an input; None behind a query, whose result has none that is known."""


class Processor(Component):
    """Subclass this first: rows in, rows out, described and never started.

    The rows are a streaming DataFrame. A batch may run again after a crash: the output must not depend on the clock, on
    chance or on a lookup, unless the docstring of the kind says so.
    """

    family: ClassVar[str] = "processors"
    realtime: ClassVar[bool] = False
    """Whether a real-time flow can have it: native expressions only."""

    def bound(self, project: PlanContext) -> Processor:
        """The same step with what it needs from its project. Called once, when the flow is planned."""
        return self

    def check(self, context: Context) -> None:
        """Connect to the system behind this step; a ProjectError says what to fix."""

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """The input columns it needs so that the columns `wanted` come out; None means all of them."""
        return None

    @abstractmethod
    def output(self, schema: pa.Schema) -> pa.Schema:
        """The output columns for these input columns. A ProjectError refuses them.

        Before Spark has analysed the query only names are certain: a null type means that the type is unknown.
        """

    @abstractmethod
    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        """The rows after this step."""

    def extend(self, stage: PythonStage, at: StepContext) -> PythonStage:
        """The same behind an open Python stage, which a native step ends."""
        return PythonStage.of(self.apply(stage.finish(), at))


class ArrowProcessor(Processor):
    """A step that works on Arrow batches in the tasks. Neighbouring ones share one Python stage."""

    @abstractmethod
    def work(self, schema: pa.Schema, at: StepContext) -> Work:
        """What a task does. Each input row is passed on, kept in `at.letters`, or dropped on purpose."""

    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        return self.extend(PythonStage.of(rows), at).finish()

    def extend(self, stage: PythonStage, at: StepContext) -> PythonStage:
        return stage.then(self.work(stage.schema, at), self.output(stage.schema), at.letters)


class StatefulStep(Processor):
    """A step that keeps state between batches. The state is part of the flow's checkpoint."""

    @property
    @abstractmethod
    def state_name(self) -> str | None:
        """The state in a word, for plans; None if these options need no state."""

    @property
    def state_options(self) -> Mapping[str, Any]:
        """The options that the state depends on: a change of them needs a new generation. Default: all."""
        return self.model_dump(mode="json", exclude_defaults=True, exclude={"type"})

    @property
    def has_watermark(self) -> bool:
        """Whether it sets a watermark: then nothing else in its flow can have one."""
        return False

    @property
    def needs_one_batch(self) -> bool:
        """Whether one batch must hold all rows of a run."""
        return False


@runtime_checkable
class RunsSql(Protocol):
    """Capability of a processor: it runs SQL that the project file contains."""

    @property
    def statements(self) -> tuple[str, ...]:
        """The queries in plain Spark SQL: their functions must be registered. Empty before the step is bound."""


@runtime_checkable
class KnowsValues(Protocol):
    """Capability of a processor: its options list all values of a column that it adds, e.g. topics."""

    @property
    def known_values(self) -> Mapping[str, tuple[str, ...]]:
        """All values of such columns, by column."""


def require(schema: pa.Schema, columns: Iterable[str], step: str) -> None:
    """Refuse a step that names an unknown column. A dotted name means a field of a struct."""
    for column in columns:
        head = column.partition(".")[0]
        if column not in schema.names and head not in schema.names:
            raise ProjectError(
                "unknown-column",
                f"'{step}' uses column '{column}', which its input does not have",
                hint=did_you_mean(column, schema.names, "columns"),
            )
