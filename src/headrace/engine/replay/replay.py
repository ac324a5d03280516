"""Replaying dead letters: after a fix their records go through the flow once more, as a batch of their own.

A replay 1. puts its letters into a folder: from here on it is begun and will be finished, now or by the next replay;
2. decodes them, runs the flow's SQL and keeps the rows it gives, with the letters that are still bad: from here on what
is written is fixed, whatever happens to the project; 3. writes these rows to every sink as batch 0 of the generation
`replay-<id>`, which every exactly-once sink writes once, however often it is tried; 4. says in the history what came
through. It does not touch the checkpoint of the flow, so it may run beside the engine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.capabilities import is_single_writer
from headrace.core.errors import Exit, ProjectError
from headrace.core.files.state_files import (
    StatePath,
    appearing,
    make_durable,
    remove_tree,
    spark_path,
    vanish,
    write_atomically,
)
from headrace.core.records import spark_schema
from headrace.engine.flows.checks import check_rows
from headrace.engine.flows.flow import batch_writer
from headrace.engine.letters.dead_letter_audit import keys_of
from headrace.engine.letters.dead_letter_index import DeadLetterIndex, DeadLetterStore
from headrace.engine.letters.dead_letters import read_dead_letters
from headrace.engine.letters.step_rows import letter_of
from headrace.engine.replay.replay_inputs import LetterInputs
from headrace.engine.spark.failures import from_query
from headrace.engine.spark.functions import register_for
from headrace.engine.spark.sql_errors import from_analysis
from headrace.engine.state.parquet_files import read_tables, rows_in, write_parts, write_table
from headrace.engine.state.state import StateDir
from headrace.plan.model import FlowPlan, Input, StreamInput
from headrace.project.loader import Project

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_IDS_AT_ONCE = 10_000
# the file that makes a folder a replay
_TOLD_BY = "replay.json"


@dataclass(frozen=True)
class FlowReplay:
    """Letters of one flow that go through it together."""

    id: str
    flow: FlowPlan
    folder: StatePath
    letters: int
    chosen: pa.Table | None
    """The letters as rows of the shelf's index; None when the replay was begun before."""

    @property
    def is_begun(self) -> bool:
        """Whether it was begun and not finished."""
        return (self.folder / _TOLD_BY).is_file()

    @property
    def generation(self) -> str:
        """Its name in every batch mark."""
        return f"replay-{self.id}"


@dataclass(frozen=True)
class ReplayOutcome:
    """What a replay has done."""

    replay: FlowReplay
    replayed: int
    still_bad: int
    rows: int
    new: int = 0
    """Rows that came further than before, and became dead letters of a later step."""


@dataclass(frozen=True)
class Begun:
    """Replays that were begun and not finished."""

    folder: StatePath

    def of(self, flow: str) -> list[tuple[StatePath, int]]:
        """Those of a flow and how many letters each has, oldest first."""
        mine = [(said["begun_at"], folder, said["letters"]) for folder, said in self._all() if said["flow"] == flow]
        return [(folder, letters) for _, folder, letters in sorted(mine, key=lambda one: (one[0], str(one[1])))]

    def flows(self) -> set[str]:
        """All flows that have one."""
        return {said["flow"] for _, said in self._all()}

    def holds(self, flow: str, letters: pa.Table) -> bool:
        """Whether some of these letters of a flow are in one."""
        mine = letters.filter(pc.equal(letters["flow"], flow))
        return any(pc.any(pc.is_in(mine["id"], _ids(folder))).as_py() for folder, _ in self.of(flow))

    def without(self, flow: str, letters: pa.Table) -> pa.Table:
        """Those of these letters of a flow that are in none."""
        for folder, _ in self.of(flow):
            letters = letters.filter(pc.invert(pc.is_in(letters["id"], _ids(folder))))
        return letters

    def _all(self) -> Iterator[tuple[StatePath, dict[str, Any]]]:
        for file in self.folder.glob(f"*/{_TOLD_BY}"):
            # a draft of a replay that did not even begin is hidden
            if not file.parent.name.startswith("."):
                yield file.parent, json.loads(file.read_text(encoding="utf-8"))

    def begin(self, replay: FlowReplay, shelf: DeadLetterStore) -> None:
        """Put the letters, bytes and all, into the replay's folder, which is there whole or not at all."""
        assert replay.chosen is not None
        for left_over in self.folder.glob(".*"):
            remove_tree(left_over)
        with appearing(replay.folder) as draft:
            write_parts(draft / "letters.parquet", shelf.schema, shelf.fetch(replay.chosen))
            said = {"flow": replay.flow.name, "letters": replay.letters, "begun_at": datetime.now(UTC).isoformat()}
            write_atomically(draft / _TOLD_BY, json.dumps(said).encode())

    def end(self, replay: FlowReplay) -> None:
        """Forget it, in one step: it is finished, or no sink has heard of it."""
        vanish(replay.folder, _TOLD_BY)


