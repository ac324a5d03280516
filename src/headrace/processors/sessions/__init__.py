"""Rows of a key in the order of their times, given to a class of the project."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pydantic import Field, PrivateAttr, field_validator

from headrace.core.context import Context
from headrace.core.durations import Duration, format_duration, spark_interval
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.processor import PlanContext, StatefulStep, StepContext
from headrace.core.records import spark_schema
from headrace.core.schema import ddl_type, from_ddl
from headrace.processors._steps.columns import check_key, heads, type_of, typed_columns
from headrace.processors._steps.project_class import ProjectClass, find_class
from headrace.processors.sessions.run import METHODS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

_MICROSECOND = timedelta(microseconds=1)


class Sessions(StatefulStep):
    """Gives the rows of a key, in the order of their times, to an object of the project that lives for a session.

    The class is made with `options`, once per session, and has four methods. `add(row)` takes a row as a dictionary and
    `finish()` the end of the session; both give a list of rows, dictionaries of `columns`. `remember()` gives what must
    be kept between batches, as JSON can hold it, and `recall(memory)` takes it in a new object. A class in a file of
    the project is sent to workers as text, so it can use installed modules but no other file of the project.

    A session is over when its key has had no row for `gap`, or has had `limit` rows. The object can go on after that
    for `keep`, if the key comes back; then `finish` is called again at the next end. Rows of the same time are in the
    order of `order`, then of their contents: in what order rows come, and how they are divided into batches, changes
    nothing.

    What is given when: a row waits until the watermark, the newest time less `wait`, has passed it; then rows that came
    later have been sorted in. What `add` gives comes out with the first row that time has passed since, or up to a
    512th of `gap` and `keep` later; what `finish` gives when the watermark is `gap` after the last row, also if the key
    has no more rows. Without any rows the watermark stands still: the last sessions of a stream stay open, also with
    --until-caught-up, and go on in the next run. In `mode: batch` a run takes all there is in one batch and finishes
    every session at its end; nothing is remembered from run to run. After a crash such a run first ends the batch that
    was begun: what came since is for the next one.

    Rows that are no use become dead letters: `late-row` (the watermark had passed it when it came), `no-event-time`,
    `future-event-time`, `no-session-key` (all columns of the key are null), `session-limit` (so many of its key wait).

    Delivery: what is remembered is part of the flow's checkpoint, and a batch that runs again gives the same rows, if
    the class keeps to what it was given. Order: of each session. Scale: waiting rows and what objects remember are in
    RocksDB by key; a batch reads the keys that are in it and those that are due. In `mode: batch` some thousandth of
    the rows must fit into a worker's memory. It has a watermark of its own, so inputs of its flow have no event time,
    its SQL has no windows, and there is one such step in a flow.
    """

    type: Literal["sessions"] = "sessions"
    key: list[str] = Field(
        min_length=1,
        description="The columns, or fields of structs such as `user.id`, whose rows belong together.",
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
        default={}, description="Arguments by name for making the class.", examples=[{"threshold": 0.5}]
    )
    columns: str | None = Field(
        None,
        description="The columns that come out, with their types. Default: what the class says in `columns`.",
        examples=["user string, pages int"],
    )
    uses_columns: list[str] | None = Field(
        None,
        alias="uses",
        description="The columns that the class is given. Default: all.",
        examples=[["page", "at"]],
    )
    gap: Duration = Field(description="After how long without a row of its key a session is over.", examples=["30m"])
    keep: Duration | None = Field(
        None,
        description="For how long after that the object goes on if its key comes back. Default: not at all.",
        examples=["12h"],
    )
    wait: Duration = Field(
        timedelta(seconds=10), description="How long to wait for rows that come late.", examples=["10m"]
    )
    order: list[str] = Field(
        default=[], description="The columns by which rows of the same time are ordered.", examples=[["number"]]
    )
    max_future: Duration = Field(
        timedelta(hours=1), description="How far ahead of its batch the time of a row may be.", examples=["1h"]
    )
    limit: int = Field(
        10_000,
        gt=0,
        description="After how many rows a session is over, and how many rows of a key may wait: so much is kept of a "
        "key at most.",
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
        """Only which rows belong together: the object says itself what it remembers."""
        return {"key": self.key}

    @property
    def label(self) -> str:
        return f"sessions {self.class_} of {', '.join(self.key)}, over after {format_duration(self.gap)}"

    def bound(self, project: PlanContext) -> Sessions:
        """With the class found and looked at; its file is not run."""
        bound = self.model_copy()
        bound._class = find_class(self.class_, project.context, METHODS)
        bound._at_once = project.mode == "batch"
        if not bound._columns():
            hint = 'say `columns` here, or in the class: columns = "user string, pages int"'
            raise bound._class.error("python-step", "does not say which columns it gives", hint=hint)
        return bound

    def check(self, context: Context) -> None:
        """Make the class once."""
        self._found().make(self.options)

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """The key, the time and what the class is given, whatever is wanted of its rows."""
        if self.uses_columns is None:
            return None
        return frozenset({self.time}) | heads(self.key) | heads(self.uses_columns) | heads(self.order)

    def output(self, schema: pa.Schema) -> pa.Schema:
        for name in self.key:
            check_key(type_of(schema, name, "sessions"), name, "sessions")
        used = self._used(schema)
        for name in (*used, *self.order):
            if name not in schema.names or name not in used:
                message = f"'sessions' uses column '{name}', which the class is not given"
                raise ProjectError("unknown-column", message, hint=did_you_mean(name, schema.names, "columns"))
        for name in self.order:
            if pa.types.is_nested(schema.field(name).type):
                raise ProjectError("step-type", f"'sessions' orders by '{name}', which is no single value")
        kind = type_of(schema, self.time, "sessions")
        if not pa.types.is_null(kind) and not pa.types.is_timestamp(kind):
            message = f"'sessions' takes '{self.time}' for a time, and it is of type {ddl_type(kind)}"
            raise ProjectError("step-type", message, hint="make it a timestamp before this step: timestamp_millis(ets)")
        return from_ddl(self._columns() or "")

    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        """By key on Spark's state and timers; or, where a run has everything, in parts of the keys."""
        from pyspark.sql import functions as F

        from headrace.processors._keyed.state import keyed_at_once, keyed_by_time
        from headrace.processors.sessions.run import Rules, SessionRun
        from headrace.processors.sessions.work import TIME, BatchSessions, SessionWork

        given = spark_schema(rows)
        output = self.output(given)
        keep = 0 if self.keep is None else self.keep // _MICROSECOND
        rules = Rules(self.gap // _MICROSECOND, keep, self.limit, tuple(self.order))
        run = SessionRun(self._found(), self.options, rules, output)
        used = self._used(given)
        rows = rows.withColumn(TIME, self._plausible(F.col(f"`{self.time}`")))
        if self._at_once or not at.streaming:
            return keyed_at_once(rows, self.key, BatchSessions(run, used, self.time, at.clock, at.letters), output)
        rows = rows.withWatermark(TIME, spark_interval(self.wait))
        return keyed_by_time(rows, self.key, SessionWork(run, used, self.time, at.clock, at.letters), output)

    def _plausible(self, time: Column) -> Column:
        """The time, where it does not lie too far ahead of the batch: one such row would finish all sessions."""
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
