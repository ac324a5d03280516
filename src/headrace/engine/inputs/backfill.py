"""Backfill: a flow reads history before Kafka, in one query with one checkpoint.

A flow whose stream has a backfill is the union of two sources: the history, one part per batch, and Kafka. While
history is left, Kafka is held at its start. The query ends with the history, is started again on the same checkpoint
and state, and then reads Kafka. The parts and the seam (the position at which Kafka begins) are recorded before the
first batch and never change, so a batch that runs again has the same rows, even if the history has changed since.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.core.files.state_files import StatePath, spark_path, write_atomically
from headrace.core.filters import ColumnFilter
from headrace.core.positions import AtTime, Earliest, Position, Positions, Reached, Split, SplitScope, Target
from headrace.core.schema import TIMESTAMP, from_ddl, to_ddl
from headrace.core.source import positions_of
from headrace.engine.inputs.event_time_filter import EventTimeFilter, EventTimeFilterStep
from headrace.engine.inputs.history import lake_files, newest_offsets, parquet_files, row_groups, split_into_parts
from headrace.engine.inputs.history_rows import FILE, ROW, HistoryReader
from headrace.engine.letters.dead_letters import DeadLetterWriter
from headrace.engine.state.batch_clock import BatchClock
from headrace.engine.state.generations import Generation
from headrace.engine.state.state import StateDir
from headrace.plan.model import FlowPlan, StreamInput
from headrace.project.loader import Project
from headrace.project.model import BackfillSpec
from headrace.project.ranges import parse_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

_EMPTY = "none"


@dataclass(frozen=True)
class StreamHistory:
    """The history of one stream in one generation, as recorded in its manifest."""

    reads: str
    """The description of its source: see `BackfillSpec.reads`."""
    folder: str
    """Relative to the flow's folder; its files are the parts."""
    parts: int
    rows: int
    start: Position | None = None
    """The position at which Kafka begins."""
    done: bool = False
    skipped: bool = False
    """Whether the generation began at a position in Kafka, without history."""

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


def histories(generation: Generation) -> dict[str, StreamHistory]:
    return {name: StreamHistory(**fields) for name, fields in generation.manifest.history.items()}


def is_pending(generation: Generation | None) -> bool:
    """Whether history is left to be read before Kafka."""
    return generation is not None and any(not history.done for history in histories(generation).values())


def finish(generation: Generation | None) -> bool:
    """Record that all history was read. Returns whether it was pending: the flow then continues with Kafka."""
    if generation is None or not is_pending(generation):
        return False
    done = {name: replace(history, done=True).to_json() for name, history in histories(generation).items()}
    generation.describe(replace(generation.manifest, history=done))
    return True


def progress(generation: Generation | None) -> str | None:
    """How much of the history was read, in words; None when nothing is left."""
    if generation is None or not is_pending(generation):
        return None
    record = generation.checkpoint.committed()
    ends = () if record is None else record.ends
    done = sum(end["logOffset"] + 1 for end in ends if isinstance(end, dict) and "logOffset" in end)
    pending = {name: history for name, history in histories(generation).items() if not history.done}
    parts = sum(history.parts for history in pending.values())
    rows = sum(history.rows for history in pending.values())
    return f"reads the history of {', '.join(pending)}: {min(done, parts)} of {parts} parts ({rows:,} rows) done"


def prepare(project: Project, state: StateDir, flow: FlowPlan, generation: Generation) -> None:
    """Determine the history and the seam of each stream with a backfill; once for a generation."""
    prepared = histories(generation)
    for stream in flow.streams():
        backfill = stream.spec.backfill
        if backfill is None:
            continue
        history = prepared.get(stream.name)
        if history is not None and (history.reads == backfill.reads or generation.checkpoint.begun()):
            continue
        try:
            prepared[stream.name] = _history(project, state, flow, stream, backfill, generation)
        except ProjectError as error:
            raise error.at(project.origin("streams", stream.name, "backfill")) from None
    documents = {name: history.to_json() for name, history in prepared.items()}
    if documents != generation.manifest.history:
        generation.describe(replace(generation.manifest, history=documents))