def _ids(folder: StatePath) -> pa.Array:
    return read_tables([folder / "letters.parquet"], None, ["id"])["id"].combine_chunks()


def replay_id(letters: pa.Table) -> str:
    """The same for the same letters: should all else be forgotten, the sinks still know them."""
    keys = keys_of(letters["flow"], letters["generation"], letters["id"])
    ordered = keys.take(pc.sort_indices(keys))
    digest = hashlib.sha256()
    for start in range(0, len(ordered), _IDS_AT_ONCE):
        digest.update("\n".join([*ordered.slice(start, _IDS_AT_ONCE).to_pylist(), ""]).encode())
    return digest.hexdigest()[:12]


@contextmanager
def alone(state: StateDir, replays: Sequence[FlowReplay]) -> Iterator[None]:
    """Keep the engine away while a sink is written that takes one writer at a time; else it may run."""
    single = [(one.flow.name, step.sink) for one in replays for step in one.flow.sinks if is_single_writer(step.sink)]
    with ExitStack() as held:
        try:
            if single:
                held.enter_context(state.lock())
        except ProjectError as error:
            if error.code != "state-in-use":
                raise
            flow, sink = single[0]
            raise ProjectError(
                "replay-one-writer",
                f"an engine runs, and {sink.label} of flow '{flow}' takes one writer at a time",
                hint="stop the engine first (headrace stop), then replay",
                exit_code=Exit.CONFLICT,
            ) from error
        yield


