"""The contract of sinks. Only sinks start work."""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from headrace.core.component import Component
from headrace.core.context import Batch, Context
from headrace.core.errors import Exit, ProjectError
from headrace.core.kinds import kinds
from headrace.core.places import Location

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Delivery = Literal["exactly_once", "at_least_once", "idempotent", "best_effort"]


@dataclass(frozen=True)
class Rewind:
    """A flow that goes back to an earlier position, as one of its sinks sees it."""

    flow: str
    sink: str
    context: Context
    kept: tuple[str, int] | None
    """Generation and number of the last batch whose rows stay when later ones are taken back; None: no row stays."""
    again: int | None = None
    """How many records will be read again; None when it cannot be told."""
    generation: str = ""
    """The new generation, once there is one."""

    def stays(self, generation: str, batch_id: int) -> bool:
        """Whether a batch was there already when the last one that is kept was written."""
        number = _generation_number(generation)
        if self.kept is None or number is None:
            return False
        last = _generation_number(self.kept[0]) or 0
        return number < last or (number == last and batch_id <= self.kept[1])

    @property
    def words(self) -> str:
        """How much is read again."""
        if self.again is None:
            return "records are read again"
        return (
            f"{self.again:,} record{' is' if self.again == 1 else 's are'} read again"
            if self.again
            else "no record is read again"
        )


def _generation_number(generation: str) -> int | None:
    """Generations are numbered; what was replayed from dead letters has no number."""
    found = re.match(r"g(\d+)", generation)
    return int(found[1]) if found else None


@dataclass(frozen=True)
class Side:
    """A generation of a flow that is built beside the running one, as one of its sinks sees it."""

    flow: str
    sink: str
    generation: str
    context: Context
    batch: int = 0
    """Its last batch that was written beside, once it is published."""


