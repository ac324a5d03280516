"""The earlier events of a key, for each of its rows."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pydantic import Field, PrivateAttr, model_validator

from headrace.core.context import Context
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.options.durations import Duration, format_duration
from headrace.core.processor import PlanContext, StatefulStep, StepContext, require
from headrace.core.records import spark_schema
from headrace.core.runtime.lazy import lazy_modules
from headrace.core.schema import ddl_type, to_ddl
from headrace.processors._lookup.lookup import check_alike
from headrace.processors._lookup.tables import LookupTable, PinnedVersions, TableAt
from headrace.processors._steps.columns import check_key, heads, type_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from headrace.processors._keyed import state as keyed_state
    from headrace.processors.history import read, state, work
else:
    keyed_state, read, state, work = lazy_modules(
        "headrace.processors._keyed.state",
        "headrace.processors.history.read",
        "headrace.processors.history.state",
        "headrace.processors.history.work",
    )

_MICROSECOND = timedelta(microseconds=1)


class History(StatefulStep):
    """Keeps the rows of a key for a long time, and adds to each new row the earlier events of its key.

    The added column is an array of structs, the newest event first, without the row itself unless `with_self`. A row
    sees the events of its key that arrived before it and are not later than it: those of the `last` time, or between
    the times in two of its columns. Time is the event time if the rows come from a stream that has one, else the time
    of the batch. Within a batch rows are processed in the order of their times. Rows whose keys are all null are not
    kept and see no events.

    `write_read` keeps and reads events. `write` only keeps them and leaves rows unchanged, to fill a history before it
    is used; a change to `write_read` keeps the state. `read` keeps nothing: it reads the lake table of another flow.
    State cannot be shared between flows, so a history for several flows is a flow with a lake sink.

    Delivery: the events are part of the flow's checkpoint, and a batch that runs again gives the same rows. In `read`,
    the version of the lake table is recorded for each batch, as with `table`. Order is not kept: rows are shuffled by
    key. Columns may be added later: older events have null there. Scale: all events of `keep` are in RocksDB, as Arrow
    data by key and slice of time; a batch reads the slices of its keys. A key with very many events makes large arrays:
    use `limit`.
    """

    type: Literal["history"] = "history"
    key: list[str] = Field(
        min_length=1,
        description="The key: columns, or fields of structs such as `customer.id`.",
        examples=[["customer_id"]],
    )
    columns: list[str] | None = Field(
        None,
        description="The columns of an event. Default: all columns; in mode read those of the table.",
        examples=[["order_id", "amount", "event_timestamp"]],
    )
    column: str = Field("history", min_length=1, description="The column with the events.", examples=["past_orders"])
    keep: Duration = Field(timedelta(days=90), description="How long events are kept.", examples=["90d"])
    last: Duration | None = Field(None, description="How far a row looks back. Default: `keep`.", examples=["24h"])
    since: str | None = Field(
        None, description="A column with the time of the earliest event that a row sees, instead of `last`."
    )
    until: str | None = Field(None, description="A column with the time of the latest event it sees, with `since`.")
    limit: int | None = Field(None, gt=0, description="At most this many events per row, the newest ones.")
    with_self: bool = Field(False, description="Whether the row itself is the first of its events.")
    mode: Literal["write_read", "write", "read"] = Field(
        "write_read", description="Whether rows are kept, and whether earlier events are read."
    )
    table: TableAt | None = Field(
        None, description="In mode read: the table with the events.", examples=[{"flow": "order_log"}]
    )
    time: str | None = Field(None, description="In mode read: the column of the table with the time of an event.")

    _place: LookupTable | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _consistent(self) -> History:
        if (self.since is None) != (self.until is None):
            raise ValueError("'since' and 'until' go together")
        if self.since is not None and self.last is not None:
            raise ValueError("either 'last' or 'since' and 'until'")
        if self.mode != "read" and self.last is not None and self.last > self.keep:
            raise ValueError("'last' is longer than 'keep'")
        if (self.mode == "read") != (self.table is not None and self.time is not None):
            raise ValueError("mode read needs 'table' and 'time', and no other mode has them")
        if self.mode == "read" and self.with_self:
            raise ValueError("'with_self' is not available in mode read")
        if self.mode == "read" and any("." in name for name in self.key):
            raise ValueError("in mode read a key is a column that rows and table have under the same name")
        return self

    @property
    def state_name(self) -> str | None:
        return None if self.mode == "read" else "history"

    @property
    def state_options(self) -> Mapping[str, Any]:
        """How events are read, and which columns they have, may change."""
        return {"key": self.key, "keep": format_duration(self.keep)}

    @property
    def label(self) -> str:
        of = f" from {self.table.label}" if self.table is not None else f" for {format_duration(self.keep)}"
        return f"history ({self.mode}) of {', '.join(self.key)}{of}"

    def bound(self, project: PlanContext) -> History:
        if self.table is None:
            return self
        bound = self.model_copy()
        bound._place = self.table.locate(project)
        return bound

    def check(self, context: Context) -> None:
        if self._place is not None and self._place.schema() is None:
            raise self._place.missing()

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        if wanted is None or (self.columns is None and self.mode != "read"):
            return None
        own = [*self.key, *([] if self.mode == "read" else self.columns or ())]
        return wanted - {self.column} | heads(own) | {name for name in (self.since, self.until) if name}

    def output(self, schema: pa.Schema) -> pa.Schema:
        for name in self.key:
            check_key(type_of(schema, name, "history"), name, "history")
        for name in (bound for bound in (self.since, self.until) if bound is not None):
            kind = type_of(schema, name, "history")
            if not pa.types.is_null(kind) and not pa.types.is_timestamp(kind):
                message = f"'history' takes '{name}' for a time, and it is of type {ddl_type(kind)}"
                raise ProjectError("step-type", message, hint="cast it to a timestamp before this step")
        if self.mode == "write":
            require(schema, self.columns or (), "history")
            return schema
        events = self._table_events(schema) if self._place is not None else self._events(schema)
        unknown = any(pa.types.is_null(field.type) for field in events)
        kind = pa.null() if unknown else pa.list_(pa.struct(list(events)))
        return pa.schema([*(field for field in schema if field.name != self.column), (self.column, kind)])

    def _events(self, schema: pa.Schema) -> list[pa.Field]:
        require(schema, self.columns or (), "history")
        return [schema.field(name) for name in self.columns or schema.names if name != self.column]

    def _table_events(self, schema: pa.Schema) -> list[pa.Field]:
        assert self._place is not None
        theirs = self._place.schema()
        if theirs is None:
            return [pa.field(name, pa.null()) for name in self.columns or ("",)]
        for name in (*self.key, self.time or "", *(self.columns or ())):
            if name not in theirs.names:
                hint = did_you_mean(name, theirs.names, "its columns")
                message = f"table '{self._place.label}' has no column '{name}'"
                raise ProjectError("unknown-column", message, hint=hint)
        for name in self.key:
            check_alike(schema.field(name).type, theirs.field(name).type, name, self._place.label)
        return [theirs.field(name) for name in self.columns or theirs.names]

    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        if self.mode != "write":
            rows = rows.drop(self.column)
        schema = spark_schema(rows)
        span = (self.last or self.keep) // _MICROSECOND
        look = work.LookBack(span, self.since, self.until, self.limit, self.with_self)
        time = at.event_time if at.event_time in schema.names else None
        if self._place is not None:
            return self._read(rows, schema, look, time, at)
        events = self._events(schema)
        event_schema = pa.schema([(state.TIME, pa.int64()), *events])
        names = tuple(field.name for field in events)
        read_back = None if self.mode == "write" else look
        keep = self.keep // _MICROSECOND
        remember = work.HistoryWork(names, event_schema, self.column, read_back, keep, time, at.clock)
        return keyed_state.keyed(rows, self.key, remember, self.output(schema))

    def _read(self, rows: DataFrame, schema: pa.Schema, look: Any, time: str | None, at: StepContext) -> DataFrame:
        assert self._place is not None
        events = self._table_events(schema)
        theirs = self._place.schema()
        if theirs is None or any(pa.types.is_null(field.type) for field in events):
            raise self._place.missing()
        keys = pa.schema([theirs.field(name) for name in self.key])
        table = read.EventTable(self._place, keys, self.time or "", pa.schema(events))
        lookup = read.ReadWork(table, self.column, look, time, at.clock, PinnedVersions.of(at))
        return rows.mapInArrow(lookup, to_ddl(self.output(schema)))
