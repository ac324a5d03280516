"""History before Kafka, in one query with one checkpoint.

A flow whose stream has a backfill is the union of two sources: the history, one part per batch, and Kafka. While there
is history left Kafka is held at its start, and the query ends by itself when the history does; then it is started
again, on the same checkpoint and with the same state, and Kafka goes on. The parts and the seam are written down before
the first batch and never change, so a batch that runs again has the same rows whatever became of the history meanwhile.
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
from headrace.engine.inputs.event_time_filter import Gate, GateStep
from headrace.engine.inputs.history_rows import FILE, ROW, ReadHistory
from headrace.engine.letters.dead_letters import LetterBox
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
    """The history of one stream in one generation, as its manifest has it."""

    reads: str
    """What it was made of."""
    folder: str
    """Below the flow's folder; its files are the parts."""
    parts: int
    rows: int
    start: Position | None = None
    """Where Kafka goes on."""
    done: bool = False
    skipped: bool = False
    """Whether the generation began at a position in Kafka, without the history."""

    def to_json(self) -> dict[str, Any]:
        """As it is kept."""
        return dict(self.__dict__)


def histories(generation: Generation) -> dict[str, StreamHistory]:
    """The histories of a generation by stream."""
    return {name: StreamHistory(**said) for name, said in generation.manifest.history.items()}


def is_pending(generation: Generation | None) -> bool:
    """Whether there is history left to be read before Kafka goes on."""
    return generation is not None and any(not one.done for one in histories(generation).values())


def finish(generation: Generation | None) -> bool:
    """Write down that the history was read to its end; whether it was still pending, so that Kafka goes on now."""
    if generation is None or not is_pending(generation):
        return False
    done = {name: replace(one, done=True).to_json() for name, one in histories(generation).items()}
    generation.describe(replace(generation.manifest, history=done))
    return True


def progress(generation: Generation | None) -> str | None:
    """How far the history of a generation was read, in words; None when there is none left."""
    if generation is None or not is_pending(generation):
        return None
    record = generation.checkpoint.committed()
    ends = () if record is None else record.ends
    done = sum(end["logOffset"] + 1 for end in ends if isinstance(end, dict) and "logOffset" in end)
    pending = {name: one for name, one in histories(generation).items() if not one.done}
    parts, rows = sum(one.parts for one in pending.values()), sum(one.rows for one in pending.values())
    return f"reads the history of {', '.join(pending)}: {min(done, parts)} of {parts} parts ({rows:,} rows) done"


def prepare(project: Project, state: StateDir, flow: FlowPlan, generation: Generation) -> None:
    """Find the history and the seam of each stream that has one; once for a generation."""
    known = histories(generation)
    for stream in flow.streams():
        backfill = stream.spec.backfill
        if backfill is None:
            continue
        found = known.get(stream.name)
        if found is not None and (found.reads == backfill.reads or generation.checkpoint.begun()):
            continue
        try:
            known[stream.name] = _history(project, state, flow, stream, backfill, generation)
        except ProjectError as error:
            raise error.at(project.origin("streams", stream.name, "backfill")) from None
    kept = {name: one.to_json() for name, one in known.items()}
    if kept != generation.manifest.history:
        generation.describe(replace(generation.manifest, history=kept))


def _history(
    project: Project, state: StateDir, flow: FlowPlan, stream: StreamInput, backfill: BackfillSpec, of: Generation
) -> StreamHistory:
    reads = backfill.reads
    if stream.name in of.manifest.start:
        # Spark wants a folder, and on an object store that is one with something in it
        write_atomically(_folder(state, flow.name, _EMPTY) / ".none", b"")
        return StreamHistory(reads, _EMPTY, 0, 0, done=True, skipped=True)
    from headrace.engine.inputs.history import in_parts, lake_files, newest_offsets, parquet_files, pieces_of

    context = project.context
    if backfill.lake is not None:
        _version, files = lake_files(context.path(backfill.lake))
    else:
        ranges = parse_ranges(backfill.dates) if backfill.dates else []
        files = parquet_files([context.path(path) for path in backfill.paths], ranges)
    time = stream.spec.event_time
    pieces = pieces_of(files, _stored(stream), time.column if time else None, time.unit if time else "ms")
    if backfill.until is not None:
        limit = _micros(backfill)
        pieces = [one for one in pieces if one.first is None or limit is None or one.first < limit]
    offsets = None if backfill.until is not None else newest_offsets(files, _topics(stream))
    delay = round(time.watermark.total_seconds() * 1_000_000) if time and stream.stateful else None
    parts = in_parts(pieces, flow.max_records, delay)
    start = _seam(stream, backfill, offsets, context)
    folder = f"{of.id}-{stream.name}"
    _write_parts(_folder(state, flow.name, folder), [[piece.to_line() for piece in part] for part in parts])
    return StreamHistory(reads, folder, len(parts), sum(one.rows for one in pieces), start)


def _topics(stream: StreamInput) -> list[str]:
    return list(getattr(stream.spec.source, "topics", []))


def _stored(stream: StreamInput) -> pa.Schema:
    """The columns that are read from the history: those of the record, and those about it that the flow uses."""
    assert stream.schema is not None, f"schema of {stream.name} is not known yet"
    kinds = stream.spec.source.metadata
    used = from_ddl(", ".join(f"{name} {kinds[name]}" for name in stream.metadata)) if stream.metadata else ()
    return pa.schema([*stream.schema, *used])


