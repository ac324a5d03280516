"""Replays dead letters: after a fix, their records pass through the flow again as a separate batch.

A replay has four steps:

1. It copies its letters to a folder. From now on it is finished, either now or by the next replay.
2. It decodes the letters, runs the flow's SQL and stores the resulting rows and the letters that are still bad. From
   now on the rows are fixed, even if the project changes.
3. It writes these rows to every sink as batch 0 of the generation `replay-<id>`. An exactly-once sink writes it once,
   however often it is tried.
4. It adds the outcome to the history.

It does not change the checkpoint of the flow, so it can run while the engine runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.capabilities import is_single_writer
from headrace.core.errors import Exit, ProjectError
from headrace.core.files.state_files import (
    StatePath,
    make_durable,
    remove_tree,
    spark_path,
    write_atomically,
)
from headrace.core.records import spark_schema
from headrace.engine.flows.checks import check_rows
from headrace.engine.flows.flow import batch_writer
from headrace.engine.letters.dead_letter_index import DeadLetterIndex, DeadLetterStore
from headrace.engine.letters.dead_letters import read_dead_letters
from headrace.engine.letters.step_rows import letter_of
from headrace.engine.replay.replay_folders import FlowReplay, UnfinishedReplays
from headrace.engine.replay.replay_inputs import LetterInputs
from headrace.engine.spark.failures import from_query
from headrace.engine.spark.functions import register_for
from headrace.engine.spark.sql_errors import from_analysis
from headrace.engine.state.parquet_files import read_tables, rows_in, write_table
from headrace.engine.state.state import StateDir
from headrace.plan.model import FlowPlan, Input, StreamInput
from headrace.project.loader import Project

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class ReplayOutcome:
    """The numbers of letters and rows of a finished replay."""

    replay: FlowReplay
    replayed: int
    still_bad: int
    rows: int
    new: int = 0
    """Rows that passed the step that had refused them, and became dead letters of a later step."""


@contextmanager
def single_writer_lock(state: StateDir, replays: Sequence[FlowReplay]) -> Iterator[None]:
    """Hold the lock of the engine if a sink allows only one writer at a time; otherwise the engine may run."""
    single = [
        (each.flow.name, step.sink) for each in replays for step in each.flow.sinks if is_single_writer(step.sink)
    ]
    with ExitStack() as stack:
        try:
            if single:
                stack.enter_context(state.lock())
        except ProjectError as error:
            if error.code != "state-in-use":
                raise
            flow, sink = single[0]
            raise ProjectError(
                "replay-one-writer",
                f"an engine runs, and {sink.label} of flow '{flow}' allows only one writer at a time",
                hint="stop the engine first (headrace stop), then replay",
                exit_code=Exit.CONFLICT,
            ) from error
        yield


@dataclass(frozen=True)
class DeadLetterReplayer:
    """Runs replays of a project."""

    project: Project
    state: StateDir
    spark: SparkSession

    @property
    def _book(self) -> DeadLetterIndex:
        return DeadLetterIndex(self.state.dead_letters)

    @property
    def _unfinished(self) -> UnfinishedReplays:
        return UnfinishedReplays(self.state.replays)

    def run(self, replay: FlowReplay, store: DeadLetterStore) -> ReplayOutcome:
        """Finish a replay from any step. The caller holds the lock of the history and `single_writer_lock`."""
        if replay.chosen is not None:
            self._unfinished.begin(replay, store)
            self._book.history.append("replay-begun", replay.chosen, replay=replay.id)
        with _explained(self.project, replay.flow):
            # a separate session, with its own temporary views and settings
            session = self.spark.newSession()
            session.conf.set("spark.sql.shuffle.partitions", str(replay.flow.partitions))
            for key, value in replay.flow.spec.spark.items():
                session.conf.set(key, value)
            self._write(replay, self._stored_rows(replay, session))
        return self._finish(replay)

    def _stored_rows(self, replay: FlowReplay, session: SparkSession) -> DataFrame:
        rows, done = replay.folder / "rows", replay.folder / "rows.json"
        if not done.is_file():
            try:
                self._store_rows(replay, session, rows)
            except Exception:
                self._unfinished.end(replay)
                raise
            make_durable(replay.folder)
            write_atomically(done, json.dumps({"rows": _count(rows)}).encode())
        return session.read.parquet(spark_path(rows))

    def _store_rows(self, replay: FlowReplay, session: SparkSession, rows: StatePath) -> None:
        remove_tree(rows)
        remove_tree(replay.folder / "bad")
        result = self._rows(replay, session)
        check_rows(self.project, replay.flow, spark_schema(result))
        result.write.mode("overwrite").parquet(spark_path(rows))

    def _rows(self, replay: FlowReplay, session: SparkSession) -> DataFrame:
        """The result of the flow's SQL for the letters."""
        from pyspark.errors import AnalysisException

        try:
            return self._query(replay, session, replay.flow.inputs)
        except AnalysisException as narrow:
            try:
                # the SQL may use a column in a way that the planner does not recognise
                return self._query(replay, session, tuple(_with_all_columns(item) for item in replay.flow.inputs))
            except AnalysisException:
                raise narrow from None

    def _query(self, replay: FlowReplay, session: SparkSession, inputs: Sequence[Input]) -> DataFrame:
        from pyspark.sql import functions as F
        from pyspark.sql.types import NullType

        flow, letters, bad = replay.flow, replay.letters_file, replay.folder / "bad"
        reader = LetterInputs(session, flow.name, self.project.context, letters, bad, replay.id, replay.begun_at)
        register_for(session, flow, self.project)
        for item in inputs:
            reader.register(item)
        rows = reader.apply_steps(session.sql(flow.sql), flow.after)
        # Parquet has no column type for untyped nulls
        typed = [
            F.col(f"`{f.name}`").cast("string") if isinstance(f.dataType, NullType) else f"`{f.name}`"
            for f in rows.schema
        ]
        return rows.select(*typed)

    def _write(self, replay: FlowReplay, rows: DataFrame) -> None:
        """Without rows nothing is written: a batch mark would block a later replay of the same letters."""
        if _count(replay.folder / "rows"):
            batch_writer(replay.flow, replay.generation, self.project.context, self.state.fence.check)(rows, 0)

    def _finish(self, replay: FlowReplay) -> ReplayOutcome:
        letters = read_tables([replay.letters_file], None, ["flow", "generation", "id"])
        refused = read_dead_letters(replay.folder / "bad")
        pairs = zip(refused["position"].to_pylist(), refused["value"].to_pylist(), strict=True)
        ids = pa.array([letter_of(*pair) for pair in pairs], pa.string())
        bad = _still_bad(letters, refused.filter(pc.is_valid(ids)), ids.drop_null())
        new = refused.filter(pc.is_null(ids))
        self._add_letters(replay, new)
        good = letters.filter(pc.invert(pc.is_in(letters["id"], bad["id"].combine_chunks())))
        outcome = ReplayOutcome(replay, good.num_rows, bad.num_rows, _count(replay.folder / "rows"), new.num_rows)
        self._book.history.append("replayed", good, replay=replay.id)
        self._book.history.append("still-bad", bad, replay=replay.id)
        self._unfinished.end(replay)
        # files that sinks stored for this generation, which does not continue
        remove_tree(self.state.generations(replay.flow.name).folder / replay.generation)
        return outcome

    def _add_letters(self, replay: FlowReplay, letters: pa.Table) -> None:
        """Add new letters to those of the flow. Idempotent."""
        for stream in pc.unique(letters["stream"]).to_pylist():
            file = self.state.dead_letters / replay.flow.name / stream / f"{replay.generation}.parquet"
            write_table(file, letters.filter(pc.equal(letters["stream"], stream)), durable=True)


def _still_bad(letters: pa.Table, refused: pa.Table, ids: pa.Array) -> pa.Table:
    known = letters.take(pc.index_in(ids, value_set=letters["id"].combine_chunks()))
    return known.append_column("reason", refused["reason"]).append_column("detail", refused["detail"])


def _with_all_columns(item: Input) -> Input:
    return replace(item, columns=None) if isinstance(item, StreamInput) else item


def _count(rows: StatePath) -> int:
    return sum(rows_in(file) for file in rows.glob("*.parquet"))


@contextmanager
def _explained(project: Project, flow: FlowPlan) -> Iterator[None]:
    """Turn exceptions of Spark into errors with a code, as when the flow runs."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import AnalysisException, PySparkException

    try:
        yield
    except AnalysisException as refusal:
        error = from_analysis(refusal)
        raise error.at(project.sql_origin(flow.name, error.line)) from refusal
    except (PySparkException, Py4JJavaError) as failure:
        raise from_query(flow, failure) from failure
