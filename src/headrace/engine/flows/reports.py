"""A report as a Spark query: each run is a batch that reads tables at one point in time and replaces the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.core.capabilities import HoldsReport, HoldsView
from headrace.core.context import Batch, Context
from headrace.core.files.state_files import StatePath, remove_tree, spark_path
from headrace.core.lazy import lazy_modules
from headrace.core.tables import WEIGHT
from headrace.core.tallies.tally import ENGINE, Tally
from headrace.engine.inputs.lake import newest_version
from headrace.engine.letters.dead_letters import DeadLetterWriter
from headrace.engine.state import milestones
from headrace.engine.state.generations import Generation
from headrace.engine.tables.table_logs import FlowTables
from headrace.engine.tables.table_rows import consolidated, weighted_rows
from headrace.plan.model import FlowPlan, StandingInput
from headrace.sql.fixed_time import with_fixed_time
from headrace.views.maintain.keyed_changes import key_conflicts, keyed_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.engine.flows import report_feed
else:
    report_feed = lazy_modules("headrace.engine.flows.report_feed")  # it imports PySpark

RunVersions = Mapping[str, Any]
"""What a run reads: the time `at`, the versions of `lake` tables and those of the logs of `tables`."""


def report_runs(session: SparkSession, flow: FlowPlan, context: Context) -> DataFrame:
    """The input of the query: one batch for every start."""
    lakes = {item.name: item.path for item in report_inputs(flow) if item.path is not None}
    name = report_feed.register_runs(session, FlowTables.of(flow, context), lakes)
    return session.readStream.format(name).load()


def report_inputs(flow: FlowPlan) -> list[StandingInput]:
    return [item for item in flow.inputs if isinstance(item, StandingInput)]


@dataclass
class ReportWriter:
    """Called by Spark for every run: computes and stores the result, then writes it, or its changes, to each sink."""

    flow: FlowPlan
    generation: Generation
    session: SparkSession
    context: Context
    check: Callable[[], None]
    """Raises if the state now belongs to another engine."""
    tally: Tally = field(default_factory=lambda: ENGINE)

    def __call__(self, _rows: DataFrame, batch_id: int) -> None:
        self.check()
        milestones.reach("before_batch", self.flow.name, batch_id)
        rows = self._result(batch_id)
        self.tally.add_batch(self.flow.name, batch_id, {"numInputRows": rows.count()})
        with key_conflicts(self.flow.spec.keys):
            self._write(rows, batch_id)
        for older in range(batch_id - 2, -1, -1):
            if not self._folder(older).is_dir():
                break
            remove_tree(self._folder(older))

    def now(self) -> DataFrame:
        """The result of a run now; used for its columns."""
        lakes = {item.name: newest_version(item.path) for item in report_inputs(self.flow) if item.path is not None}
        tables = FlowTables.of(self.flow, self.context)
        return self._rows({"at": datetime.now(UTC).timestamp() * 1000, "lake": lakes, "tables": tables.ends()})

    def _result(self, batch_id: int) -> DataFrame:
        """The result of a run, from a file: a repeated run must not differ, not even in the last digit."""
        folder = self._folder(batch_id)
        if not (folder / "_SUCCESS").is_file():
            record = self.generation.checkpoint.batch(batch_id)
            assert record is not None, "Spark logs a batch before it runs it"
            self._rows(record.ends[0]).coalesce(1).write.mode("overwrite").parquet(spark_path(folder))
        return self.session.read.parquet(spark_path(folder))

    def _rows(self, versions: RunVersions) -> DataFrame:
        for item in report_inputs(self.flow):
            self._read(item, versions).createOrReplaceTempView(item.name)
        return self.session.sql(with_fixed_time(self.flow.sql, datetime.fromtimestamp(versions["at"] / 1000, UTC)))

    def _read(self, item: StandingInput, versions: RunVersions) -> DataFrame:
        if item.path is not None:
            version = str(versions["lake"][item.name])
            return self.session.read.format("delta").option("versionAsOf", version).load(item.path)
        assert item.shape is not None, "a report waits until its tables have been captured"
        files = FlowTables.of(self.flow, self.context).standing(item.name, versions["tables"])
        return consolidated(weighted_rows(self.session, item.shape, files)).drop(WEIGHT)

    def _write(self, rows: DataFrame, batch_id: int) -> None:
        name, folder = self.flow.name, self.context.state_path / "dead_letters"
        for number, step in enumerate(self.flow.sinks):
            self.check()
            if number:
                milestones.reach("between_sinks", name, batch_id)
            letters = DeadLetterWriter(folder, name, step.id, self.generation.id)
            batch = Batch(name, self.generation.id, batch_id, step.id, "update", self.context, letters, self.tally)
            if isinstance(step.sink, HoldsReport):
                step.sink.write_report(rows, batch)
            else:
                assert isinstance(step.sink, HoldsView), "the planner refuses other sinks"
                step.sink.write_changes(self._changes(rows, batch_id), self.flow.spec.keys, batch)
        milestones.reach("after_sinks", name, batch_id)
        self.check()

    def _changes(self, rows: DataFrame, batch_id: int) -> DataFrame:
        """The changes of a run to the previous result, by key."""
        from pyspark.sql import functions as F

        weighted = rows.withColumn(WEIGHT, F.lit(1).cast("bigint"))
        if batch_id:
            before = self.session.read.parquet(spark_path(self._folder(batch_id - 1)))
            old = before.withColumn(WEIGHT, F.lit(-1).cast("bigint"))
            weighted = consolidated(weighted.unionByName(old, allowMissingColumns=True))
        return keyed_frame(weighted, self.flow.spec.keys)

    def _folder(self, batch_id: int) -> StatePath:
        return self.generation.folder / "report" / str(batch_id)
