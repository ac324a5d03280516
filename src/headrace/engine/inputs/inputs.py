"""The inputs of a flow as views of a Spark session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.core.context import Context, ReadContext
from headrace.core.durations import spark_interval
from headrace.core.files.state_files import StatePath
from headrace.core.format import DecodesNatively, Format
from headrace.core.positions import Position
from headrace.core.python_stage import PythonStage
from headrace.core.records import encode_rows
from headrace.core.rows import structured
from headrace.core.schema import to_ddl
from headrace.core.source import PacksPosition, SpoilsRecords
from headrace.core.tallies.step_tally import StepTally
from headrace.engine.inputs.backfill import StreamHistory, seam_filter, with_history
from headrace.engine.inputs.decode import PACKED, DecodeStep
from headrace.engine.inputs.event_time_filter import Gate, GateStep
from headrace.engine.inputs.heartbeat import heartbeat_file, with_heartbeats, without_heartbeats
from headrace.engine.inputs.lake import starting_options
from headrace.engine.inputs.processing import CheckpointClock, Processing
from headrace.engine.letters.dead_letters import LetterBox
from headrace.engine.letters.late_rows import LateBox
from headrace.engine.state.batch_clock import BatchClock
from headrace.engine.state.state import StateDir
from headrace.plan.model import FlowInput, Input, LakeInput, ProcessorStep, StreamInput
from headrace.project.model import EventTime

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


TimedInput = StreamInput | LakeInput
"""Inputs that may have an event time of their own."""

OBSERVED = "input:"
"""Before the name of an input in Spark's observed metrics: `rows` and `newest`, the newest event time of a batch."""

# where Spark's from_json puts a text that it cannot read
_CORRUPT = "_corrupt_record"


@dataclass(frozen=True)
class Reading:
    """How the inputs of one flow are read."""

    flow: str
    context: Context
    streaming: bool = True
    until_caught_up: bool = False
    realtime: bool = False
    max_records: int | None = None
    start: Mapping[str, Position] = field(default_factory=dict)
    """Where a new generation begins, by the names of its inputs."""
    letters: StatePath | None = None
    """Where dead letters go; the state folder's place for them otherwise."""
    history: Mapping[str, StreamHistory] = field(default_factory=dict)
    """What is read before the stream itself, by stream."""

    def of(self, stream: str, metadata: tuple[str, ...] | None = None) -> ReadContext:
        """The context of one of its streams, of which these metadata columns are used."""
        return ReadContext(
            context=self.context,
            stream=stream,
            metadata=metadata,
            streaming=self.streaming,
            until_caught_up=self.until_caught_up,
            max_records=self.max_records,
            start=self._start_of(stream),
            held=stream in self.history and not self.history[stream].done,
        )

    def _start_of(self, stream: str) -> Position | None:
        known = self.history.get(stream)
        return self.start.get(stream) if known is None or known.start is None else known.start


def register(spark: SparkSession, one: Input, reading: Reading, state: StateDir) -> None:
    """Make an input a view under its own name."""
    match one:
        case StreamInput():
            frame = read_stream(spark, one, reading, state)
        case LakeInput():
            rows = _gated(_read_lake(spark, one, reading), one, reading, state)
            frame = _timed_steps(rows, one, reading, state)
        case FlowInput():
            for inner in one.inputs:
                register(spark, inner, reading, state)
            steps = (*one.after, *one.before)
            frame = structured(processed(spark.sql(one.sql), steps, reading, state))
    frame.createOrReplaceTempView(one.name)


def processed(
    rows: DataFrame, steps: Sequence[ProcessorStep], reading: Reading, state: StateDir, event_time: str | None = None
) -> DataFrame:
    """Rows after some processors of the flow."""
    return python_stage(rows, steps, reading, state, event_time).finish()


def python_stage(
    rows: DataFrame, steps: Sequence[ProcessorStep], reading: Reading, state: StateDir, event_time: str | None = None
) -> PythonStage:
    """The same as a Python stage, which is still open if the last of them runs in Python."""
    letters = reading.letters or state.dead_letters
    if not reading.streaming:
        there = Processing(reading.context, reading.flow, "adhoc", letters, streaming=False)
        return there.extend(PythonStage.of(rows), steps, event_time)
    generation = state.current(reading.flow)
    clock = CheckpointClock(BatchClock(generation.checkpoint_folder.absolute()))
    there = Processing(reading.context, reading.flow, generation.id, letters, clock=clock)
    return there.extend(PythonStage.of(rows), steps, event_time)


