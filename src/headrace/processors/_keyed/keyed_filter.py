"""Rows judged by their keys and by what is remembered of these, while the rows themselves wait.

Only hashes of keys, and the few columns a judge asks for, go through the shuffle and the stateful operator, packed into
Arrow messages by buckets of keys as in `_keyed`. What comes out of it says which rows go on, and they are fetched from
where they were left.
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
from headrace.processors._keyed.spill import Fetcher, Parking
from headrace.processors._keyed.state import BUCKETS, HIGH, KEYLESS, LOW, by_bucket, digest, in_order, message

_PLACE, _MARK = "_place", "_mark"
# no names with an underscore first: on the way to pandas Spark makes named tuples, which lose them
_ASKED = "bucket int, task bigint, place int, message binary, note binary"
_TOLD = "message binary, note binary"
_VERDICTS = pa.schema([(_PLACE, pa.int32()), (_MARK, pa.bool_())])


@dataclass(frozen=True)
class RowVerdict:
    """What becomes of rows."""

    passes: NDArray[np.bool_]
    marks: pa.Array | None = None
    """What is said about each of them, where that is asked for."""


class Judge(Protocol):
    """Decides about the rows of a bucket. Pickled to executors."""

    def asked(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """What it wants to know of rows beside their keys. Called where the rows are."""

    def open(self, handle: StatefulProcessorHandle) -> None:
        """Get hold of the state. Also called on the driver, to learn what state there is."""

    def judge(self, rows: pa.Table) -> RowVerdict:
        """The rows of one bucket in one batch, in their order: the hashes of their keys and what was asked."""


def judged(
    stage: PythonStage, keys: Sequence[str], judge: Judge, mark: str | None, output: pa.Schema, at: StepContext
) -> PythonStage:
    """The rows that pass, with the mark as a column if there is one. They are fetched in a new Python stage, which
    later steps extend."""
    leave = _Leave(tuple(keys), judge, Parking.of(stage.rows, at), stage.schema)
    asked = stage.finish_with(leave, _ASKED).groupBy("bucket")
    # no time mode: Spark's own would run empty batches for ever, and the judge has its clock
    stateful = asked.transformWithStateInPandas(_Judging(judge), _TOLD, "Append", "None")
    return PythonStage.of(stateful).then(_Fetch(stage.schema, mark, output), output)


@dataclass(frozen=True)
class _Leave:
    """Leaves the rows of a task and asks about them."""

    keys: tuple[str, ...]
    judge: Judge
    parking: Parking
    schema: pa.Schema

    def __call__(self, batches: Batches) -> Batches:
        task = None
        with self.parking.opened(self.schema) as lot:
            for place, batch in enumerate(batch for batch in batches if batch.num_rows):
                batch = batch if batch.schema == self.schema else batch.cast(self.schema)
                task = digest(batch) if task is None else task
                hashes = key_hashes(batch, self.keys)
                known = {HIGH: pa.array(hashes.high), LOW: pa.array(hashes.low), KEYLESS: pa.array(hashes.keyless)}
                question = pa.RecordBatch.from_pydict({**known, **self.judge.asked(batch)})
                buckets, parts = by_bucket(np.mod(hashes.high, BUCKETS).astype(np.int32))
                messages, notes = [], []
                for (note, places), part in zip(lot.park(batch, parts), parts, strict=True):
                    notes.append(note)
                    own = question.take(pa.array(part)).append_column(_PLACE, pa.array(places, pa.int32()))
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
    """With its schema, which only the judge knows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue().to_pybytes())


class _Judging(StatefulProcessor):
    """The judge as Spark's stateful processor."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._judge.open(handle)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        asked = in_order(rows)
        questions = [pa.ipc.open_stream(pa.py_buffer(one)).read_next_batch() for one in asked["message"]]
        told = self._judge.judge(pa.Table.from_batches(questions).combine_chunks())
        messages, notes, start = [], [], 0
        for question, note in zip(questions, asked["note"], strict=True):
            end = start + question.num_rows
            passes = pa.array(told.passes[start:end])
            places = question.column(_PLACE).filter(passes)
            marks = pa.nulls(len(places), pa.bool_()) if told.marks is None else told.marks[start:end].filter(passes)
            start = end
            if len(places):
                messages.append(message(pa.RecordBatch.from_arrays([places, marks], schema=_VERDICTS)))
                notes.append(note)
        if messages:
            yield pd.DataFrame({"message": messages, "note": notes})

    def close(self) -> None:
        """Nothing is held open."""


@dataclass(frozen=True)
class _Fetch:
    """Fetches the rows that pass."""

    schema: pa.Schema
    mark: str | None
    output: pa.Schema

    def __call__(self, batches: Batches) -> Batches:
        fetcher = Fetcher(self.schema)
        for batch in batches:
            for told, note in zip(batch.column("message"), batch.column("note"), strict=True):
                verdicts = pa.ipc.read_record_batch(pa.py_buffer(told.as_py()), _VERDICTS)
                rows = fetcher.fetch(note.as_py()).take(verdicts.column(_PLACE))
                columns = [self._column(name, rows, verdicts) for name in self.output.names]
                yield pa.RecordBatch.from_arrays(columns, schema=self.output)

    def _column(self, name: str, rows: pa.RecordBatch, verdicts: pa.RecordBatch) -> pa.Array:
        return verdicts.column(_MARK) if name == self.mark else rows.column(name)
