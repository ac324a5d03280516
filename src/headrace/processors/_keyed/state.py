"""Stateful work by key, on whole Arrow batches.

Spark's Python state passes rows one key at a time as pandas frames, which costs a fraction of a millisecond per key and
loses some types. So rows are first packed into Arrow messages, one per bucket of keys; only these go through the
shuffle and the stateful operator, and are unpacked behind it. A replayed batch has the same messages in the same order:
each carries its task and its place in it. A task is identified by its first rows, since Spark numbers the tasks of a
Kafka topic differently when it runs a batch again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from headrace.core.processor import Batches
from headrace.core.records import spark_schema
from headrace.core.schema import to_ddl
from headrace.processors._steps.columns import column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HIGH, LOW, KEYLESS = "_key_high", "_key_low", "_keyless"
"""The two halves of the hash of a row's keys, and whether all of them are null."""
_BUCKET = "_bucket"
# no names that begin with an underscore: Spark makes named tuples on the way to pandas, which drop them
_PACKED = "bucket int, task bigint, place int, message binary"
BUCKETS = 32
"""Few, so that a small batch does not call all of them; enough, so that a large state is read in parts."""
# enough rows to tell tasks apart, few enough for one Arrow batch whatever its limit is
_FIRST_ROWS = 256
# without state a part costs little, and all its rows are in memory at once
_PARTS = 4096


class KeyedWork(Protocol):
    """Processes the rows of a bucket. Pickled to executors."""

    def open(self, handle: StatefulProcessorHandle) -> None:
        """Open the state. Also called on the driver, which declares the state variables."""

    def take(self, rows: pa.Table) -> pa.Table:
        """Process the rows of one bucket in one batch, in their order. Returns the output rows."""


class TimedWork(Protocol):
    """Work that also runs for a bucket without rows, when its watermark is due. Pickled to executors."""

    def open(self, handle: StatefulProcessorHandle) -> None:
        """Open the state, as `KeyedWork.open` does."""

    def take(self, rows: pa.Table, watermark: int) -> pa.Table:
        """Process the rows of one bucket, perhaps none, in a batch with this watermark. Returns the output rows."""

    def due(self) -> int | None:
        """The watermark at which the bucket must be called again, later than the current one. In microseconds."""


def keyed(rows: DataFrame, keys: Sequence[str], work: KeyedWork, output: pa.Schema) -> DataFrame:
    """The rows after stateful work by bucket."""
    marked = _marked(rows, keys, BUCKETS)
    # no time mode: Spark's own would run empty batches for ever, and the work has its clock
    return _stateful(marked, _Stateful(work, _carried(marked)), "None", output)


def keyed_by_time(rows: DataFrame, keys: Sequence[str], work: TimedWork, output: pa.Schema) -> DataFrame:
    """The same for work with timers: a column of the rows has a watermark."""
    marked = _marked(rows, keys, BUCKETS)
    return _stateful(marked, _Timed(work, _carried(marked)), "EventTime", output)


def keyed_at_once(
    rows: DataFrame, keys: Sequence[str], work: Callable[[pa.Table], pa.Table], output: pa.Schema
) -> DataFrame:
    """The same without state: this batch has all rows of every key, and each worker gets a part of the keys."""
    marked = _marked(rows, keys, _PARTS)
    carried = _carried(marked)

    def part(rows: pa.Table) -> pa.Table:
        return work(rows.select(carried.names).cast(carried))

    return marked.groupBy(_BUCKET).applyInArrow(part, to_ddl(output))


def _marked(rows: DataFrame, keys: Sequence[str], buckets: int) -> DataFrame:
    high, low = _hashes(rows, keys)
    keyless = reduce(and_, (column(rows, key).isNull() for key in keys))
    bucket = F.pmod(high, F.lit(buckets)).cast("int")
    return rows.select("*", bucket.alias(_BUCKET), high.alias(HIGH), low.alias(LOW), keyless.alias(KEYLESS))


def _carried(marked: DataFrame) -> pa.Schema:
    return pa.schema([field for field in spark_schema(marked) if field.name != _BUCKET])


def _stateful(marked: DataFrame, work: StatefulProcessor, time_mode: str, output: pa.Schema) -> DataFrame:
    packed = marked.mapInArrow(_pack, _PACKED)
    stateful = packed.groupBy("bucket").transformWithStateInPandas(work, "message binary", "Append", time_mode)
    return stateful.mapInArrow(_Unpack(output), to_ddl(output))


