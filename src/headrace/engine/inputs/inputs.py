"""The inputs of a flow as temporary views of a Spark session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.core.context import Context, ReadContext
from headrace.core.files.state_files import StatePath
from headrace.core.format import DecodesNatively, Format
from headrace.core.options.durations import spark_interval
from headrace.core.positions import Position
from headrace.core.python_stage import PythonStage
from headrace.core.records import encode_rows
from headrace.core.rows import structured
from headrace.core.schema import to_ddl
from headrace.core.source import PacksPosition, SpoilsRecords
from headrace.core.tallies.step_tally import StepTally
from headrace.engine.inputs.backfill import StreamHistory, seam_filter, with_history
from headrace.engine.inputs.decode import PACKED, DecodeStep
from headrace.engine.inputs.event_time_filter import EventTimeFilter, EventTimeFilterStep
from headrace.engine.inputs.heartbeat import heartbeat_file
from headrace.engine.inputs.heartbeat_rows import with_heartbeats, without_heartbeats
from headrace.engine.inputs.lake import starting_options
from headrace.engine.inputs.processing import CheckpointClock, Processing
from headrace.engine.letters.dead_letters import DeadLetterWriter
from headrace.engine.letters.late_rows import LateRowWriter
from headrace.engine.state.batch_clock import BatchClock
from headrace.engine.state.state import StateDir
from headrace.plan.model import FlowInput, Input, LakeInput, ProcessorStep, StreamInput
from headrace.project.model import EventTime

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


TimedInput = StreamInput | LakeInput
"""Inputs that can have an event time."""

OBSERVED = "input:"
"""The prefix of an input's name in Spark's observed metrics: `rows` and `newest`, the newest event time of a batch."""

# the column in which Spark's from_json puts a text that it cannot parse
_CORRUPT = "_corrupt_record"


@dataclass(frozen=True)
class ReadOptions:
    """How the inputs of one flow are read."""

    flow: str
    context: Context
    streaming: bool = True
    until_caught_up: bool = False
    realtime: bool = False
    max_records: int | None = None
    start: Mapping[str, Position] = field(default_factory=dict)
    """The positions at which a new generation begins, by input."""
    letters: StatePath | None = None
    """The folder for dead letters; by default that of the state folder."""
    history: Mapping[str, StreamHistory] = field(default_factory=dict)
    """The history that is read before a stream, by stream."""

    def of(self, stream: str, metadata: tuple[str, ...] | None = None) -> ReadContext:
        """The context of one stream of which the flow uses these metadata columns."""
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
        history = self.history.get(stream)
        return self.start.get(stream) if history is None or history.start is None else history.start


def register(spark: SparkSession, flow_input: Input, options: ReadOptions, state: StateDir) -> None:
    """Register an input as a temporary view under its name."""
    match flow_input:
        case StreamInput():
            frame = read_stream(spark, flow_input, options, state)
        case LakeInput():
            rows = _filter_by_time(_read_lake(spark, flow_input, options), flow_input, options, state)
            frame = _timed_steps(rows, flow_input, options, state)
        case FlowInput():
            for inner in flow_input.inputs:
                register(spark, inner, options, state)
            steps = (*flow_input.after, *flow_input.before)
            frame = structured(processed(spark.sql(flow_input.sql), steps, options, state))
    frame.createOrReplaceTempView(flow_input.name)


def processed(
    rows: DataFrame,
    steps: Sequence[ProcessorStep],
    options: ReadOptions,
    state: StateDir,
    event_time: str | None = None,
) -> DataFrame:
    return python_stage(rows, steps, options, state, event_time).finish()


def python_stage(
    rows: DataFrame,
    steps: Sequence[ProcessorStep],
    options: ReadOptions,
    state: StateDir,
    event_time: str | None = None,
) -> PythonStage:
    """The same as `processed`, as a Python stage that is still open if the last processor runs in Python."""
    letters = options.letters or state.dead_letters
    if not options.streaming:
        processing = Processing(options.context, options.flow, "adhoc", letters, streaming=False)
        return processing.extend(PythonStage.of(rows), steps, event_time)
    generation = state.current(options.flow)
    clock = CheckpointClock(BatchClock(generation.checkpoint_folder.absolute()))
    processing = Processing(options.context, options.flow, generation.id, letters, clock=clock)
    return processing.extend(PythonStage.of(rows), steps, event_time)


def _timed_steps(rows: DataFrame, timed: TimedInput, options: ReadOptions, state: StateDir) -> DataFrame:
    """Rows after the steps before the SQL, with their watermark.

    The watermark comes last: a Python stage drops it, and Spark allows no second one. Stateful steps get the times of a
    batch from their clock.
    """
    column = timed.event_time.column if timed.event_time else None
    rows = processed(rows, timed.before, options, state, column)
    return rows if column is not None and column not in rows.columns else _watermarked(rows, timed, options, state)


def read_stream(spark: SparkSession, stream: StreamInput, options: ReadOptions, state: StateDir) -> DataFrame:
    """The columns of a stream that the flow uses, with their event time."""
    source, form = stream.spec.source, stream.spec.format
    frame = source.read(spark, options.of(stream.name, (*source.position, *stream.metadata)))
    if form is None:
        rows = _filter_by_time(_with_event_time(frame, stream.event_time), stream, options, state)
        return _timed_steps(rows, stream, options, state)
    if source.yields_rows:
        frame = encode_rows(frame, form, options.context, keep=tuple(source.metadata))
        frame = source.encoded(frame) if isinstance(source, SpoilsRecords) else frame
    native = options.realtime or _is_verbatim(stream, form, options)
    rows = _decode_natively(frame, stream, form) if native else _decode(frame, stream, form, options, state)
    if stream.name in options.history:
        letters = _letters(stream, options, state)
        rows = with_history(rows, stream, state.current(options.flow), _time_filter(stream, options, state), letters)
    return _timed_steps(rows, stream, options, state)


def _is_verbatim(stream: StreamInput, form: Format, options: ReadOptions) -> bool:
    """Whether records need no Python stage: nothing to decode and no event time to check."""
    return form.verbatim and stream.event_time is None and stream.name not in options.history


def _decode(frame: DataFrame, stream: StreamInput, form: Format, options: ReadOptions, state: StateDir) -> DataFrame:
    source = stream.spec.source
    step = DecodeStep(
        decoder=form.decoder(options.context, stream.wanted),
        position=source.position,
        metadata=stream.metadata,
        filters=(*stream.filters, *seam_filter(stream, options.history.get(stream.name))),
        event_time=stream.event_time,
        on_error=stream.spec.on_error,
        letters=_letters(stream, options, state, keep_value=stream.spec.on_error == "dead_letter"),
        packed=source.packed_position if isinstance(source, PacksPosition) else None,
        time_filter=_time_filter(stream, options, state),
        tally=StepTally.of(options.flow, stream.name) if options.streaming else None,
    )
    ddl = to_ddl(step.output_schema())
    for name in stream.metadata:
        ddl += f"{', ' if ddl else ''}`{name}` {source.metadata[name]}"
    address = [f"{step.packed.expression} AS {PACKED}"] if step.packed else list(source.position)
    passed = [name for name in stream.metadata if name not in address]
    return frame.selectExpr("value", *address, *passed).mapInArrow(step, ddl)


def _decode_natively(frame: DataFrame, stream: StreamInput, form: Format) -> DataFrame:
    """Decode with Spark expressions, for real-time flows and for records that cannot be bad.

    A bad record is skipped or fails the flow.
    """
    from pyspark.sql import functions as F

    schema = stream.wanted.append(pa.field(_CORRUPT, pa.string())) if form.can_fail else stream.wanted
    assert isinstance(form, DecodesNatively), "the planner accepts only formats with a native decoder"
    row = form.native_decode(F.col("value"), schema)
    decoded = frame.select(row.alias("_row"), *stream.metadata)
    if form.can_fail:
        decoded = decoded.where(_is_good(stream))
    columns = [F.col(f"_row.`{name}`").alias(name) for name in stream.wanted.names]
    return _with_event_time(decoded.select(*columns, *stream.metadata), stream.event_time)


def _is_good(stream: StreamInput) -> Column:
    from pyspark.sql import functions as F

    bad = F.col("_row").isNull() | F.col(f"_row.{_CORRUPT}").isNotNull()
    if stream.spec.on_error == "skip":
        return ~bad
    message = F.concat(
        F.lit(f"BadRecordError: record of stream '{stream.name}': malformed: "), F.col(f"_row.{_CORRUPT}")
    )
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


def _letters(timed: TimedInput, options: ReadOptions, state: StateDir, *, keep_value: bool = True) -> DeadLetterWriter:
    return DeadLetterWriter(
        folder=options.letters or state.dead_letters,
        flow=options.flow,
        stream=timed.name,
        generation=state.current(options.flow).id if options.streaming else "adhoc",
        keep_value=keep_value,
    )


def _time_filter(timed: TimedInput, options: ReadOptions, state: StateDir) -> EventTimeFilter | None:
    """The filter of event times; None where late and future rows do no harm, and outside of batches."""
    event_time = timed.event_time
    if event_time is None or not options.streaming or options.realtime:
        return None
    keep_late = timed.late is not None and event_time.late == "keep"
    simulated = isinstance(timed, StreamInput) and timed.spec.source.simulated
    watch_future = event_time.max_future is not None and not simulated
    if not keep_late and not watch_future:
        return None
    generation = state.current(options.flow)
    return EventTimeFilter(
        event_time=event_time,
        clock=BatchClock(generation.checkpoint_folder.absolute()),
        rule=timed.late if keep_late else None,
        late=LateRowWriter(state.late.absolute(), options.flow, timed.name, generation.id) if keep_late else None,
        watch_future=watch_future,
    )


def _filter_by_time(frame: DataFrame, timed: TimedInput, options: ReadOptions, state: StateDir) -> DataFrame:
    """Rows that need no decoding: the columns that the flow uses, filtered by event time if state depends on it.

    The filter costs a Python stage. After it every column is nullable, on all branches of a union alike.
    """
    from pyspark.sql.types import StructField, StructType

    used, position = _used_columns(frame, timed)
    rows = frame.select(*(f"`{name}`" for name in used))
    time_filter = _time_filter(timed, options, state) if timed.stateful else None
    if time_filter is None:
        return rows
    extra = [name for name in position if name not in used]
    step = EventTimeFilterStep(time_filter, _letters(timed, options, state), position, extra)
    schema = StructType([StructField(field.name, field.dataType, nullable=True) for field in rows.schema])
    return frame.select(*(f"`{name}`" for name in (*used, *extra))).mapInArrow(step, schema)


def _used_columns(frame: DataFrame, timed: TimedInput) -> tuple[list[str], tuple[str, ...]]:
    """The columns that a flow uses, and the columns with the position of a row in its source."""
    if isinstance(timed, StreamInput):
        return [*timed.wanted.names, *timed.metadata], timed.spec.source.position
    if timed.columns is None:
        return frame.columns, ()
    used = {name.lower() for name in (*timed.columns, *([timed.event_time.column] if timed.event_time else []))}
    return [name for name in frame.columns if name.lower() in used] or frame.columns, ()


def _watermarked(frame: DataFrame, timed: TimedInput, options: ReadOptions, state: StateDir) -> DataFrame:
    """The rows with their watermark. In a stateful flow every batch observes the newest event time of each input."""
    from pyspark.sql import functions as F

    event_time = timed.event_time
    if event_time is None or not options.streaming or options.realtime:
        return frame
    delay = spark_interval(event_time.watermark)
    if not timed.stateful:
        return frame.withWatermark(event_time.column, delay)
    newest = F.max(F.col(f"`{event_time.column}`")).alias("newest")
    frame = frame.observe(OBSERVED + timed.name, F.count(F.lit(1)).alias("rows"), newest)
    if event_time.idle is None:
        return frame.withWatermark(event_time.column, delay)
    file = heartbeat_file(state, options.flow, timed.name)
    with_beats = with_heartbeats(frame, event_time, file, state.current(options.flow).id)
    return without_heartbeats(with_beats.withWatermark(event_time.column, delay), event_time)


def _read_lake(spark: SparkSession, table: LakeInput, options: ReadOptions) -> DataFrame:
    if not options.streaming:
        return spark.read.format("delta").load(table.path)
    reader_options = starting_options(table.path, options.start.get(table.name))
    return spark.readStream.format("delta").options(**reader_options).load(table.path)
