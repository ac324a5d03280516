"""Rows whose key has not been there for some time."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from pydantic import Field

from headrace.core.durations import Duration, format_duration
from headrace.core.processor import Processor, StepContext
from headrace.core.records import spark_schema
from headrace.processors._columns import check_key, heads, type_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Deduplicate(Processor):
    """Lets the first row of a key through and drops its repeats for a time, which they do not prolong.

    Time is the event time where the rows are those of a stream that has one, else that of the batch. A row is a repeat
    when a row of its key that came through is less than `ttl` away; one that is `ttl` or more after it comes through
    and begins anew. Within a batch rows are taken in the order of their event times. A row that is up to `ttl` behind
    the watermark is judged as exactly as one in time; an even later one may come through although it is a repeat, and
    windows after this step treat it as late. Rows whose keys are all null are no repeats of each other.

    Delivery: what has been seen is part of the flow's checkpoint, so a batch that runs again drops the same rows. Order
    is not kept: rows are brought together by key. Scale: 24 bytes per key and time, in RocksDB, forgotten after `ttl`
    (twice `ttl` of event time); keys are compared by a hash of 128 bits.
    """

    type: Literal["deduplicate"] = "deduplicate"
    key: list[str] = Field(
        min_length=1,
        description="The columns, or fields of structs such as `order.id`, that make a row the same as another.",
        examples=[["order_number"]],
    )
    ttl: Duration = Field(
        description="For how long after the first row of a key its repeats are dropped.", examples=["1h"]
    )

    @property
    def remembers(self) -> str:
        """What has been seen."""
        return "deduplicate"

    @property
    def label(self) -> str:
        """Keys and time."""
        return f"deduplicate by {', '.join(self.key)} for {format_duration(self.ttl)}"

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """The keys too."""
        return None if wanted is None else wanted | heads(self.key)

    def output(self, given: pa.Schema) -> pa.Schema:
        """The same columns."""
        for name in self.key:
            check_key(type_of(given, name, "deduplicate"), name, "deduplicate")
        return given

    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        """Keys in buckets, each with a list of what it has seen."""
        from headrace.processors._firsts_work import FirstsWork
        from headrace.processors._keyed import keyed

        schema = self.output(spark_schema(rows))
        time = at.event_time if at.event_time in schema.names else None
        work = FirstsWork(self.ttl // timedelta(microseconds=1), time, at.clock)
        return keyed(rows, self.key, work, schema)