def _history(
    project: Project,
    state: StateDir,
    flow: FlowPlan,
    stream: StreamInput,
    backfill: BackfillSpec,
    generation: Generation,
) -> StreamHistory:
    reads = backfill.reads
    if stream.name in generation.manifest.start:
        # Spark needs an existing folder, and on an object store a folder exists only if it has content
        write_atomically(_folder(state, flow.name, _EMPTY) / ".none", b"")
        return StreamHistory(reads, _EMPTY, 0, 0, done=True, skipped=True)

    context = project.context
    if backfill.lake is not None:
        _version, files = lake_files(context.path(backfill.lake))
    else:
        ranges = parse_ranges(backfill.dates) if backfill.dates else []
        files = parquet_files([context.path(path) for path in backfill.paths], ranges)
    time = stream.spec.event_time
    groups = row_groups(files, _stored(stream), time.column if time else None, time.unit if time else "ms")
    if backfill.until is not None:
        limit = _micros(backfill)
        groups = [group for group in groups if group.first is None or limit is None or group.first < limit]
    offsets = None if backfill.until is not None else newest_offsets(files, _topics(stream))
    delay = round(time.watermark.total_seconds() * 1_000_000) if time and stream.stateful else None
    parts = split_into_parts(groups, flow.max_records, delay)
    start = _seam(stream, backfill, offsets, context)
    folder = f"{generation.id}-{stream.name}"
    _write_parts(_folder(state, flow.name, folder), [[group.to_line() for group in part] for part in parts])
    return StreamHistory(reads, folder, len(parts), sum(group.rows for group in groups), start)


def _topics(stream: StreamInput) -> list[str]:
    return list(getattr(stream.spec.source, "topics", []))


def _stored(stream: StreamInput) -> pa.Schema:
    """The columns that are read from the history: those of the record, and the metadata that the flow uses."""
    assert stream.schema is not None, f"schema of {stream.name} is not known yet"
    kinds = stream.spec.source.metadata
    used = from_ddl(", ".join(f"{name} {kinds[name]}" for name in stream.metadata)) if stream.metadata else ()
    return pa.schema([*stream.schema, *used])


def _folder(state: StateDir, flow: str, name: str) -> StatePath:
    # not in the folder of the generation: a copy of its checkpoint continues with the same files
    return state.generations(flow).folder / "history" / name


