"""One flow as one Spark query. One batch of a streaming flow, from its inputs to its sinks:

::

    Kafka, files, lake …     Spark reads the next records of every input
          |
    decode                   engine/inputs/decode.py: bytes to columns; bad records become dead letters
          |
    event-time filter        engine/inputs/event_time_filter.py: late rows leave here (kept as late rows), and rows
                             from the far future (dead letters)
          |
    `before` processors      engine/inputs/processing.py
          |
    SQL                      one temporary view per input, `FlowStarter._query`
          |
    `after` processors       engine/inputs/processing.py; the last ones may run inside the sink
          |
    batch writer             `batch_writer`: checks the lease, then writes the rows to one sink after the other
          |
    sinks                    an exactly-once sink skips a batch (flow, generation, number) that it already has
          |
    checkpoint commit        Spark writes the commit file; the next batch starts

Views (`view_flow`) and reports (`reports`) have other batches, but start in the same way, in `FlowStarter.start`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.core.capabilities import BuildsCandidate, Candidate, ReadsAllRows, RealTimeSink, WritesStage
from headrace.core.context import Batch, Context
from headrace.core.errors import ProjectError
from headrace.core.files.state_files import spark_path
from headrace.core.options.durations import spark_interval
from headrace.core.processor import Processor, StatefulStep
from headrace.core.python_stage import PythonStage
from headrace.core.records import spark_schema
from headrace.core.rows import drain
from headrace.core.tallies.tally import ENGINE, Tally
from headrace.engine.flows.checks import check_rows, check_schema, check_slots
from headrace.engine.flows.reports import ReportWriter, report_runs
from headrace.engine.flows.view_flow import ViewWriter, view_feed, view_session
from headrace.engine.inputs.backfill import histories, is_pending, prepare
from headrace.engine.inputs.inputs import ReadOptions, python_stage, register
from headrace.engine.letters.dead_letters import DeadLetterWriter, forget_batch
from headrace.engine.positions.rewind import finish_row_removal
from headrace.engine.positions.topics import check_topics
from headrace.engine.positions.upgrade import record_query_id, resolve_generation
from headrace.engine.spark.arrow_batches import batch_limits, largest_record
from headrace.engine.spark.failures import from_query
from headrace.engine.spark.functions import register_for
from headrace.engine.spark.progress import OUTPUT, rows_out
from headrace.engine.spark.sql_errors import from_analysis
from headrace.engine.state import milestones
from headrace.engine.state.generations import Generation
from headrace.engine.state.state import StateDir
from headrace.plan.model import FlowPlan, Input, LakeInput, SinkStep, StreamInput
from headrace.project.loader import Project

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# short real-time batches stall at their boundaries
_REALTIME_BATCH = "5 minutes"
_EXCLUDED = "spark.sql.optimizer.excludedRules"
# this rule removes a branch of a union that has no rows in a batch; the nullability of columns, and so the schema of
# the state, would then differ from batch to batch
_EMPTY_BRANCHES = "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation"


@dataclass(frozen=True)
class FlowStarter:
    """Starts the flows of one project as Spark queries."""

    project: Project
    state: StateDir
    spark: SparkSession
    until_caught_up: bool = False
    one_batch: bool = False
    """Run only the batch that was started and not committed."""
    is_candidate: bool = False
    """Start candidate generations: they write to separate targets, or nothing. `state` is then their view of it."""
    out_of_memory: set[str] = field(default_factory=set)
    """Flows with a batch that did not fit into memory: they use Spark's default limits."""

    def start(self, flow: FlowPlan) -> StreamingQuery:
        """Start a flow at the position of its current generation."""
        from pyspark.errors import AnalysisException, PySparkException

        check_slots(self.project, flow, self.spark.sparkContext.defaultParallelism)
        generation = resolve_generation(self.project, self.state, flow)
        finish_row_removal(flow, generation, self.project.context)
        prepare(self.project, self.state, flow, generation)
        check_topics(flow, generation, self.project.context)
        self._discard_letters_in_flight(flow.name, generation)
        try:
            prepare_writer = self._report if flow.is_report else self._view if flow.tables() else self._flow
            query = self._start(flow, prepare_writer(flow, generation))
            record_query_id(generation, query.id)
            return query
        except AnalysisException as refusal:
            raise self._sql_error(flow, refusal) from refusal
        except PySparkException as failure:
            raise from_query(flow, failure) from failure

    def _discard_letters_in_flight(self, flow: str, generation: Generation) -> None:
        """A batch that runs again writes its dead letters and late rows again."""
        planned = generation.checkpoint.planned()
        if planned is not None and generation.checkpoint.in_flight():
            for folder in (self.state.dead_letters, self.state.late):
                forget_batch(folder, flow, generation.id, planned.batch_id)

    def _flow(self, flow: FlowPlan, generation: Generation) -> DataStreamWriter:
        stage = self._stage(flow)
        check_rows(self.project, self._written(flow, generation), stage.schema)
        return self._writer(flow, stage)

    def _view(self, flow: FlowPlan, generation: Generation) -> DataStreamWriter:
        session = view_session(self.spark, flow)
        register_for(session, flow, self.project)
        tally, check = Tally() if self.is_candidate else ENGINE, self.state.fence.check
        context, written = self.project.context, self._written(flow, generation)
        writer = ViewWriter(written, generation, session, context, check, tally)
        check_schema(self.project, written, writer.maintained.schema)
        return view_feed(session, flow, context).writeStream.foreachBatch(writer)

    def _report(self, flow: FlowPlan, generation: Generation) -> DataStreamWriter:
        session = view_session(self.spark, flow)
        register_for(session, flow, self.project)
        context = self.project.context
        writer = ReportWriter(flow, generation, session, context, self.state.fence.check)
        check_schema(self.project, flow, spark_schema(writer.now()), "append")
        return report_runs(session, flow, context).writeStream.foreachBatch(writer)

    def _start(self, flow: FlowPlan, writer: DataStreamWriter) -> StreamingQuery:
        writer = self._triggered(writer, flow).queryName(flow.name)
        checkpoint = spark_path(self.state.current(flow.name).checkpoint_folder)
        return writer.option("checkpointLocation", checkpoint).start()

    def probe(self, flow: FlowPlan) -> None:
        """Raise an error if Spark does not accept the SQL or a sink does not accept the rows; starts nothing."""
        from pyspark.errors import AnalysisException

        if flow.tables() or flow.is_report:
            return
        try:
            check_rows(self.project, flow, self._stage(flow).schema)
        except AnalysisException as refusal:
            raise self._sql_error(flow, refusal) from refusal

    def _sql_error(self, flow: FlowPlan, refusal: AnalysisException) -> ProjectError:
        error = from_analysis(refusal)
        return error.at(self.project.sql_origin(flow.name, error.line))

    def rows(self, flow: FlowPlan) -> DataFrame:
        """The rows that the flow writes to its sinks."""
        return self._stage(flow).finish()

    def _stage(self, flow: FlowPlan) -> PythonStage:
        """Those rows as a Python stage that is still open: the sink may add its last function."""
        from pyspark.errors import AnalysisException

        limits = self._batch_limits(flow)
        try:
            return self._query(flow, flow.inputs, limits)
        except AnalysisException as narrow:
            try:
                # the SQL may use a column in a way that the planner does not recognise
                return self._query(flow, tuple(_with_all_columns(item) for item in flow.inputs), limits)
            except AnalysisException:
                raise narrow from None

    def _query(self, flow: FlowPlan, inputs: tuple[Input, ...], limits: Mapping[str, str]) -> PythonStage:
        # temporary views and settings belong to the flow alone
        session = self.spark.newSession()
        session.conf.set("spark.sql.shuffle.partitions", str(flow.partitions))
        for key, value in {**limits, **flow.spec.spark}.items():
            session.conf.set(key, value)
        if flow.state:
            excluded = session.conf.get(_EXCLUDED, "") or ""
            session.conf.set(_EXCLUDED, ",".join(filter(None, (excluded, _EMPTY_BRANCHES))))
        reading = ReadOptions(
            flow=flow.name,
            context=self.project.context,
            until_caught_up=self.until_caught_up or flow.spec.mode == "batch",
            realtime=flow.spec.mode == "realtime",
            max_records=None if flow.spec.mode == "realtime" else flow.max_records,
            start=self.state.current(flow.name).manifest.start,
            history=histories(self.state.current(flow.name)),
        )
        register_for(session, flow, self.project)
        for item in inputs:
            register(session, item, reading, self.state)
        return python_stage(session.sql(flow.sql), flow.after, reading, self.state)

    def _batch_limits(self, flow: FlowPlan) -> dict[str, str]:
        """Limits by the size of records. Called once per start, because it reads a sample of every stream."""
        if flow.name in self.out_of_memory or flow.spec.mode == "realtime":
            return {}
        sizes = [largest_record(stream, self.project.context) for stream in flow.streams()]
        known = [size for size in sizes if size]
        return batch_limits(max(known)) if known and len(known) == len(sizes) else {}

    def _writer(self, flow: FlowPlan, stage: PythonStage) -> DataStreamWriter:
        if flow.spec.mode == "realtime":
            sink = flow.sinks[0].sink
            assert isinstance(sink, RealTimeSink), "the planner refuses other sinks"
            # Spark requires update mode; without state every row is new, so it equals append
            return sink.writer(stage.finish(), self.project.context).outputMode("update")
        generation = self.state.current(flow.name)
        written = self._written(flow, generation)
        tally, check = Tally() if self.is_candidate else ENGINE, self.state.fence.check
        open_stage = stage if _ends_stage(written, stage) else None
        write = batch_writer(written, generation.id, self.project.context, check, tally, open_stage)
        rows = _counted(stage.finish()) if open_stage is None else stage.rows
        return rows.writeStream.foreachBatch(write).outputMode(flow.spec.output)

    def _written(self, flow: FlowPlan, generation: Generation) -> FlowPlan:
        """The flow with the sinks that it really writes to."""
        return with_candidate_sinks(flow, generation.id, self.project.context) if self.is_candidate else flow

    def _triggered(self, writer: DataStreamWriter, flow: FlowPlan) -> DataStreamWriter:
        if self.one_batch or any(_needs_one_batch(step.processor) for step in flow.steps()):
            # the once trigger ignores limits: the batch has all records
            return writer.trigger(once=True)
        if self.until_caught_up or flow.spec.mode == "batch" or is_pending(self.state.current(flow.name)):
            return writer.trigger(availableNow=True)
        if flow.spec.mode == "realtime":
            return writer.trigger(realTime=_REALTIME_BATCH)  # type: ignore[call-overload,no-any-return]
        return writer.trigger(processingTime=spark_interval(flow.trigger))