def _timed_steps(rows: DataFrame, one: TimedInput, reading: Reading, state: StateDir) -> DataFrame:
    """Rows after the steps before the SQL, with their watermark.

    It comes last: a Python stage drops the watermark, and Spark allows no second one. Stateful steps know the times of
    a batch from their clock.
    """
    column = one.event_time.column if one.event_time else None
    rows = processed(rows, one.before, reading, state, column)
    return rows if column is not None and column not in rows.columns else _watermarked(rows, one, reading, state)


def read_stream(spark: SparkSession, one: StreamInput, reading: Reading, state: StateDir) -> DataFrame:
    """A stream's rows: the columns the flow uses, with their event time."""
    source, form = one.spec.source, one.spec.format
    frame = source.read(spark, reading.of(one.name, (*source.position, *one.metadata)))
    if form is None:
        rows = _gated(_with_event_time(frame, one.event_time), one, reading, state)
        return _timed_steps(rows, one, reading, state)
    if source.yields_rows:
        frame = encode_rows(frame, form, reading.context, keep=tuple(source.metadata))
        frame = source.encoded(frame) if isinstance(source, SpoilsRecords) else frame
    native = reading.realtime or _is_verbatim(one, form, reading)
    rows = _decoded_natively(frame, one, form) if native else _decoded(frame, one, form, reading, state)
    if one.name in reading.history:
        letters = _letters(one, reading, state)
        rows = with_history(rows, one, state.current(reading.flow), _gate(one, reading, state), letters)
    return _timed_steps(rows, one, reading, state)


def _is_verbatim(one: StreamInput, form: Format, reading: Reading) -> bool:
    """Whether records are taken as they are: nothing to decode, no event time to look at, so no Python stage."""
    return form.verbatim and one.event_time is None and one.name not in reading.history


def _decoded(frame: DataFrame, one: StreamInput, form: Format, reading: Reading, state: StateDir) -> DataFrame:
    source = one.spec.source
    step = DecodeStep(
        decoder=form.decoder(reading.context, one.wanted),
        position=source.position,
        metadata=one.metadata,
        filters=(*one.filters, *seam_filter(one, reading.history.get(one.name))),
        event_time=one.event_time,
        on_error=one.spec.on_error,
        letters=_letters(one, reading, state, keep_value=one.spec.on_error == "dead_letter"),
        packed=source.packed_position if isinstance(source, PacksPosition) else None,
        gate=_gate(one, reading, state),
        tally=StepTally.of(reading.flow, one.name) if reading.streaming else None,
    )
    ddl = to_ddl(step.output_schema())
    for name in one.metadata:
        ddl += f"{', ' if ddl else ''}`{name}` {source.metadata[name]}"
    address = [f"{step.packed.expression} AS {PACKED}"] if step.packed else list(source.position)
    passed = [name for name in one.metadata if name not in address]
    return frame.selectExpr("value", *address, *passed).mapInArrow(step, ddl)


def _decoded_natively(frame: DataFrame, one: StreamInput, form: Format) -> DataFrame:
    """Decoding by Spark's own expressions, for real-time flows and for records that cannot be bad.

    A bad record is skipped or fails the flow.
    """
    from pyspark.sql import functions as F

    schema = one.wanted.append(pa.field(_CORRUPT, pa.string())) if form.can_fail else one.wanted
    assert isinstance(form, DecodesNatively), "the planner accepts only formats with a native decoder"
    row = form.native_decode(F.col("value"), schema)
    decoded = frame.select(row.alias("_row"), *one.metadata)
    if form.can_fail:
        decoded = decoded.where(_is_good(one))
    columns = [F.col(f"_row.`{name}`").alias(name) for name in one.wanted.names]
    return _with_event_time(decoded.select(*columns, *one.metadata), one.event_time)


def _is_good(one: StreamInput) -> Column:
    from pyspark.sql import functions as F

    bad = F.col("_row").isNull() | F.col(f"_row.{_CORRUPT}").isNotNull()
    if one.spec.on_error == "skip":
        return ~bad
    message = F.concat(F.lit(f"BadRecordError: record of stream '{one.name}': malformed: "), F.col(f"_row.{_CORRUPT}"))
    return F.when(bad, F.raise_error(message).cast("boolean")).otherwise(F.lit(True))


def _with_event_time(frame: DataFrame, event_time: EventTime | None) -> DataFrame:
    if event_time is None:
        return frame
    return frame.withColumn(event_time.column, _as_timestamp(frame, event_time))