@dataclass(frozen=True)
class DeadLetterReplayer:
    """Brings letters of a project through their flows."""

    project: Project
    state: StateDir
    spark: SparkSession

    @property
    def _book(self) -> DeadLetterIndex:
        return DeadLetterIndex(self.state.dead_letters)

    @property
    def _begun(self) -> Begun:
        return Begun(self.state.replays)

    def run(self, replay: FlowReplay, shelf: DeadLetterStore) -> ReplayOutcome:
        """Bring a replay to its end, from wherever it is. Needs the lock of the history, and `alone`."""
        if replay.chosen is not None:
            self._begun.begin(replay, shelf)
            self._book.history.append("replay-begun", replay.chosen, replay=replay.id)
        with _explained(self.project, replay.flow):
            # temporary views and settings belong to the flow alone
            session = self.spark.newSession()
            session.conf.set("spark.sql.shuffle.partitions", str(replay.flow.partitions))
            for key, value in replay.flow.spec.spark.items():
                session.conf.set(key, value)
            self._write(replay, self._fixed_rows(replay, session))
        return self._finish(replay)

    def _fixed_rows(self, replay: FlowReplay, session: SparkSession) -> DataFrame:
        rows, done = replay.folder / "rows", replay.folder / "rows.json"
        if not done.is_file():
            try:
                self._fix_rows(replay, session, rows)
            except Exception:
                self._begun.end(replay)
                raise
            make_durable(replay.folder)
            write_atomically(done, json.dumps({"rows": _count(rows)}).encode())
        return session.read.parquet(spark_path(rows))

    def _fix_rows(self, replay: FlowReplay, session: SparkSession, rows: StatePath) -> None:
        remove_tree(rows)
        remove_tree(replay.folder / "bad")
        given = self._rows(replay, session)
        check_rows(self.project, replay.flow, spark_schema(given))
        given.write.mode("overwrite").parquet(spark_path(rows))

    def _rows(self, replay: FlowReplay, session: SparkSession) -> DataFrame:
        """What the flow's SQL gives for the letters."""
        from pyspark.errors import AnalysisException

        try:
            return self._query(replay, session, replay.flow.inputs)
        except AnalysisException as narrow:
            try:
                # the SQL may use a column in a way that only Spark understands
                return self._query(replay, session, tuple(_widened(one) for one in replay.flow.inputs))
            except AnalysisException:
                raise narrow from None

    def _query(self, replay: FlowReplay, session: SparkSession, inputs: Sequence[Input]) -> DataFrame:
        from pyspark.sql import functions as F
        from pyspark.sql.types import NullType

        flow = replay.flow
        letters, bad = replay.folder / "letters.parquet", replay.folder / "bad"
        begun_at = datetime.fromisoformat(json.loads((replay.folder / _TOLD_BY).read_bytes())["begun_at"])
        reader = LetterInputs(session, flow.name, self.project.context, letters, bad, replay.id, begun_at)
        register_for(session, flow, self.project)
        for one in inputs:
            reader.register(one)
        rows = reader.through(session.sql(flow.sql), flow.after)
        # files have no column of nothing but nulls without a type
        typed = [
            F.col(f"`{f.name}`").cast("string") if isinstance(f.dataType, NullType) else f"`{f.name}`"
            for f in rows.schema
        ]
        return rows.select(*typed)

    def _write(self, replay: FlowReplay, rows: DataFrame) -> None:
        """Without rows nothing is written: the same letters may be replayed again, and no mark may stop them then."""
        if _count(replay.folder / "rows"):
            batch_writer(replay.flow, replay.generation, self.project.context, self.state.fence.check)(rows, 0)

    def _finish(self, replay: FlowReplay) -> ReplayOutcome:
        letters = read_tables([replay.folder / "letters.parquet"], None, ["flow", "generation", "id"])
        met = read_dead_letters(replay.folder / "bad")
        pairs = zip(met["position"].to_pylist(), met["value"].to_pylist(), strict=True)
        ids = pa.array([letter_of(*pair) for pair in pairs], pa.string())
        bad = _still_bad(letters, met.filter(pc.is_valid(ids)), ids.drop_null())
        new = met.filter(pc.is_null(ids))
        self._keep(replay, new)
        good = letters.filter(pc.invert(pc.is_in(letters["id"], bad["id"].combine_chunks())))
        outcome = ReplayOutcome(replay, good.num_rows, bad.num_rows, _count(replay.folder / "rows"), new.num_rows)
        self._book.history.append("replayed", good, replay=replay.id)
        self._book.history.append("still-bad", bad, replay=replay.id)
        self._begun.end(replay)
        # what sinks kept beside the checkpoint of this generation, which nobody will go on with
        remove_tree(self.state.generations(replay.flow.name).folder / replay.generation)
        return outcome

    def _keep(self, replay: FlowReplay, letters: pa.Table) -> None:
        """Put new letters to the others of the flow; once, however often it is tried."""
        for stream in pc.unique(letters["stream"]).to_pylist():
            file = self.state.dead_letters / replay.flow.name / stream / f"{replay.generation}.parquet"
            write_table(file, letters.filter(pc.equal(letters["stream"], stream)), durable=True)


def _still_bad(letters: pa.Table, found: pa.Table, ids: pa.Array) -> pa.Table:
    known = letters.take(pc.index_in(ids, value_set=letters["id"].combine_chunks()))
    return known.append_column("reason", found["reason"]).append_column("detail", found["detail"])


def _widened(one: Input) -> Input:
    return replace(one, columns=None) if isinstance(one, StreamInput) else one


def _count(rows: StatePath) -> int:
    return sum(rows_in(file) for file in rows.glob("*.parquet"))


@contextmanager
def _explained(project: Project, flow: FlowPlan) -> Iterator[None]:
    """Turn what Spark raises into an error with a code, as when the flow runs."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import AnalysisException, PySparkException

    try:
        yield
    except AnalysisException as refusal:
        error = from_analysis(refusal)
        raise error.at(project.sql_origin(flow.name, error.line)) from refusal
    except (PySparkException, Py4JJavaError) as failure:
        raise from_query(flow, failure) from failure