def candidate_for(flow: FlowPlan, step: SinkStep, generation: str, context: Context, batch: int = 0) -> Candidate:
    """A candidate generation, described for one of its sinks."""
    return Candidate(flow.name, step.id, generation, context, batch)


def with_candidate_sinks(flow: FlowPlan, generation: str, context: Context) -> FlowPlan:
    """The flow as a candidate: its sinks write to separate targets, with the same ids."""
    return replace(
        flow,
        sinks=tuple(
            replace(step, sink=step.sink.candidate_sink(candidate_for(flow, step, generation, context)))
            for step in flow.sinks
            if isinstance(step.sink, BuildsCandidate)
        ),
    )


def _ends_stage(flow: FlowPlan, stage: PythonStage) -> bool:
    """Whether the sink of the flow can end the Python stage of its last steps."""
    if stage.is_empty or len(flow.sinks) != 1:
        return False
    sink = flow.sinks[0].sink
    return isinstance(sink, WritesStage) and sink.accepts_stage(stage.schema)


def _needs_one_batch(step: Processor) -> bool:
    return isinstance(step, StatefulStep) and step.needs_one_batch


def batch_writer(
    flow: FlowPlan,
    generation: str,
    context: Context,
    check: Callable[[], None],
    tally: Tally = ENGINE,
    stage: PythonStage | None = None,
) -> Callable[[DataFrame, int], None]:
    """The function that Spark calls for every micro-batch: it writes the same rows to each sink in turn.

    With an open `stage`, which the only sink ends, only the sink knows the number of rows. `check` raises if the state
    now belongs to another engine: a process that was suspended during a batch and resumes must not write the batch too.
    """

    # a candidate may have no sinks
    whole = bool(flow.sinks) and all(isinstance(step.sink, ReadsAllRows) for step in flow.sinks)
    folder = context.state_path / "dead_letters"

    def write(rows: DataFrame, batch_id: int) -> None:
        shared = len(flow.sinks) > 1 or (bool(flow.sinks) and not whole)
        if shared:
            rows.persist()
        try:
            for number, step in enumerate(flow.sinks):
                check()
                milestones.reach("between_sinks" if number else "before_batch", flow.name, batch_id)
                letters = DeadLetterWriter(folder, flow.name, step.id, generation)
                batch = Batch(flow.name, generation, batch_id, step.id, flow.spec.output, context, letters, tally)
                if stage is not None and isinstance(step.sink, WritesStage):
                    tally.add_batch(flow.name, batch_id, rows_out(step.sink.write_stage(stage.on(rows), batch)))
                else:
                    step.sink.write_batch(rows, batch)
            if not whole:
                drain(rows)
            milestones.reach("after_sinks", flow.name, batch_id)
            check()
        finally:
            if shared:
                rows.unpersist()

    return write


def _counted(rows: DataFrame) -> DataFrame:
    """The same rows; their number is in the report of each batch. The rows are computed once, so none counts twice."""
    from pyspark.sql import functions as F

    return rows.observe(OUTPUT, F.count(F.lit(1)).alias("rows"))


def _with_all_columns(item: Input) -> Input:
    return replace(item, columns=None) if isinstance(item, StreamInput | LakeInput) else item
