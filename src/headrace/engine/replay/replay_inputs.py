"""The inputs of a flow when dead letters are replayed: its streams hold the letters, and nothing else."""

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
    """Makes views of letters. Letters that are bad again are put down in `bad`, by their ids."""

    spark: SparkSession
    flow: str
    context: Context
    letters: StatePath
    bad: StatePath
    replay: str
    begun_at: datetime
    """The time of the batch: what is too far in the future of it is bad."""

    @property
    def processing(self) -> Processing:
        """Where the flow's steps run on what comes of the letters."""
        return Processing(self.context, self.flow, self.replay, self.bad, streaming=False)

    def register(self, one: Input) -> None:
        """Make an input a view under its own name."""
        match one:
            case StreamInput():
                frame = self._stream(one)
            case LakeInput():
                # a flow without state gives for the rows of one input what it gives without the others
                frame = self.spark.read.format("delta").load(one.path).where("false")
            case FlowInput():
                for inner in one.inputs:
                    self.register(inner)
                frame = structured(self.through(self.spark.sql(one.sql), one.after))
        frame = self.through(frame, one.before)
        frame.createOrReplaceTempView(one.name)

    def through(self, rows: DataFrame, steps: Sequence[ProcessorStep]) -> DataFrame:
        """The rows after these steps; the letters of each step come in where it stands."""
        for step in steps:
            given = spark_schema(rows)
            rows = self.processing.run(rows, [step])
            if step.id in self._met_by:
                # apart from the others, so that a row that is refused again is known by its letter
                again = self.processing.run(self._rows_of(step, given), [step])
                rows = rows.unionByName(again.drop(LETTER))
        return rows

    @cached_property
    def _met_by(self) -> frozenset[str]:
        """The streams and steps that have met the letters."""
        return frozenset(pc.unique(read_tables([self.letters], None, ["stream"])["stream"]).to_pylist())

    def _rows_of(self, step: ProcessorStep, schema: pa.Schema) -> DataFrame:
        box = DeadLetterWriter(self.bad, self.flow, step.id, self.replay, keep_value=False)
        reader = RowReader(schema, box)
        letters = self.spark.read.schema(_COLUMNS).parquet(spark_path(self.letters))
        mine = letters.where(letters["stream"] == step.id).select("id", "value")
        return mine.mapInArrow(reader, to_ddl(reader.output_schema))

    def _stream(self, one: StreamInput) -> DataFrame:
        form = one.spec.format
        if form is None:
            return self.spark.createDataFrame([], self._ddl(one, _timed(one)))
        letters = self.spark.read.schema(_COLUMNS).parquet(spark_path(self.letters))
        step = self._step(one, form)
        records = _in_order(letters.where(letters["stream"] == one.name), one)
        metadata = [_metadata(one, name) for name in one.metadata]
        return records.selectExpr("value", f"id AS {LETTER}", *metadata).mapInArrow(
            step, self._ddl(one, step.output_schema())
        )

    def _step(self, one: StreamInput, form: Format) -> DecodeStep:
        return DecodeStep(
            decoder=form.decoder(self.context, one.wanted),
            position=(LETTER,),
            metadata=one.metadata,
            filters=one.filters,
            event_time=one.event_time,
            # whatever the stream says now: a letter that is still bad stays a letter
            on_error="dead_letter",
            letters=DeadLetterWriter(self.bad, self.flow, one.name, self.replay, keep_value=False),
            time_filter=self._gate(one),
        )

    def _gate(self, one: StreamInput) -> EventTimeFilter | None:
        event_time = one.event_time
        if event_time is None or event_time.max_future is None or one.spec.source.simulated:
            return None
        microseconds = round(self.begun_at.timestamp() * 1_000_000)
        return EventTimeFilter(
            event_time, BatchClock(Path(), BatchTimes(batch_id=0, task=0, timestamp=microseconds, watermark=0))
        )

    @staticmethod
    def _ddl(one: StreamInput, schema: pa.Schema) -> str:
        metadata = [f"`{name}` {one.spec.source.metadata[name]}" for name in one.metadata]
        return ", ".join([to_ddl(schema), *metadata])


def _timed(one: StreamInput) -> pa.Schema:
    if one.event_time is None:
        return one.wanted
    index = one.wanted.get_field_index(one.event_time.column)
    return one.wanted.set(index, pa.field(one.event_time.column, TIMESTAMP))


def _in_order(letters: DataFrame, one: StreamInput) -> DataFrame:
    """The letters of one partition or file in one task, in the order of their positions."""
    source = one.spec.source
    if not source.position:
        return letters
    fields = ", ".join(f"`{name.lstrip('_')}` {source.metadata[name]}" for name in source.position)
    placed = letters.selectExpr("*", f"from_json(position, '{fields}') AS _place")
    parts = [f"_place.`{name.lstrip('_')}`" for name in source.position]
    together = placed.repartition(*parts[:-1]) if parts[:-1] else placed.repartition(1)
    return together.sortWithinPartitions(*parts)


def _metadata(one: StreamInput, name: str) -> str:
    """A metadata column: as it was kept with the letter, else from the letter's position."""
    kind = one.spec.source.metadata[name]
    kept = f"from_json(metadata, '`{name}` {kind}').`{name}`"
    if name not in one.spec.source.position:
        return f"{kept} AS `{name}`"
    return f"coalesce({kept}, _place.`{name.lstrip('_')}`) AS `{name}`"
