"""A view as a Spark query: its batches say how far the logs of its tables are read, and each changes what it keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.core.capabilities import HoldsView
from headrace.core.context import Batch, Context
from headrace.core.tables import TableShape
from headrace.core.tallies.tally import ENGINE, Tally
from headrace.engine.letters.dead_letters import DeadLetterWriter
from headrace.engine.state import milestones
from headrace.engine.state.generations import Generation
from headrace.engine.tables.table_logs import FlowTables, Reach, TableFiles
from headrace.engine.tables.table_rows import weighted_rows
from headrace.plan.model import FlowPlan
from headrace.views.compile.identity import gets_id
from headrace.views.maintain.keyed import KeyedChanges, keyed
from headrace.views.maintain.maintained import Maintained, TableDelta
from headrace.views.maintain.state import ViewState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def view_session(spark: SparkSession, flow: FlowPlan) -> SparkSession:
    """A session of the view's own: temporary tables and settings belong to it alone."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", str(flow.partitions))
    for key, value in flow.spec.spark.items():
        session.conf.set(key, value)
    return session


def feed(session: SparkSession, flow: FlowPlan, context: Context) -> DataFrame:
    """What drives the query: one batch for every stretch of the logs."""
    from headrace.engine.tables.table_feed import register_feed

    name = register_feed(session, FlowTables.of(flow, context), flow.max_records)
    return session.readStream.format(name).load()


@dataclass
class ViewWriter:
    """Called by Spark for every batch of a view: works out what changes, and gives that to each sink."""

    flow: FlowPlan
    generation: Generation
    session: SparkSession
    context: Context
    check: Callable[[], None]
    """Raises when the state belongs to another engine by now."""
    tally: Tally = field(default_factory=lambda: ENGINE)

    def __post_init__(self) -> None:
        assert self.flow.view is not None, "a view is planned before it runs"
        self._tables = FlowTables.of(self.flow, self.context)
        self._shapes = {one.name: one.shape for one in self.flow.tables() if one.shape is not None}
        state = ViewState(self.generation.folder / "view")
        self.maintained = Maintained(
            self.session, self.flow.view, self._shapes, state, identified=gets_id(self.flow.view)
        )

    def __call__(self, _rows: DataFrame, batch_id: int) -> None:
        """Run one batch."""
        view = self.flow.view
        assert view is not None
        self.check()
        milestones.reach("before_batch", self.flow.name, batch_id)
        inputs = self._inputs(batch_id)
        changed = self.maintained.apply(batch_id, inputs)
        self._tell(batch_id, sum(one.rows for one in inputs.values()))
        with keyed(changed, view.key) as changes:
            self._write(changes, batch_id)

    def _tell(self, batch_id: int, rows: int) -> None:
        kept = self.maintained.state.held().values()
        state = {
            "numRowsTotal": sum(one.rows for one in kept),
            "memoryUsedBytes": sum(one.bytes for one in kept),
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
            if changes.few is None or not step.sink.write_few(changes.few, self.flow.view.key, batch):
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
