"""Sessions: passes the rows of a key, in the order of their times, to a class of the project."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pydantic import Field, PrivateAttr, field_validator

from headrace.core.context import Context
from headrace.core.durations import Duration, format_duration, spark_interval
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.lazy import lazy_modules
from headrace.core.processor import PlanContext, StatefulStep, StepContext
from headrace.core.records import spark_schema
from headrace.core.schema import ddl_type, from_ddl
from headrace.processors._steps.columns import check_key, heads, type_of, typed_columns
from headrace.processors._steps.project_class import ProjectClass, find_class
from headrace.processors.sessions.run import METHODS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from headrace.processors._keyed import state
    from headrace.processors.sessions import run, work
else:
    run, state, work = lazy_modules(
        "headrace.processors.sessions.run", "headrace.processors._keyed.state", "headrace.processors.sessions.work"
    )

_MICROSECOND = timedelta(microseconds=1)


class Sessions(StatefulStep):
    """Passes the rows of a key, in the order of their times, to an object of the project that lives for a session.

    The class is instantiated with `options`, once per session, and has four methods. `add(row)` receives a row as a
    dictionary, `finish()` is called at the end of the session; both return a list of rows, dictionaries of `columns`.
    `remember()` returns the state to keep between batches, as JSON values, and `recall(memory)` restores it in a new
    object. A class in a file of the project is sent to workers as text, so it can use installed modules but no other
    file of the project.

    A session ends when its key has had no row for `gap`, or has had `limit` rows. The object can continue for `keep`
    after that, if the key occurs again; then `finish` is called again at the next end. Rows of the same time are
    ordered by `order`, then by their contents: neither the order of arrival nor the division into batches changes the
    result.

    Timing: a row waits until the watermark, the newest time minus `wait`, has passed it, so rows that arrive late are
    sorted in. Rows of `add` are emitted with the first row after that, or up to a 512th of `gap` and `keep` later; rows
    of `finish` when the watermark is `gap` after the last row, also if the key has no more rows. Without new rows the
    watermark does not advance: the last sessions of a stream stay open, also with --until-caught-up, and continue in
    the next run. In `mode: batch` one batch reads all available rows and finishes every session; nothing is kept
    between runs. After a crash such a run first completes the batch in flight; newer rows are for the next run.

    Rows that cannot be used become dead letters: `late-row` (the watermark had passed it), `no-event-time`,
    `future-event-time`, `no-session-key` (all columns of the key are null), `session-limit` (too many rows of its key
    wait).

    Delivery: the state is part of the flow's checkpoint, and a batch that runs again gives the same rows if the class
    is deterministic. Order: of each session. Scale: waiting rows and the memory of objects are in RocksDB by key; a
    batch reads the keys in it and those that are due. In `mode: batch` about a thousandth of the rows must fit into a
    worker's memory. The step sets the watermark of its flow, so inputs have no event time, the SQL has no windows, and
    a flow has one such step.
    """

    type: Literal["sessions"] = "sessions"
    key: list[str] = Field(
        min_length=1,
        description="The key: columns, or fields of structs such as `user.id`.",
        examples=[["device", "user"]],
    )
    time: str = Field(min_length=1, description="The column with the time of a row, a timestamp.", examples=["at"])
    class_: str = Field(
        alias="class",
        pattern=r"^[^:]+:[A-Za-z_]\w*$",
        description="The file and the class, or an installed module and the class.",
        examples=["processors/visits.py:Visit"],
    )
    options: dict[str, Any] = Field(
        default={}, description="Keyword arguments of the class.", examples=[{"threshold": 0.5}]
    )
    columns: str | None = Field(
        None,
        description="The output columns with their types. Default: the attribute `columns` of the class.",
        examples=["user string, pages int"],
    )
    uses_columns: list[str] | None = Field(
        None,
        alias="uses",
        description="The columns that the class receives. Default: all.",
        examples=[["page", "at"]],
    )
    gap: Duration = Field(description="A session ends after this time without a row of its key.", examples=["30m"])
    keep: Duration | None = Field(
        None,
        description="How long after that the object can continue if its key occurs again. Default: not at all.",
        examples=["12h"],
    )
    wait: Duration = Field(timedelta(seconds=10), description="How long to wait for late rows.", examples=["10m"])
    order: list[str] = Field(
        default=[], description="The columns by which rows of the same time are ordered.", examples=[["number"]]
    )
    max_future: Duration = Field(
        timedelta(hours=1), description="How far ahead of its batch the time of a row may be.", examples=["1h"]
    )
    limit: int = Field(
        10_000,
        gt=0,
        description="A session ends after this number of rows, and as many rows of a key may wait: it limits the state "
        "of a key.",
    )

    _class: ProjectClass | None = PrivateAttr(None)
    _at_once: bool = PrivateAttr(False)

    @field_validator("columns")
    @classmethod
    def _typed(cls, value: str | None) -> str | None:
        if value is not None:
            typed_columns(value)
        return value

    @field_validator("gap")
    @classmethod
    def _longer_than_nothing(cls, value: timedelta) -> timedelta:
        if value < timedelta(milliseconds=1):
            raise ValueError("must be at least 1ms")
        return value

    @field_validator("wait")
    @classmethod
    def _at_least_a_millisecond(cls, value: timedelta) -> timedelta:
        if value < timedelta(milliseconds=1):
            raise ValueError("must be at least 1ms: rows as late as the newest one would be too late")
        return value

    @property
    def state_name(self) -> str | None:
        return None if self._at_once else "sessions"

    @property
    def has_watermark(self) -> bool:
        return not self._at_once

    @property
    def needs_one_batch(self) -> bool:
        return self._at_once

    @property
    def state_options(self) -> Mapping[str, Any]:
        """Only the key: the class defines the rest of the state."""
        return {"key": self.key}

    @property
    def label(self) -> str:
        return f"sessions {self.class_} of {', '.join(self.key)}, over after {format_duration(self.gap)}"

    def bound(self, project: PlanContext) -> Sessions:
        """Finds and parses the class; its file is not run."""
        bound = self.model_copy()
        bound._class = find_class(self.class_, project.context, METHODS)
        bound._at_once = project.mode == "batch"
        if not bound._columns():
            hint = 'set `columns` here, or in the class: columns = "user string, pages int"'
            raise bound._class.error("python-step", "does not declare its output columns", hint=hint)
        return bound

    def check(self, context: Context) -> None:
        """Instantiate the class once."""
        self._found().make(self.options)

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        if self.uses_columns is None:
            return None
        return frozenset({self.time}) | heads(self.key) | heads(self.uses_columns) | heads(self.order)

    def output(self, schema: pa.Schema) -> pa.Schema:
        for name in self.key:
            check_key(type_of(schema, name, "sessions"), name, "sessions")
        used = self._used(schema)
        for name in (*used, *self.order):
            if name not in schema.names or name not in used:
                message = f"'sessions' uses column '{name}', which the class does not receive"
                raise ProjectError("unknown-column", message, hint=did_you_mean(name, schema.names, "columns"))
        for name in self.order:
            if pa.types.is_nested(schema.field(name).type):
                raise ProjectError("step-type", f"'sessions' orders by '{name}', which is not a single value")
        kind = type_of(schema, self.time, "sessions")
        if not pa.types.is_null(kind) and not pa.types.is_timestamp(kind):
            message = f"'sessions' takes '{self.time}' for a time, and it is of type {ddl_type(kind)}"
            raise ProjectError("step-type", message, hint="make it a timestamp before this step: timestamp_millis(ets)")
        return from_ddl(self._columns() or "")

    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        """With Spark's state and timers; without state if one batch has all rows."""
        from pyspark.sql import functions as F

        schema = spark_schema(rows)
        output = self.output(schema)
        keep = 0 if self.keep is None else self.keep // _MICROSECOND
        rules = run.Rules(self.gap // _MICROSECOND, keep, self.limit, tuple(self.order))
        sessions = run.SessionRun(self._found(), self.options, rules, output)
        used = self._used(schema)
        rows = rows.withColumn(work.TIME, self._plausible(F.col(f"`{self.time}`")))
        if self._at_once or not at.streaming:
            whole = work.BatchSessions(sessions, used, self.time, at.clock, at.letters)
            return state.keyed_at_once(rows, self.key, whole, output)
        rows = rows.withWatermark(work.TIME, spark_interval(self.wait))
        timed = work.SessionWork(sessions, used, self.time, at.clock, at.letters)
        return state.keyed_by_time(rows, self.key, timed, output)

    def _plausible(self, time: Column) -> Column:
        """The time, or null if it is too far ahead of the batch: one such row would finish all sessions."""
        from pyspark.sql import functions as F

        limit = F.current_timestamp() + F.expr(f"INTERVAL {self.max_future // _MICROSECOND} MICROSECONDS")
        return F.when(time <= limit, time.cast("timestamp"))

    def _used(self, schema: pa.Schema) -> tuple[str, ...]:
        return tuple(schema.names if self.uses_columns is None else self.uses_columns)

    def _columns(self) -> str | None:
        return self.columns if self.columns is not None else self._found().columns

    def _found(self) -> ProjectClass:
        assert self._class is not None, "a step is bound before it is used"
        return self._class
