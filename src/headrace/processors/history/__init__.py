"""The past of a key, at each of its rows."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pydantic import Field, PrivateAttr, model_validator

from headrace.core.context import Context
from headrace.core.durations import Duration, format_duration
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.processor import PlanContext, StatefulStep, StepContext, require
from headrace.core.records import spark_schema
from headrace.core.schema import ddl_type, to_ddl
from headrace.processors._lookup.lookup import check_alike
from headrace.processors._lookup.tables import LookupTable, PinnedVersions, TableAt
from headrace.processors._steps.columns import check_key, heads, type_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

_MICROSECOND = timedelta(microseconds=1)


class History(StatefulStep):
    """Remembers every row of a key for a long time, and gives each new row what its key has been through.

    The column it adds is an array of structs, the newest event first, without the row itself unless `with_self`. A row
    sees the events of its key that came before it and are not later than it: those of the `last` time, or between the
    times in two of its columns. Time is the event time where the rows are those of a stream that has one, else that of
    the batch. Within a batch rows are taken in the order of their times. Rows whose keys are all null are neither
    remembered nor given a past.

    `write_read` remembers and reads. `write` only remembers, and rows come out as they went in: for filling a history
    before it is used; going over to `write_read` keeps what is remembered. `read` does not remember: it reads what
    another flow has put into its lake table. State cannot be shared between flows, so a history for several flows is a
    flow with a lake sink.

    Delivery: what is remembered is part of the flow's checkpoint, and a batch that runs again gives the same rows. In
    `read`, the version of the lake table is written down for each batch, as with `table`. Order is not kept: rows are
    brought together by key. Columns may be added later: older events have null there. Scale: all events of `keep` are
    in RocksDB, in Arrow form by key and slice of time; a batch reads the slices of the keys in it. A key with very many
    events makes large arrays: use `limit`.
    """

    type: Literal["history"] = "history"
    key: list[str] = Field(
        min_length=1,
        description="The columns, or fields of structs such as `customer.id`, whose past is kept.",
        examples=[["customer_id"]],
    )
    columns: list[str] | None = Field(
        None,
        description="What is remembered of a row. Default: all columns; in mode read those of the table.",
        examples=[["order_id", "amount", "event_timestamp"]],
    )
    column: str = Field("history", min_length=1, description="The column with the events.", examples=["past_orders"])
    keep: Duration = Field(timedelta(days=90), description="How long events are remembered.", examples=["90d"])
    last: Duration | None = Field(
        None, description="How far a row looks back. Default: all that is remembered.", examples=["24h"]
    )
    since: str | None = Field(
        None, description="A column with the time from which on a row looks at the past, instead of `last`."
    )
    until: str | None = Field(None, description="A column with the time up to which it does, with `since`.")
    limit: int | None = Field(None, gt=0, description="At most this many events per row, the newest ones.")
    with_self: bool = Field(False, description="Whether the row itself is the first of its events.")
    mode: Literal["write_read", "write", "read"] = Field(
        "write_read", description="Whether rows are remembered, and whether their past is read."
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
            raise ValueError("mode read has no row itself among the events")
        if self.mode == "read" and any("." in name for name in self.key):
            raise ValueError("in mode read a key is a column that rows and table have under the same name")
        return self

    @property
    def state_name(self) -> str | None:
        return None if self.mode == "read" else "history"

    @property
    def state_options(self) -> Mapping[str, Any]:
        """How it is read, and which columns, may change."""
        return {"key": self.key, "keep": format_duration(self.keep)}

    @property
    def label(self) -> str:
        of = f" from {self.table.label}" if self.table is not None else f" for {format_duration(self.keep)}"
        return f"history ({self.mode}) of {', '.join(self.key)}{of}"

    def bound(self, project: PlanContext) -> History:
        if self.table is None:
            return self
        bound = self.model_copy()
        bound._place = self.table.place(project)
        return bound

    def check(self, context: Context) -> None:
        """Refuse a table that is not there."""
        if self._place is not None and self._place.schema() is None:
            raise self._place.missing()

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        if wanted is None or (self.columns is None and self.mode != "read"):
            return None
        own = [*self.key, *([] if self.mode == "read" else self.columns or ())]
        return wanted - {self.column} | heads(own) | {one for one in (self.since, self.until) if one}

    def output(self, schema: pa.Schema) -> pa.Schema:
        for name in self.key:
            check_key(type_of(schema, name, "history"), name, "history")
        for name in (one for one in (self.since, self.until) if one is not None):
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
        """By key on Spark's state, or in each Arrow batch from a table."""
        from headrace.processors._keyed.state import keyed
        from headrace.processors.history.state import TIME
        from headrace.processors.history.work import HistoryWork, LookBack

        if self.mode != "write":
            rows = rows.drop(self.column)
        given = spark_schema(rows)
        look = LookBack((self.last or self.keep) // _MICROSECOND, self.since, self.until, self.limit, self.with_self)
        time = at.event_time if at.event_time in given.names else None
        if self._place is not None:
            return self._read(rows, given, look, time, at)
        events = self._events(given)
        schema = pa.schema([(TIME, pa.int64()), *events])
        names = tuple(field.name for field in events)
        read = None if self.mode == "write" else look
        work = HistoryWork(names, schema, self.column, read, self.keep // _MICROSECOND, time, at.clock)
        return keyed(rows, self.key, work, self.output(given))

    def _read(self, rows: DataFrame, schema: pa.Schema, look: Any, time: str | None, at: StepContext) -> DataFrame:
        from headrace.processors.history.read import EventTable, ReadWork

        assert self._place is not None
        events = self._table_events(schema)
        theirs = self._place.schema()
        if theirs is None or any(pa.types.is_null(field.type) for field in events):
            raise self._place.missing()
        keys = pa.schema([theirs.field(name) for name in self.key])
        table = EventTable(self._place, keys, self.time or "", pa.schema(events))
        work = ReadWork(table, self.column, look, time, at.clock, PinnedVersions.of(at))
        return rows.mapInArrow(work, to_ddl(self.output(schema)))
