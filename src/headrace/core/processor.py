"""The contract of processors: one step between an input and SQL, or between SQL and the sinks."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa

from headrace.core.component import Component
from headrace.core.context import Context
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.records import spark_schema
from headrace.core.schema import to_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Batches = Iterator[pa.RecordBatch]
Work = Callable[[Batches], Batches]
"""What a task does with its Arrow batches. Pickled to executors, so it connects on first use."""


class StepLetters(Protocol):
    """Where a step leaves rows that it cannot process. Of one task."""

    def keep(self, rows: pa.RecordBatch, index: int, reason: str, detail: str, *, whole: bool = True) -> None:
        """Keep one row of a batch as a dead letter: `reason` is a stable code, `detail` is for people.

        Not `whole`: only that there was such a row.
        """

    def flush(self) -> None:
        """Make what was kept durable. Must have happened before the task ends; Arrow steps are flushed for them."""


class StepClock(Protocol):
    """The times of the running batch, in microseconds since 1970. Written down before it ran: the same in a replay.

    Asked by tasks; pickled to executors.
    """

    def number(self) -> int:
        """The batch."""

    def planned(self) -> int:
        """When the batch was planned: what counts as now."""

    def watermark(self) -> int:
        """Spark's bound for late rows in this batch; 0 while there is none."""


