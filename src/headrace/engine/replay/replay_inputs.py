"""The inputs of a flow during a replay: its streams contain only the dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.context import Context
from headrace.core.files.state_files import StatePath, spark_path
from headrace.core.format import Format
from headrace.core.records import spark_schema
from headrace.core.rows import structured
from headrace.core.schema import TIMESTAMP, to_ddl
from headrace.engine.inputs.decode import DecodeStep
from headrace.engine.inputs.event_time_filter import EventTimeFilter
from headrace.engine.inputs.processing import Processing
from headrace.engine.letters.dead_letters import SCHEMA as LETTERS
from headrace.engine.letters.dead_letters import DeadLetterWriter
from headrace.engine.letters.step_rows import LETTER, RowReader
from headrace.engine.state.batch_clock import BatchClock, BatchTimes
from headrace.engine.state.parquet_files import read_tables
from headrace.plan.model import FlowInput, Input, LakeInput, ProcessorStep, StreamInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = to_ddl(pa.schema([LETTERS.field(name) for name in ("id", "stream", "position", "metadata", "value")]))


@dataclass(frozen=True)
class LetterInputs:
    """Registers dead letters as the inputs of a flow. Letters that are refused again are written to `bad`."""

    spark: SparkSession
    flow: str
    context: Context
    letters: StatePath
    bad: StatePath
    replay: str
    begun_at: datetime
    """The time of the batch: an event time too far after it is refused."""

    @property
    def processing(self) -> Processing:
        return Processing(self.context, self.flow, self.replay, self.bad, streaming=False)

    def register(self, item: Input) -> None:
        """Register an input as a temporary view under its name."""
        match item:
            case StreamInput():
                frame = self._stream(item)
            case LakeInput():
                # in a flow without state the rows of one input do not depend on the other inputs
                frame = self.spark.read.format("delta").load(item.path).where("false")
            case FlowInput():
                for inner in item.inputs:
                    self.register(inner)
                frame = structured(self.apply_steps(self.spark.sql(item.sql), item.after))
        frame = self.apply_steps(frame, item.before)
        frame.createOrReplaceTempView(item.name)

    def apply_steps(self, rows: DataFrame, steps: Sequence[ProcessorStep]) -> DataFrame:
        """The rows after these steps. The dead letters of a step are added to its input."""
        for step in steps:
            schema = spark_schema(rows)
            rows = self.processing.run(rows, [step])
            if step.id in self._origins:
                # separate from the other rows, so that a row that is refused again keeps the id of its letter
                replayed = self.processing.run(self._rows_of(step, schema), [step])
                rows = rows.unionByName(replayed.drop(LETTER))
        return rows

    @cached_property
    def _origins(self) -> frozenset[str]:
        """The streams and steps that refused the letters."""
        return frozenset(pc.unique(read_tables([self.letters], None, ["stream"])["stream"]).to_pylist())

    def _rows_of(self, step: ProcessorStep, schema: pa.Schema) -> DataFrame:
        box = DeadLetterWriter(self.bad, self.flow, step.id, self.replay, keep_value=False)
        reader = RowReader(schema, box)
        letters = self.spark.read.schema(_COLUMNS).parquet(spark_path(self.letters))
        mine = letters.where(letters["stream"] == step.id).select("id", "value")
        return mine.mapInArrow(reader, to_ddl(reader.output_schema))

    def _stream(self, stream: StreamInput) -> DataFrame:
        form = stream.spec.format
        if form is None:
            return self.spark.createDataFrame([], self._ddl(stream, _timed(stream)))
        letters = self.spark.read.schema(_COLUMNS).parquet(spark_path(self.letters))
        step = self._step(stream, form)
        records = _in_order(letters.where(letters["stream"] == stream.name), stream)
        metadata = [_metadata(stream, name) for name in stream.metadata]
        return records.selectExpr("value", f"id AS {LETTER}", *metadata).mapInArrow(
            step, self._ddl(stream, step.output_schema())
        )

    def _step(self, stream: StreamInput, form: Format) -> DecodeStep:
        return DecodeStep(
            decoder=form.decoder(self.context, stream.wanted),
            position=(LETTER,),
            metadata=stream.metadata,
            filters=stream.filters,
            event_time=stream.event_time,
            # regardless of the stream's setting: a letter that is still bad stays a letter
            on_error="dead_letter",
            letters=DeadLetterWriter(self.bad, self.flow, stream.name, self.replay, keep_value=False),
            time_filter=self._time_filter(stream),
        )

    def _time_filter(self, stream: StreamInput) -> EventTimeFilter | None:
        event_time = stream.event_time
        if event_time is None or event_time.max_future is None or stream.spec.source.simulated:
            return None
        microseconds = round(self.begun_at.timestamp() * 1_000_000)
        return EventTimeFilter(
            event_time, BatchClock(Path(), BatchTimes(batch_id=0, task=0, timestamp=microseconds, watermark=0))
        )

    @staticmethod
    def _ddl(stream: StreamInput, schema: pa.Schema) -> str:
        metadata = [f"`{name}` {stream.spec.source.metadata[name]}" for name in stream.metadata]
        return ", ".join([to_ddl(schema), *metadata])


def _timed(stream: StreamInput) -> pa.Schema:
    if stream.event_time is None:
        return stream.wanted
    index = stream.wanted.get_field_index(stream.event_time.column)
    return stream.wanted.set(index, pa.field(stream.event_time.column, TIMESTAMP))


def _in_order(letters: DataFrame, stream: StreamInput) -> DataFrame:
    """The letters of one partition or file in one task, in the order of their positions."""
    source = stream.spec.source
    if not source.position:
        return letters
    fields = ", ".join(f"`{name.lstrip('_')}` {source.metadata[name]}" for name in source.position)
    placed = letters.selectExpr("*", f"from_json(position, '{fields}') AS _place")
    parts = [f"_place.`{name.lstrip('_')}`" for name in source.position]
    together = placed.repartition(*parts[:-1]) if parts[:-1] else placed.repartition(1)
    return together.sortWithinPartitions(*parts)


def _metadata(stream: StreamInput, name: str) -> str:
    """A metadata column: stored with the letter, or taken from its position."""
    kind = stream.spec.source.metadata[name]
    stored = f"from_json(metadata, '`{name}` {kind}').`{name}`"
    if name not in stream.spec.source.position:
        return f"{stored} AS `{name}`"
    return f"coalesce({stored}, _place.`{name.lstrip('_')}`) AS `{name}`"