def _folder(state: StateDir, flow: str, name: str) -> StatePath:
    # not in the generation's own folder: a copy of its checkpoint goes on with the same files
    return state.generations(flow).folder / "history" / name


def _write_parts(folder: StatePath, parts: list[list[str]]) -> None:
    """One small file for each part. Spark reads them in the order of their times of change, one per batch.

    An object's time is when it was put: they are put one after another, and those of one second go by their names.
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
    """The offset after the newest of the history in every partition, the first one where the history has nothing."""
    found: dict[str, dict[str, int]] = {}
    for split in positions.measure(None):
        newest = offsets.get(split.topic, {}).get(split.partition)
        found.setdefault(split.topic, {})[str(split.partition)] = split.start if newest is None else newest + 1
        if newest is not None:
            _check_gap(split, newest)
    return found


def _check_gap(split: Split, newest: int) -> None:
    place = f"{split.topic}:{split.partition}"
    if split.start > newest + 1:
        raise ProjectError(
            "backfill-gap",
            f"the history ends at offset {newest} of {place}, and Kafka has records from {split.start} on: "
            f"{split.start - newest - 1:,} are in neither",
            hint="bring the history up to date, or use `until` if its rows are not those of this topic",
            exit_code=Exit.CONFLICT,
        )
    if newest >= split.end:
        raise ProjectError(
            "backfill-gap",
            f"the history goes up to offset {newest} of {place}, which has only {split.end}: it is another topic's",
            hint="check the topic; when it was made anew, use `until` instead of offsets",
            exit_code=Exit.CONFLICT,
        )


@dataclass
class HistoryStep:
    """Reads pieces of history and lets their rows through the gate; the function given to `mapInArrow`."""

    read: ReadHistory
    gate: GateStep | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        rows = self.read(batches)
        return self.gate(rows) if self.gate is not None else (batch.drop_columns([FILE, ROW]) for batch in rows)


def seam_filter(stream: StreamInput, history: StreamHistory | None) -> tuple[ColumnFilter, ...]:
    """What keeps rows out of Kafka's side that are the history's."""
    limit = _micros(stream.spec.backfill) if stream.spec.backfill else None
    if limit is None or history is None or history.skipped or stream.event_time is None:
        return ()
    return (ColumnFilter(stream.event_time.column, ">=", (limit,)),)


def with_history(
    rows: DataFrame, stream: StreamInput, generation: Generation, gate: Gate | None, letters: LetterBox
) -> DataFrame:
    """The rows of a stream, and before them its history."""
    history = histories(generation)[stream.name]
    backfill, time = stream.spec.backfill, stream.event_time
    assert backfill is not None, "only streams with a backfill have a history"
    column = time.column if time else None
    wanted = [pa.field(field.name, TIMESTAMP) if field.name == column else field for field in stream.wanted]
    metadata = list(_stored(stream))[len(stream.schema or ()) :]
    read = ReadHistory(pa.schema([*wanted, *metadata]), column, time.unit if time else "ms", _micros(backfill))
    if gate is None and time is not None:
        # rows without a time must not get lost at the seam
        gate = Gate(time, BatchClock(generation.checkpoint_folder.absolute()), watch_future=False)
    judge = None if gate is None else GateStep(gate, letters, (FILE, ROW), (FILE, ROW))
    folder = generation.folder.parent / "history" / history.folder
    options = {"maxFilesPerTrigger": "1", "maxFileAge": "36500d"}
    spark = rows.sparkSession
    lines = spark.readStream.format("text").options(**options).load(spark_path(folder))
    # a part is one small file, so one task would read it all
    spread = lines.repartition(spark.sparkContext.defaultParallelism)
    found = spread.mapInArrow(HistoryStep(read, judge), to_ddl(read.schema))
    return rows.unionByName(found.select(*(f"`{name}`" for name in rows.columns)))


class BackfilledPositions(Positions):
    """Positions of a stream that begins with history: its earliest position is the beginning of that."""

    def __init__(self, inner: Positions) -> None:
        super().__init__(inner.label)
        self._inner = inner

    def of_checkpoint(self, end: Any) -> Position | None:
        """Where Kafka is."""
        return self._inner.of_checkpoint(end)

    @property
    def comparable(self) -> bool:  # type: ignore[override]
        """As Kafka's are."""
        return self._inner.comparable

    def reached(self, end: Any) -> Reached | None:
        """How far Kafka is."""
        return self._inner.reached(end)

    def moved(self, end: Any, to: Any) -> Any:
        """Kafka's record, further on."""
        return self._inner.moved(end, to)

    def resolve(self, target: Target, current: Position | None, scope: SplitScope) -> Position | None:
        """Any position in Kafka, where a flow begins without the history; or the very beginning, which is None."""
        if isinstance(target, Earliest) and not scope.topics:
            return None
        return self._inner.resolve(target, current, scope)

    def measure(self, position: Position | None) -> list[Split]:
        """The partitions of Kafka."""
        return self._inner.measure(position)

    def identities(self) -> dict[str, str]:
        """Those of Kafka's topics."""
        return self._inner.identities()

    def group(self, project: str, flow: str) -> str | None:
        """The consumer group."""
        return self._inner.group(project, flow)

    def publish(self, group: str, position: Position) -> None:
        """Tell the consumer group."""
        self._inner.publish(group, position)

    def close(self) -> None:
        """Let go of what was kept."""
        self._inner.close()
