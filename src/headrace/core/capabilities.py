"""What some sinks can do beyond writing batches: one class per capability, to be tested with `isinstance`.

A sink inherits from the classes of its capabilities. What the engine does with a sink that lacks one is in the function
next to the class.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from headrace.core.context import Batch, Context
from headrace.core.errors import Exit, ProjectError
from headrace.core.kinds import kinds
from headrace.core.places import Location
from headrace.core.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from headrace.core.python_stage import PythonStage


class ReadsAllRows(Sink):
    """`write_batch` reads every row exactly once, also of a batch that is already written.

    Rows that are not read are not computed, and the state that the flow keeps for them would be lost. So the engine
    itself reads the rows for a sink without this capability.
    """


class WritesStage(ReadsAllRows):
    """Writes from Python, and can end the Python stage of the last steps of a flow: see `core.python_stage`."""

    @abstractmethod
    def accepts_stage(self, schema: pa.Schema) -> bool:
        """Whether it can write rows with these columns without help of Spark."""

    @abstractmethod
    def write_stage(self, stage: PythonStage, batch: Batch) -> int:
        """Write one batch, as `write_batch` does. Returns the number of rows that left the stage."""


class HoldsView(Sink):
    """Holds an incremental view: rows that are inserted, updated and deleted by key."""

    def of_view(self, key: Sequence[str]) -> Self:
        """This sink for a view with these key columns (none: a view without key). Idempotent.

        A ProjectError refuses the view.
        """
        return self

    @abstractmethod
    def write_changes(self, changes: DataFrame, key: Sequence[str], batch: Batch) -> None:
        """Write one batch of changes of a view, or nothing if it is already written.

        `changes` has the columns of the view, `__op` (tinyint: Op.INSERT, UPDATE or DELETE) and `__old`, a struct of
        all columns of the view with the previous row, null for an insert. For a delete the columns hold the deleted
        row. There is at most one change per key, whose columns are `key`; an update does not change the key.
        """

    def write_few(self, changes: pa.Table, key: Sequence[str], batch: Batch) -> bool:
        """The same for changes that the driver holds, if the sink is faster without Spark; False if it is not."""
        return False


def sink_of_view(sink: Sink, key: Sequence[str]) -> HoldsView:
    """The sink with the key of a view; a ProjectError if it cannot hold one."""
    if isinstance(sink, HoldsView):
        return sink.of_view(key)
    able = [name for name, kind in kinds("sinks").items() if issubclass(kind, HoldsView)]
    raise ProjectError(
        "sink-takes-no-changes",
        f"sink {sink.label} only takes new rows, and a view updates and deletes rows too",
        hint=f"sinks that hold views: {', '.join(able)}",
    )


class HoldsReport(Sink):
    """Holds a report: the rows of each run replace those of the run before."""

    @abstractmethod
    def write_report(self, rows: DataFrame, batch: Batch) -> None:
        """Replace the rows of all earlier runs with those of this one. Idempotent."""


@dataclass(frozen=True)
class Rewind:
    """A flow that returns to an earlier position, as one of its sinks sees it."""

    flow: str
    sink: str
    context: Context
    last_kept: tuple[str, int] | None
    """Generation and number of the last batch whose rows stay when later ones are removed; None: no row stays."""
    records: int | None = None
    """How many records will be read again; None when unknown."""
    generation: str = ""
    """The new generation, once it exists."""

    def keeps(self, generation: str, batch_id: int) -> bool:
        """Whether a batch was already written when the last batch that stays was written."""
        number = _generation_number(generation)
        if self.last_kept is None or number is None:
            return False
        last = _generation_number(self.last_kept[0]) or 0
        return number < last or (number == last and batch_id <= self.last_kept[1])

    @property
    def read_again(self) -> str:
        """The number of records that are read again, as a clause."""
        if self.records is None:
            return "records are read again"
        if not self.records:
            return "no record is read again"
        return f"{self.records:,} record{' is' if self.records == 1 else 's are'} read again"


def replayed_rows_lost(rewind: Rewind, place: str) -> ProjectError:
    """The error of a rewind that would remove replayed dead letters, which may be from before its target."""
    return ProjectError(
        "rewind-replayed",
        f"dead letters of flow '{rewind.flow}' were replayed into {place}, and may be lost",
        hint="rewind to earliest, which replays them, or without --replace",
        exit_code=Exit.CONFLICT,
    )


def _generation_number(generation: str) -> int | None:
    """The number in the name of a generation; rows that were replayed from dead letters have none."""
    match = re.match(r"g(\d+)", generation)
    return int(match[1]) if match else None


class DescribesRewind(Sink):
    """States in its own words what a rewind does to the rows that it holds."""

    @abstractmethod
    def rewind_effect(self, rewind: Rewind, replace: bool) -> str:
        """The effect of a rewind, before it happens. With `replace` later rows are to be removed: a ProjectError
        refuses the whole rewind, and a sink that is not `Rewindable` states that they stay."""


class Rewindable(DescribesRewind):
    """Can remove the rows of later batches when its flow is rewound."""

    @abstractmethod
    def take_back(self, rewind: Rewind) -> None:
        """Remove the rows of all batches of this flow that the rewind does not keep. Needs no Spark. Idempotent."""


def rewind_effect(sink: Sink, rewind: Rewind, replace: bool) -> str:
    """What a rewind does to the rows of a sink; a ProjectError if it cannot be done."""
    if isinstance(sink, DescribesRewind):
        return sink.rewind_effect(rewind, replace)
    cannot = "; rows written since cannot be removed" if replace else ""
    return f"{rewind.read_again}: their rows are written again, next to those already written{cannot}"


@dataclass(frozen=True)
class Candidate:
    """A candidate generation of a flow, built in parallel to the running one, as one of its sinks sees it."""

    flow: str
    sink: str
    generation: str
    context: Context
    batch: int = 0
    """Its last batch before the switch, once it is published."""


class AppendsAfterSwitch(Sink):
    """Keeps its rows when a flow switches to a candidate generation, and gets rows of that generation from then on.

    For sinks whose rows cannot be replaced and do not have to be: the candidate writes nothing before the switch.
    """

    def candidate_effect(self, candidate: Candidate) -> str:
        """What the switch does to the rows of this sink; a ProjectError refuses it."""
        return "existing rows stay; rows of the new definition are added from the switch on"


class BuildsCandidate(Sink):
    """Can be filled by a candidate generation in a separate place that replaces the visible rows at the switch."""

    @abstractmethod
    def candidate_effect(self, candidate: Candidate) -> str:
        """What the switch does to the rows of this sink; a ProjectError refuses it."""

    @abstractmethod
    def candidate_sink(self, candidate: Candidate) -> Sink:
        """The sink that the candidate generation writes to until the switch."""

    @abstractmethod
    def publish(self, candidate: Candidate, spark: SparkSession) -> None:
        """Replace the visible rows with those of the candidate, in one step.

        Nothing writes to either meanwhile. It may be interrupted and is then repeated, so it must be idempotent.
        """

    @abstractmethod
    def drop_candidate(self, candidate: Candidate) -> None:
        """Remove what the candidate wrote, after `publish` or when it is abandoned. Needs no Spark. Idempotent."""


def candidate_effect(sink: Sink, candidate: Candidate) -> str:
    """What the switch to a candidate generation does to the rows of a sink; a ProjectError if it cannot be done."""
    if isinstance(sink, BuildsCandidate | AppendsAfterSwitch):
        return sink.candidate_effect(candidate)
    raise candidate_refused(sink, candidate)


def candidate_refused(sink: Sink, candidate: Candidate) -> ProjectError:
    """The error of a sink that replaces rows by key in place: it would hold a mixture of both generations."""
    return ProjectError(
        "beside-unsupported",
        f"the rows of sink {sink.label} of flow '{candidate.flow}' can neither be replaced at once nor stay",
        hint=f"start a new generation without --beside: headrace run --new-generation {candidate.flow}",
        exit_code=Exit.CONFLICT,
    )


class ServesEndpoint(Sink):
    """Fills an endpoint, from which serve nodes answer requests. An endpoint is filled by one sink."""

    @abstractmethod
    def of_flow(self, flow: str) -> Self:
        """This sink as one of a flow, from which the endpoint may take its name."""

    @property
    @abstractmethod
    def endpoint(self) -> str | None:
        """The name of the endpoint; None before `of_flow`, if it takes the name of the flow."""

    @property
    @abstractmethod
    def unserved(self) -> tuple[str, ...]:
        """Columns of the rows that are not part of the endpoint."""

    @property
    @abstractmethod
    def layout(self) -> dict[str, Any]:
        """How the rows are stored. Another layout, or other columns, need a new generation that writes all rows."""


def sink_of_flow(sink: Sink, flow: str) -> Sink:
    """The sink as one of a flow, whose name it may take."""
    return sink.of_flow(flow) if isinstance(sink, ServesEndpoint) else sink


def endpoint_of(sink: Sink) -> str | None:
    """The endpoint that a sink fills, if it fills one."""
    return sink.endpoint if isinstance(sink, ServesEndpoint) else None


class KeepsLakeTable(Sink):
    """Keeps a lake table that other flows and queries can read."""

    @property
    @abstractmethod
    def lake_path(self) -> str:
        """The path of the table, as in the project file."""


def lake_paths(sinks: Iterable[Sink]) -> list[str]:
    """The paths of the lake tables that some sinks keep."""
    return [sink.lake_path for sink in sinks if isinstance(sink, KeepsLakeTable)]


class ReadableAsStream(Sink):
    """Writes to a place that a stream can read: a flow that reads there runs until it has caught up with the writer."""

    @abstractmethod
    def places(self, context: Context, texts: Mapping[str, Sequence[str]]) -> tuple[Location, ...]:
        """Where the rows can be read. `texts` has all values that a column can hold, where they are known."""


class PublishesWhenCaughtUp(Sink):
    """Publishes some of what it wrote only when the flow has caught up."""

    @property
    @abstractmethod
    def has_unpublished(self) -> bool:
        """Whether something waits to be published. Called often."""

    @abstractmethod
    def publish_caught_up(self, context: Context) -> None:
        """Publish it: the flow has read all its input. Needs no Spark; may be called while a batch is written."""


class SingleWriter(Sink):
    """Does not allow two writers at the same time, so no replay of dead letters runs while the engine writes."""

    @property
    def single_writer(self) -> bool:
        """Whether that is so with the options of this sink."""
        return True


def is_single_writer(sink: Sink) -> bool:
    """Whether a sink does not allow two writers at the same time."""
    return isinstance(sink, SingleWriter) and sink.single_writer


class RealTimeSink(Sink):
    """Spark itself can write to it record by record, as real-time flows need."""

    @property
    def realtime(self) -> bool:
        """Whether that is so with the options of this sink."""
        return True

    @abstractmethod
    def writer(self, rows: DataFrame, context: Context) -> DataStreamWriter:
        """The configured writer; the engine adds checkpoint and trigger and starts it."""


_SENTENCES: dict[type, str] = {
    WritesStage: "Can write in the Python stage of the last steps, so that rows do not return to Spark.",
    HoldsView: "Holds incremental views.",
    HoldsReport: "Holds reports: the rows of each run replace those of the run before.",
    Rewindable: "Can be rewound: the rows of later batches are removed with `--replace`.",
    BuildsCandidate: "A candidate generation fills it separately and replaces its rows at the switch.",
    AppendsAfterSwitch: "Keeps its rows when a flow switches to a candidate generation.",
    ServesEndpoint: "Fills an endpoint of serve nodes.",
    KeepsLakeTable: "Keeps a lake table that other flows and queries can read.",
    ReadableAsStream: "Other flows can read its rows as a stream.",
    RealTimeSink: "Can be written by real-time flows.",
    PublishesWhenCaughtUp: "Publishes results when the flow has caught up.",
    SingleWriter: "Has one writer at a time: dead letters are replayed while the engine is stopped.",
}


def capabilities_of(kind: type[Sink]) -> list[str]:
    """What a kind of sink can do, one sentence per capability."""
    return [sentence for capability, sentence in _SENTENCES.items() if issubclass(kind, capability)]