@dataclass(frozen=True)
class StandingClock:
    """The times of rows that are in no batch: all at one moment."""

    moment: int = field(default_factory=lambda: time.time_ns() // 1000)

    def number(self) -> int:
        """As if it were the first."""
        return 0

    def planned(self) -> int:
        """The moment."""
        return self.moment

    def watermark(self) -> int:
        """None."""
        return 0


@dataclass(frozen=True)
class FlowLakeTable:
    """The lake table that a flow of the project keeps."""

    path: str
    columns: tuple[str, ...] | None = None
    """The names of its columns, where they can be told without looking at it."""


class Surroundings(Protocol):
    """What a step may ask about its project while it is planned."""

    @property
    def context(self) -> Context:
        """The project's files and state."""

    @property
    def mode(self) -> str:
        """The mode of the flow: batch, micro_batch or realtime."""

    def lake_table(self, flow: str) -> FlowLakeTable:
        """The table of a flow. A ProjectError says that there is no such flow, or that it keeps none."""

    def written_out(self, sql: str) -> str:
        """A query in Spark's own words: functions of the library and of the project are replaced."""


@dataclass(frozen=True)
class StepContext(Context):
    """Where a step stands: in which flow, and which of its steps it is."""

    flow: str
    step: str
    """`before.bookings.0`, `after.1`: names the step in dead letters and metrics."""
    letters: StepLetters
    clock: StepClock = field(default_factory=StandingClock)
    generation: str = ""
    streaming: bool = True
    event_time: str | None = None
    """The event-time column of the rows, where it is known to the engine: of an input, not of a query's result."""


class Processor(Component):
    """Subclass this first: rows in, rows out, described and never started.

    The rows are a streaming DataFrame. A batch may run again after a crash: what a step gives must not depend on the
    clock, on chance or on a lookup, unless its docstring says so.
    """

    family: ClassVar[str] = "processors"
    realtime: ClassVar[bool] = False
    """Whether a real-time flow can have it: native expressions only."""

    @property
    def remembers(self) -> str | None:
        """What it keeps from batch to batch, in a word for plans; None for a step that sees each row alone."""
        return None

    def bound(self, project: Surroundings) -> Processor:
        """The same step, knowing what it needs of its project. Called once, when the flow is planned."""
        return self

    @property
    def keeps_time(self) -> bool:
        """Whether it judges rows by a watermark of its own: nothing else in its flow can have one."""
        return False

    @property
    def takes_all(self) -> bool:
        """Whether it must be given all that a run reads in one batch."""
        return False

    @property
    def statements(self) -> tuple[str, ...]:
        """The SQL that it runs, in Spark's own words: its functions must be known to Spark."""
        return ()

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        """Of columns that it makes: all texts that they may hold, where its options name them, e.g. of topics."""
        return {}

    @property
    def kept(self) -> Mapping[str, Any]:
        """The options on which depends what it keeps: a change of them needs a new generation. Default: all."""
        return self.model_dump(mode="json", exclude_defaults=True, exclude={"type"})

    def check(self, context: Context) -> None:
        """Ask the system behind this step whether it can be used; a ProjectError says what to mend."""

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """The columns it must be given so that those `wanted` come out of it; None: all of them."""
        return None

    @abstractmethod
    def output(self, given: pa.Schema) -> pa.Schema:
        """The columns that come out when these go in. A ProjectError refuses them.

        Before Spark has seen the query only names are known for sure: a type may be null, and then says nothing.
        """

    @abstractmethod
    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        """The rows after this step."""

    def apply_behind(self, rows: ArrowRows, at: StepContext) -> ArrowRows:
        """The same where work in Arrow may come first: a step that works there too shares its way through Python."""
        return ArrowRows.of(self.apply(rows.done(), at))


class ArrowProcessor(Processor):
    """A step that works on Arrow batches in the tasks. Neighbouring ones share one way through Python."""

    @abstractmethod
    def work(self, given: pa.Schema, at: StepContext) -> Work:
        """What a task does. Each row it is given comes out, is kept in `at.letters`, or is dropped on purpose."""

    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        """One way through Python."""
        return self.apply_behind(ArrowRows.of(rows), at).done()

    def apply_behind(self, rows: ArrowRows, at: StepContext) -> ArrowRows:
        """One more piece of work."""
        return rows.then(self.work(rows.schema, at), self.output(rows.schema), at)


@dataclass(frozen=True)
class ArrowRows:
    """Rows on which some work in Arrow is still to be done, so that more can be added to it."""

    frame: DataFrame
    output: pa.Schema | None = None
    """The columns after the work; None where there is none."""
    works: tuple[Work, ...] = ()
    letters: tuple[StepLetters, ...] = ()

    @staticmethod
    def of(frame: DataFrame) -> ArrowRows:
        """Rows as they are."""
        return ArrowRows(frame)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns after the work. Asked only by steps that must know: Spark has types that Arrow has not."""
        return spark_schema(self.frame) if self.output is None else self.output

    def then(self, work: Work, output: pa.Schema, at: StepContext | None = None) -> ArrowRows:
        """The rows after one more piece of work, with these columns; `at` if it is that of a step."""
        letters = self.letters if at is None else (*self.letters, at.letters)
        return ArrowRows(self.frame, output, (*self.works, work), letters)

    def done(self) -> DataFrame:
        """The rows after all work."""
        return self.frame if not self.works else self.frame.mapInArrow(self._chain, to_ddl(self.schema))

    def mapped(self, last: Work, ddl: str) -> DataFrame:
        """What a last piece of work makes of them, on the same way through Python."""
        return self.frame.mapInArrow(_Both(self._chain, last) if self.works else last, ddl)

    def on(self, frame: DataFrame) -> ArrowRows:
        """The same work, to be done on other rows of the same columns."""
        return replace(self, frame=frame)

    @property
    def _chain(self) -> Work:
        return _Chain(self.schema, self.works, self.letters)


@dataclass(frozen=True)
class _Both:
    first: Work
    second: Work

    def __call__(self, batches: Batches) -> Batches:
        return self.second(self.first(batches))


@dataclass(frozen=True)
class _Chain:
    schema: pa.Schema
    works: tuple[Work, ...]
    letters: tuple[StepLetters, ...]

    def __call__(self, batches: Batches) -> Batches:
        for work in self.works:
            batches = work(batches)
        try:
            for batch in batches:
                yield batch.cast(self.schema) if batch.schema != self.schema else batch
        finally:
            for box in self.letters:
                box.flush()


def require(given: pa.Schema, columns: Iterable[str], step: str) -> None:
    """Refuse a step that names a column which is not there. A dotted name means a field of a struct."""
    for column in columns:
        head = column.partition(".")[0]
        if column not in given.names and head not in given.names:
            raise ProjectError(
                "unknown-column",
                f"'{step}' uses column '{column}', which does not come in",
                hint=did_you_mean(column, given.names, "columns"),
            )
