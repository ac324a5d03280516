"""Filters rows by the state of their keys, while the rows themselves stay out of the shuffle.

    rows ─► spill the rows, hash the keys ─► shuffle by bucket ─► decide by state ─► fetch the rows that pass

Only hashes of keys, and the few columns that the filter reads, go through the shuffle and the stateful operator, packed
into Arrow messages by bucket as in `state`. The operator returns which rows pass; they are fetched from the spill.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from headrace.core.processor import StepContext
from headrace.core.python_stage import Batches, PythonStage
from headrace.processors._keyed.key_hash import key_hashes
from headrace.processors._keyed.spill import Fetcher, Spill
from headrace.processors._keyed.state import BUCKETS, HIGH, KEYLESS, LOW, by_bucket, digest, in_order, message

_PLACE, _MARK = "_place", "_mark"
# no names that begin with an underscore: Spark makes named tuples on the way to pandas, which drop them
_FILTER_INPUT = "bucket int, task bigint, place int, message binary, note binary"
_FILTER_OUTPUT = "message binary, note binary"
_DECISIONS = pa.schema([(_PLACE, pa.int32()), (_MARK, pa.bool_())])


@dataclass(frozen=True)
class FilterDecision:
    """Which rows pass, and their marks."""

    passes: NDArray[np.bool_]
    marks: pa.Array | None = None
    """A mark for each row, if the filter marks rows."""


class KeyedFilter(Protocol):
    """Decides which rows of a bucket pass. Pickled to executors."""

    def inputs(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns that it decides by, besides the keys. Called before the shuffle."""

    def open(self, handle: StatefulProcessorHandle) -> None:
        """Open the state. Also called on the driver, which declares the state variables."""

    def decide(self, rows: pa.Table) -> FilterDecision:
        """Decide about the rows of one bucket in one batch, in their order: hashes of keys, and `inputs`."""


def filter_by_key(
    stage: PythonStage,
    keys: Sequence[str],
    row_filter: KeyedFilter,
    mark: str | None,
    output: pa.Schema,
    at: StepContext,
) -> PythonStage:
    """The rows that pass, with the mark as a column if there is one. They are fetched in a new Python stage, which
    later steps extend."""
    spill = _SpillRows(tuple(keys), row_filter, Spill.of(stage.rows, at), stage.schema)
    buckets = stage.finish_with(spill, _FILTER_INPUT).groupBy("bucket")
    # no time mode: Spark's own would run empty batches for ever, and the filter has its clock
    stateful = buckets.transformWithStateInPandas(_FilterProcessor(row_filter), _FILTER_OUTPUT, "Append", "None")
    return PythonStage.of(stateful).then(_FetchRows(stage.schema, mark, output), output)


@dataclass(frozen=True)
class _SpillRows:
    """Spills the rows of a task, and emits what the filter decides by."""

    keys: tuple[str, ...]
    row_filter: KeyedFilter
    spill: Spill
    schema: pa.Schema

    def __call__(self, batches: Batches) -> Batches:
        task = None
        with self.spill.opened(self.schema) as file:
            for place, batch in enumerate(batch for batch in batches if batch.num_rows):
                batch = batch if batch.schema == self.schema else batch.cast(self.schema)
                task = digest(batch) if task is None else task
                hashes = key_hashes(batch, self.keys)
                known = {HIGH: pa.array(hashes.high), LOW: pa.array(hashes.low), KEYLESS: pa.array(hashes.keyless)}
                inputs = pa.RecordBatch.from_pydict({**known, **self.row_filter.inputs(batch)})
                buckets, parts = by_bucket(np.mod(hashes.high, BUCKETS).astype(np.int32))
                messages, notes = [], []
                for (note, places), part in zip(file.add(batch, parts), parts, strict=True):
                    notes.append(note)
                    own = inputs.take(pa.array(part)).append_column(_PLACE, pa.array(places, pa.int32()))
                    messages.append(_stream(own))
                yield pa.RecordBatch.from_pydict(
                    {
                        "bucket": pa.array(buckets, pa.int32()),
                        "task": pa.repeat(pa.scalar(task, pa.int64()), len(parts)),
                        "place": pa.repeat(pa.scalar(place, pa.int32()), len(parts)),
                        "message": pa.array(messages, pa.binary()),
                        "note": pa.array(notes, pa.binary()),
                    }
                )


def _stream(rows: pa.RecordBatch) -> bytes:
    """Rows as bytes with their schema, which only the filter knows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue().to_pybytes())


class _FilterProcessor(StatefulProcessor):
    """The filter as Spark's stateful processor."""

    def __init__(self, row_filter: KeyedFilter) -> None:
        self._row_filter = row_filter

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._row_filter.open(handle)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        ordered = in_order(rows)
        inputs = [pa.ipc.open_stream(pa.py_buffer(stream)).read_next_batch() for stream in ordered["message"]]
        decision = self._row_filter.decide(pa.Table.from_batches(inputs).combine_chunks())
        messages, notes, start = [], [], 0
        for part, note in zip(inputs, ordered["note"], strict=True):
            end = start + part.num_rows
            passes = pa.array(decision.passes[start:end])
            places = part.column(_PLACE).filter(passes)
            marked = decision.marks
            marks = pa.nulls(len(places), pa.bool_()) if marked is None else marked[start:end].filter(passes)
            start = end
            if len(places):
                messages.append(message(pa.RecordBatch.from_arrays([places, marks], schema=_DECISIONS)))
                notes.append(note)
        if messages:
            yield pd.DataFrame({"message": messages, "note": notes})

    def close(self) -> None:
        """Holds no resources."""


@dataclass(frozen=True)
class _FetchRows:
    schema: pa.Schema
    mark: str | None
    output: pa.Schema

    def __call__(self, batches: Batches) -> Batches:
        fetcher = Fetcher(self.schema)
        for batch in batches:
            for packed, note in zip(batch.column("message"), batch.column("note"), strict=True):
                decisions = pa.ipc.read_record_batch(pa.py_buffer(packed.as_py()), _DECISIONS)
                rows = fetcher.fetch(note.as_py()).take(decisions.column(_PLACE))
                columns = [self._column(name, rows, decisions) for name in self.output.names]
                yield pa.RecordBatch.from_arrays(columns, schema=self.output)

    def _column(self, name: str, rows: pa.RecordBatch, decisions: pa.RecordBatch) -> pa.Array:
        return decisions.column(_MARK) if name == self.mark else rows.column(name)
