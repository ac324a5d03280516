"""A view as a Spark query: each batch reads the logs of its tables up to a position and updates the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.core.capabilities import HoldsView
from headrace.core.context import Batch, Context
from headrace.core.lazy import lazy_modules
from headrace.core.tables import TableShape
from headrace.core.tallies.tally import ENGINE, Tally
from headrace.engine.letters.dead_letters import DeadLetterWriter
from headrace.engine.state import milestones
from headrace.engine.state.generations import Generation
from headrace.engine.tables.table_logs import FlowTables, Reach, TableFiles
from headrace.engine.tables.table_rows import weighted_rows
from headrace.plan.model import FlowPlan
from headrace.views.compile.identity import adds_id
from headrace.views.maintain.incremental_view import IncrementalView, TableDelta
from headrace.views.maintain.keyed_changes import KeyedChanges, changes_by_key
from headrace.views.maintain.state import ViewState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.engine.tables import table_feed
else:
    table_feed = lazy_modules("headrace.engine.tables.table_feed")  # it imports PySpark


def view_session(spark: SparkSession, flow: FlowPlan) -> SparkSession:
    """A separate session for a view, with its own temporary tables and settings."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", str(flow.partitions))
    for key, value in flow.spec.spark.items():
        session.conf.set(key, value)
    return session


def view_feed(session: SparkSession, flow: FlowPlan, context: Context) -> DataFrame:
    """The input of the query: one batch for every stretch of the table logs."""
    name = table_feed.register_feed(session, FlowTables.of(flow, context), flow.max_records)
    return session.readStream.format(name).load()


@dataclass
class ViewWriter:
    """Called by Spark for every batch of a view: computes the changes and writes them to each sink."""

    flow: FlowPlan
    generation: Generation
    session: SparkSession
    context: Context
    check: Callable[[], None]
    """Raises if the state now belongs to another engine."""
    tally: Tally = field(default_factory=lambda: ENGINE)

    def __post_init__(self) -> None:
        assert self.flow.view is not None, "a view is planned before it runs"
        self._tables = FlowTables.of(self.flow, self.context)
        self._shapes = {table.name: table.shape for table in self.flow.tables() if table.shape is not None}
        state = ViewState(self.generation.folder / "view")
        self.maintained = IncrementalView(
            self.session, self.flow.view, self._shapes, state, identified=adds_id(self.flow.view)
        )

    def __call__(self, _rows: DataFrame, batch_id: int) -> None:
        view = self.flow.view
        assert view is not None
        self.check()
        milestones.reach("before_batch", self.flow.name, batch_id)
        inputs = self._inputs(batch_id)
        delta = self.maintained.apply(batch_id, inputs)
        self._count(batch_id, sum(item.rows for item in inputs.values()))
        with changes_by_key(delta, view.key) as changes:
            self._write(changes, batch_id)

    def _count(self, batch_id: int, rows: int) -> None:
        parts = self.maintained.state.sizes().values()
        state = {
            "numRowsTotal": sum(part.rows for part in parts),
            "memoryUsedBytes": sum(part.bytes for part in parts),
            "numRowsDroppedByWatermark": 0,
        }
        self.tally.add_batch(self.flow.name, batch_id, {"numInputRows": rows, "stateOperators": [state]})

    def _write(self, changes: KeyedChanges, batch_id: int) -> None:
        assert self.flow.view is not None
        name, folder = self.flow.name, self.context.state_path / "dead_letters"
        for number, step in enumerate(self.flow.sinks):
            self.check()
            if number:
                milestones.reach("between_sinks", self.flow.name, batch_id)
            letters = DeadLetterWriter(folder, name, step.id, self.generation.id)
            batch = Batch(name, self.generation.id, batch_id, step.id, "update", self.context, letters, self.tally)
            assert isinstance(step.sink, HoldsView), "the planner refuses other sinks"
            if changes.collected is None or not step.sink.write_few(changes.collected, self.flow.view.key, batch):
                step.sink.write_changes(changes.rows, self.flow.view.key, batch)
        milestones.reach("after_sinks", self.flow.name, batch_id)
        self.check()

    def _inputs(self, batch_id: int) -> dict[str, TableDelta]:
        start, end = self._reach(batch_id - 1), self._reach(batch_id)
        return {name: self._input(shape, self._tables.files(name, start, end)) for name, shape in self._shapes.items()}

    def _reach(self, batch_id: int) -> Reach:
        record = self.generation.checkpoint.batch(batch_id) if batch_id >= 0 else None
        return self._tables.start() if record is None else record.ends[0]

    def _input(self, shape: TableShape, files: TableFiles) -> TableDelta:
        delta = weighted_rows(self.session, shape, files.delta) if files.delta else None

        def old() -> DataFrame:
            return weighted_rows(self.session, shape, files.old)

        return TableDelta(delta, old, files.rows, files.table_rows, files.old)