def _as_timestamp(frame: DataFrame, event_time: EventTime) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, TimestampType

    column = F.col(f"`{event_time.column}`")
    kind = frame.schema[event_time.column].dataType
    if isinstance(kind, TimestampType):
        return column
    if isinstance(kind, StringType):
        return column.cast("timestamp")
    match event_time.unit:
        case "s":
            return F.timestamp_seconds(column)
        case "ms":
            return F.timestamp_millis(column.cast("bigint"))
        case "us":
            return F.timestamp_micros(column.cast("bigint"))
        case "ns":
            return F.timestamp_micros((column / 1000).cast("bigint"))


def _letters(one: TimedInput, reading: Reading, state: StateDir, *, keep_value: bool = True) -> LetterBox:
    return LetterBox(
        folder=reading.letters or state.dead_letters,
        flow=reading.flow,
        stream=one.name,
        generation=state.current(reading.flow).id if reading.streaming else "adhoc",
        keep_value=keep_value,
    )


def _gate(one: TimedInput, reading: Reading, state: StateDir) -> Gate | None:
    """What looks at event times before Spark does; nothing where they cannot do harm or there is no batch."""
    event_time = one.event_time
    if event_time is None or not reading.streaming or reading.realtime:
        return None
    keeps_late = one.late is not None and event_time.late == "keep"
    simulated = isinstance(one, StreamInput) and one.spec.source.simulated
    watches_future = event_time.max_future is not None and not simulated
    if not keeps_late and not watches_future:
        return None
    generation = state.current(reading.flow)
    return Gate(
        event_time=event_time,
        clock=BatchClock(generation.checkpoint_folder.absolute()),
        rule=one.late if keeps_late else None,
        late=LateBox(state.late.absolute(), reading.flow, one.name, generation.id) if keeps_late else None,
        watch_future=watches_future,
    )


def _gated(frame: DataFrame, one: TimedInput, reading: Reading, state: StateDir) -> DataFrame:
    """Rows that need no decoding: the columns the flow uses and, where state depends on event times, a gate.

    The gate costs a way through Python, and after it every column may be null, on all branches of a union alike.
    """
    from pyspark.sql.types import StructField, StructType

    used, position = _used_columns(frame, one)
    rows = frame.select(*(f"`{name}`" for name in used))
    gate = _gate(one, reading, state) if one.stateful else None
    if gate is None:
        return rows
    extra = [name for name in position if name not in used]
    step = GateStep(gate, _letters(one, reading, state), position, extra)
    schema = StructType([StructField(field.name, field.dataType, nullable=True) for field in rows.schema])
    return frame.select(*(f"`{name}`" for name in (*used, *extra))).mapInArrow(step, schema)


def _used_columns(frame: DataFrame, one: TimedInput) -> tuple[list[str], tuple[str, ...]]:
    """The columns of rows that a flow uses, and those that say where a row stands in its source."""
    if isinstance(one, StreamInput):
        return [*one.wanted.names, *one.metadata], one.spec.source.position
    if one.columns is None:
        return frame.columns, ()
    wanted = {name.lower() for name in (*one.columns, *([one.event_time.column] if one.event_time else []))}
    return [name for name in frame.columns if name.lower() in wanted] or frame.columns, ()


def _watermarked(frame: DataFrame, one: TimedInput, reading: Reading, state: StateDir) -> DataFrame:
    """The rows with their watermark. In a flow with state, how far each input has come is observed in every batch."""
    from pyspark.sql import functions as F

    event_time = one.event_time
    if event_time is None or not reading.streaming or reading.realtime:
        return frame
    delay = spark_interval(event_time.watermark)
    if not one.stateful:
        return frame.withWatermark(event_time.column, delay)
    newest = F.max(F.col(f"`{event_time.column}`")).alias("newest")
    frame = frame.observe(OBSERVED + one.name, F.count(F.lit(1)).alias("rows"), newest)
    if event_time.idle is None:
        return frame.withWatermark(event_time.column, delay)
    file = heartbeat_file(state, reading.flow, one.name)
    beating = with_heartbeats(frame, event_time, file, state.current(reading.flow).id)
    return without_heartbeats(beating.withWatermark(event_time.column, delay), event_time)


def _read_lake(spark: SparkSession, one: LakeInput, reading: Reading) -> DataFrame:
    if not reading.streaming:
        return spark.read.format("delta").load(one.path)
    options = starting_options(one.path, reading.start.get(one.name))
    return spark.readStream.format("delta").options(**options).load(one.path)