class Sink(Component):
    """Subclass this first: one method, one batch.

    Spark may run a batch again after a crash, so writing the same batch twice must leave it there once: compare
    `batch.generation` and `batch.batch_id` with what is already written, or write under names made from them.
    """

    family: ClassVar[str] = "sinks"
    reads_all: ClassVar[bool] = False
    """Whether `write_batch` reads every row, once, also of a batch that is already there. Rows that nobody reads are
    never computed: what the flow keeps of them would be lost. So the engine reads what such a sink leaves."""

    takes_changes: ClassVar[bool] = False
    """Whether it can hold a view: rows that are inserted, updated and deleted by key (`of_view`, `write_changes`)."""

    takes_reports: ClassVar[bool] = False
    """Whether it can hold a report: rows all of which replace those of the run before (`write_report`)."""

    @property
    def guarantee(self) -> Delivery:
        """How often a row arrives, whatever happens on the way."""
        return "idempotent"

    @property
    def target(self) -> str:
        """What it writes to, apart from how: the topic, the path. With the kind it tells a flow's sinks apart, also
        when they are written down in another order, so that a batch in flight finds what each of them has of it."""
        return ""

    @property
    def lake_path(self) -> str | None:
        """The lake table other flows can read this sink's rows from, if it keeps one."""
        return None

    def places(self, context: Context, texts: Mapping[str, Sequence[str]]) -> tuple[Location, ...]:
        """Where its rows can be read as a stream. `texts` has what columns may hold, of columns of which it is known.

        A flow that reads there runs until it has caught up with those that write there.
        """
        return ()

    @property
    def endpoint(self) -> str | None:
        """The endpoint that this sink keeps, if it keeps one. No other may keep the same."""
        return None

    @property
    def unserved(self) -> tuple[str, ...]:
        """Columns of its rows that are no part of the endpoint."""
        return ()

    @property
    def fills(self) -> dict[str, Any] | None:
        """What the rows that it holds are laid out by: with another layout, or other columns, they have to come again,
        so that needs a new generation. None when each row is written for itself."""
        return None

    @property
    def realtime(self) -> bool:
        """Whether a real-time flow can write to it."""
        return False

    @property
    def one_writer(self) -> bool:
        """Whether two that write to it at once get in each other's way: then no replay runs beside the engine."""
        return False

    @property
    def holds_back(self) -> bool:
        """Whether it has written something that is to be shown when the flow has caught up. Asked often."""
        return False

    def of_flow(self, flow: str) -> Sink:
        """This sink as one of that flow, whose name it may take."""
        return self

    def of_view(self, key: Sequence[str]) -> Sink:
        """This sink as one that holds a view, whose key it may take; a view may have none. A ProjectError refuses.

        What the plan has of a view's sink is this; twice is as good as once.
        """
        if not self.takes_changes:
            able = [name for name, kind in kinds("sinks").items() if issubclass(kind, Sink) and kind.takes_changes]
            raise ProjectError(
                "sink-takes-no-changes",
                f"sink {self.label} only takes new rows, and a view updates and deletes rows too",
                hint=f"sinks that hold views: {', '.join(able)}",
            )
        return self

    def check(self, context: Context) -> None:
        """Ask the system behind this sink whether it can be written; a ProjectError says what to mend."""

    def check_rows(self, context: Context, columns: Sequence[str], output: str, schema: pa.Schema | None) -> None:
        """Refuse, at plan time, columns or an output mode this sink cannot take. `schema` is known only with Spark."""

    @abstractmethod
    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        """Write one batch, or nothing if it is already there."""

    def write_changes(self, changes: DataFrame, key: Sequence[str], batch: Batch) -> None:
        """Write one batch of changes of a view, or nothing if it is already there.

        `changes` has the columns of the view, `__op` (tinyint: Op.INSERT, UPDATE or DELETE) and `__old`, a struct of
        all columns of the view with the row as it was, null with an insert. The row of a delete is that which was
        there. There is at most one change per key, whose columns are `key`; the key of an update does not change.
        """
        raise NotImplementedError(f"{self.kind()} takes no changes")

    def write_few(self, changes: pa.Table, key: Sequence[str], batch: Batch) -> bool:
        """The same with changes that the driver has, for a sink that is quicker without Spark. False: it is not."""
        return False

    def write_report(self, rows: DataFrame, batch: Batch) -> None:
        """Put the rows of one run of a report in the place of those of all runs before; twice is as good as once."""
        raise NotImplementedError(f"{self.kind()} takes no reports")

    def caught_up(self, context: Context) -> None:
        """Show what was held back, now that the flow has read all there is. Needs no Spark; it may be called while a
        batch is written."""

    def rewind_effect(self, rewind: Rewind, replace: bool) -> str:
        """What a rewind does to what this sink holds, in words, before it happens.

        With `replace` also whether later rows can be taken back: a ProjectError refuses the whole rewind.
        """
        cannot = "; rows written since cannot be taken back" if replace else ""
        return f"{rewind.words}: their rows come again, beside those already there{cannot}"

    def take_back(self, rewind: Rewind) -> None:
        """Remove the rows of all batches of this flow that do not stay. Needs no Spark; twice is as good as once.

        A sink that cannot does nothing, and says so in `rewind_effect`.
        """

    def beside_effect(self, side: Side) -> str:
        """What it means for this sink when a generation is built beside the running one and then switched to, in words.

        A ProjectError refuses it: most sinks that replace rows by key cannot, since what they hold would be a mixture.
        """
        raise ProjectError(
            "beside-unsupported",
            f"what sink {self.label} of flow '{side.flow}' holds cannot be replaced at once, nor left as it is",
            hint=f"begin anew without --beside: headrace run --new-generation {side.flow}",
            exit_code=Exit.CONFLICT,
        )

    def beside(self, side: Side) -> Sink | None:
        """Where that generation writes until it is switched to. None: nowhere, since rows cannot be taken back here;
        then this sink gets the rows of the batches after the switch."""
        return None

    def publish(self, side: Side, spark: SparkSession) -> None:
        """Put what was written beside in the place of what readers see, in one step.

        Nobody writes to either meanwhile. It may be cut off and is then done again: twice must be as good as once.
        """

    def forget_beside(self, side: Side) -> None:
        """Remove what was written beside; called after `publish`, or when the generation was given up. Needs no Spark;
        twice is as good as once."""


APPENDS = "what is there stays; it gets rows of the new definition from the switch on"
"""What building beside means for sinks to which rows can only be added."""


class StreamingSink(Sink):
    """The full tier: a sink that Spark itself can also write to record by record, as real-time flows need."""

    @abstractmethod
    def writer(self, rows: DataFrame, context: Context) -> DataStreamWriter:
        """The configured writer; the runner adds checkpoint and trigger and starts it."""