def _hashes(rows: DataFrame, keys: Sequence[str]) -> tuple[Column, Column]:
    """128 bits. Spark's hash ignores nulls, so a separate flag tells whether all keys are null."""
    parts = [part for key in keys for part in (column(rows, key), column(rows, key).isNull())]
    return F.xxhash64(*parts), F.xxhash64(F.lit("low"), *parts)


def _pack(batches: Batches) -> Batches:
    """The rows of a bucket as one message."""
    task = None
    for place, batch in enumerate(batch for batch in batches if batch.num_rows):
        task = digest(batch) if task is None else task
        buckets, parts = by_bucket(batch.column(_BUCKET).to_numpy())
        rows = batch.drop_columns([_BUCKET])
        messages = [message(rows.take(pa.array(part))) for part in parts]
        where = [
            pa.repeat(pa.scalar(task, pa.int64()), len(messages)),
            pa.repeat(pa.scalar(place, pa.int32()), len(messages)),
        ]
        yield pa.RecordBatch.from_arrays(
            [pa.array(buckets), *where, pa.array(messages, pa.binary())],
            names=["bucket", "task", "place", "message"],
        )


def by_bucket(buckets: NDArray[np.int32]) -> tuple[NDArray[np.int32], list[NDArray[np.int64]]]:
    """The buckets of some rows, and the places of the rows of each bucket, in their order."""
    order = np.argsort(buckets, kind="stable")
    ordered = buckets[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    return ordered[starts], np.split(order, starts[1:])


def digest(batch: pa.RecordBatch) -> int:
    """Identifies a task. The rows are copied: a slice has arbitrary bytes where values are null."""
    first = batch.take(pa.array(range(min(batch.num_rows, _FIRST_ROWS))))
    return int.from_bytes(hashlib.blake2b(message(first), digest_size=8).digest(), signed=True)


def message(rows: pa.RecordBatch) -> bytes:
    """Rows as bytes, without their schema."""
    return bytes(rows.serialize().to_pybytes())


class _Stateful(StatefulProcessor):
    """The work as Spark's stateful processor: unpacks its input and packs its output."""

    def __init__(self, work: KeyedWork, schema: pa.Schema) -> None:
        self._work = work
        self._schema = schema

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._work.open(handle)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        yield from _packed_again(self._work.take(_unpacked(rows, self._schema)))

    def close(self) -> None:
        """Holds no resources."""


class _Timed(StatefulProcessor):
    """The same for work with timers: one Spark timer for each bucket that is due later."""

    def __init__(self, work: TimedWork, schema: pa.Schema) -> None:
        self._work = work
        self._schema = schema

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._work.open(handle)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        return self._go(_unpacked(rows, self._schema), timerValues)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        return self._go(self._schema.empty_table(), timerValues)

    def _go(self, rows: pa.Table, times: Any) -> Iterator[pd.DataFrame]:
        made = self._work.take(rows, times.getCurrentWatermarkInMs() * 1000)
        due = self._work.due()
        if due is not None:
            self._handle.registerTimer(-(-due // 1000))
        yield from _packed_again(made)

    def close(self) -> None:
        """Holds no resources."""


def _unpacked(rows: Iterator[pd.DataFrame], schema: pa.Schema) -> pa.Table:
    frame = in_order(rows)
    batches = [pa.ipc.read_record_batch(pa.py_buffer(message), schema) for message in frame["message"]]
    return pa.Table.from_batches(batches, schema).combine_chunks()


def in_order(rows: Iterator[pd.DataFrame]) -> pd.DataFrame:
    """The messages of a bucket in their original order, which the shuffle may have changed."""
    return pd.concat(list(rows)).sort_values(["task", "place"], kind="stable")


def _packed_again(made: pa.Table) -> Iterator[pd.DataFrame]:
    if made.num_rows:
        yield pd.DataFrame({"message": [message(batch) for batch in made.combine_chunks().to_batches()]})


@dataclass
class _Unpack:
    schema: pa.Schema

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for message in batch.column(0):
                yield pa.ipc.read_record_batch(pa.py_buffer(message.as_py()), self.schema)