def _write_parts(folder: StatePath, parts: list[list[str]]) -> None:
    """One small file for each part. Spark reads them in the order of their modification times, one per batch.

    The modification time of an object cannot be set. So objects are written one after another; Spark orders those of
    the same second by name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number, lines in enumerate(parts):
        file = folder / f"{number:06}.json"
        write_atomically(file, "".join(f"{line}\n" for line in lines).encode())
        if isinstance(file, Path):
            os.utime(file, (number + 1, number + 1))


def _micros(backfill: BackfillSpec) -> int | None:
    return None if backfill.until is None else round(backfill.until.timestamp() * 1_000_000)


def _seam(
    stream: StreamInput, backfill: BackfillSpec, offsets: Mapping[str, Mapping[int, int]] | None, context: Context
) -> Position | None:
    positions = positions_of(stream.spec.source, context)
    try:
        if backfill.until is not None:
            return positions.resolve(AtTime(backfill.until - backfill.margin), None, SplitScope())
        return _after(offsets or {}, positions)
    finally:
        positions.close()


def _after(offsets: Mapping[str, Mapping[int, int]], positions: Positions) -> Position:
    """The offset after the newest one in the history, per partition; without history the first offset."""
    seam: dict[str, dict[str, int]] = {}
    for split in positions.measure(None):
        newest = offsets.get(split.topic, {}).get(split.partition)
        seam.setdefault(split.topic, {})[str(split.partition)] = split.start if newest is None else newest + 1
        if newest is not None:
            _check_gap(split, newest)
    return seam


def _check_gap(split: Split, newest: int) -> None:
    place = f"{split.topic}:{split.partition}"
    if split.start > newest + 1:
        raise ProjectError(
            "backfill-gap",
            f"the history ends at offset {newest} of {place}, and Kafka has records from offset {split.start}: "
            f"{split.start - newest - 1:,} records are in neither",
            hint="bring the history up to date, or use `until` if its rows are not from this topic",
            exit_code=Exit.CONFLICT,
        )
    if newest >= split.end:
        raise ProjectError(
            "backfill-gap",
            f"the history ends at offset {newest} of {place}, but the topic ends at {split.end}: "
            "the history is from another topic",
            hint="check the topic; if it was created again, use `until` instead of offsets",
            exit_code=Exit.CONFLICT,
        )


@dataclass
class HistoryStep:
    """Reads row groups of history and filters their rows by event time, as the function of `mapInArrow`."""

    read: HistoryReader
    time_filter: EventTimeFilterStep | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = self.read(batches)
        return (
            self.time_filter(rows)
            if self.time_filter is not None
            else (batch.drop_columns([FILE, ROW]) for batch in rows)
        )


def seam_filter(stream: StreamInput, history: StreamHistory | None) -> tuple[ColumnFilter, ...]:
    """The filter that drops rows from Kafka that belong to the history."""
    limit = _micros(stream.spec.backfill) if stream.spec.backfill else None
    if limit is None or history is None or history.skipped or stream.event_time is None:
        return ()
    return (ColumnFilter(stream.event_time.column, ">=", (limit,)),)


def with_history(
    rows: DataFrame,
    stream: StreamInput,
    generation: Generation,
    time_filter: EventTimeFilter | None,
    letters: DeadLetterWriter,
) -> DataFrame:
    history = histories(generation)[stream.name]
    backfill, time = stream.spec.backfill, stream.event_time
    assert backfill is not None, "only streams with a backfill have history"
    column = time.column if time else None
    fields = [pa.field(field.name, TIMESTAMP) if field.name == column else field for field in stream.wanted]
    metadata = list(_stored(stream))[len(stream.schema or ()) :]
    read = HistoryReader(pa.schema([*fields, *metadata]), column, time.unit if time else "ms", _micros(backfill))
    if time_filter is None and time is not None:
        # rows without an event time must not be lost at the seam
        time_filter = EventTimeFilter(time, BatchClock(generation.checkpoint_folder.absolute()), watch_future=False)
    filter_step = None if time_filter is None else EventTimeFilterStep(time_filter, letters, (FILE, ROW), (FILE, ROW))
    folder = generation.folder.parent / "history" / history.folder
    options = {"maxFilesPerTrigger": "1", "maxFileAge": "36500d"}
    spark = rows.sparkSession
    lines = spark.readStream.format("text").options(**options).load(spark_path(folder))
    # a part is one small file, so without this a single task would read all of it
    spread = lines.repartition(spark.sparkContext.defaultParallelism)
    history_rows = spread.mapInArrow(HistoryStep(read, filter_step), to_ddl(read.schema))
    return rows.unionByName(history_rows.select(*(f"`{name}`" for name in rows.columns)))


class BackfilledPositions(Positions):
    """The positions of a stream that begins with history: its earliest position is the start of the history."""

    def __init__(self, inner: Positions) -> None:
        super().__init__(inner.label)
        self._inner = inner

    def of_checkpoint(self, end: Any) -> Position | None:
        return self._inner.of_checkpoint(end)

    @property
    def comparable(self) -> bool:  # type: ignore[override]
        return self._inner.comparable

    def reached(self, end: Any) -> Reached | None:
        return self._inner.reached(end)

    def moved(self, end: Any, to: Any) -> Any:
        return self._inner.moved(end, to)

    def resolve(self, target: Target, current: Position | None, scope: SplitScope) -> Position | None:
        """A position in Kafka, at which a flow begins without history, or None for the start of the history."""
        if isinstance(target, Earliest) and not scope.topics:
            return None
        return self._inner.resolve(target, current, scope)

    def measure(self, position: Position | None) -> list[Split]:
        return self._inner.measure(position)

    def identities(self) -> dict[str, str]:
        return self._inner.identities()

    def group(self, project: str, flow: str) -> str | None:
        return self._inner.group(project, flow)

    def publish(self, group: str, position: Position) -> None:
        self._inner.publish(group, position)

    def close(self) -> None:
        self._inner.close()
