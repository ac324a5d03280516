"""Plans of rewinds, savepoints and what sinks take back, on checkpoints and tables as they are on disk: no Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from tests.engine.state.test_checkpoints import write_batch

from headrace.core.capabilities import Rewind, Rewindable
from headrace.core.context import Context, ReadContext
from headrace.core.errors import Exit, ProjectError
from headrace.core.positions import AtOffset, Earliest, Latest, Position, Positions, Split, SplitScope, Target
from headrace.core.sink import Sink
from headrace.core.source import RowSource
from headrace.engine.positions.lag import LagProbe, pace
from headrace.engine.positions.positions import (
    PositionEntry,
    PositionLog,
    log_file,
    read_log,
    thin_entries,
    unread_records,
)
from headrace.engine.positions.rewind import Rewinder, while_stopped
from headrace.engine.positions.rewind_plan import CheckpointCopy
from headrace.engine.positions.savepoints import Savepoints
from headrace.engine.positions.topics import check_topics
from headrace.engine.state.state import StateDir
from headrace.plan.model import FlowPlan, Plan, SinkStep, StreamInput
from headrace.project.model import FlowSpec, StreamSpec
from headrace.sinks.files import FilesSink
from headrace.sinks.lake import LakeSink
from headrace.sinks.noop import NoopSink


class ShelfPositions(Positions):
    """A shelf of a hundred books, of which the first ten were thrown away."""

    id = "first"

    def of_checkpoint(self, end: Any) -> Position | None:
        return end if isinstance(end, dict) and "shelf" in end else None

    def resolve(self, target: Target, current: Position | None, scope: SplitScope) -> Position | None:
        match target:
            case Earliest():
                return {"shelf": {"0": 10}}
            case AtOffset(offset):
                return {"shelf": {"0": offset}}
            case _:
                return {"shelf": {"0": 100}}

    def measure(self, position: Position | None) -> list[Split]:
        return [Split("shelf", 0, 10, 100, None if position is None else position["shelf"]["0"], 0.0)]

    def identities(self) -> dict[str, str]:
        return {"shelf": self.id}


class ShelfSource(RowSource):
    """What a further kind needs: one method."""

    type: Literal["shelf"] = "shelf"

    def positions(self, context: Context) -> Positions:
        return ShelfPositions("a shelf")

    def row_schema(self, context: Context) -> pa.Schema:
        return pa.schema([("n", pa.int64())])

    def read(self, spark: Any, context: ReadContext) -> Any:
        raise AssertionError("no Spark here")


class RewindSetup:
    """A flow on disk."""

    def __init__(self, folder: Path, *sinks: Sink, state: tuple[str, ...] = ()) -> None:
        self.context = Context(folder, str(folder / "state"))
        self.state = StateDir(folder / "state")
        spec = StreamSpec.model_construct(source=ShelfSource(), format=None, event_time=None)
        stream = StreamInput("books", spec, None, None, ())
        steps = tuple(SinkStep(f"{i}-{sink.kind()}", sink) for i, sink in enumerate(sinks or (NoopSink(),)))
        flow = FlowSpec(sql="SELECT 1", sinks=[])
        self.flow = FlowPlan("reads", flow, "SELECT 1", (stream,), (), ("n",), state, steps, timedelta(1), 1, 1)
        self.rewinder = Rewinder(self.flow, Plan("p", (self.flow,)), self.state, self.context)

    def batches(self, *ends: int) -> None:
        """Let the current generation have batches that end there."""
        first = self.state.current("reads").checkpoint.committed()
        for number, end in enumerate(ends, start=first.batch_id + 1 if first else 0):
            write_batch(self.state.current("reads").checkpoint_folder, number, {"shelf": {"0": end}})


def test_a_plan_says_what_moves_and_what_it_means(tmp_path: Path) -> None:
    setup = RewindSetup(tmp_path, LakeSink(path="t"), LakeSink(path="k", key=["n"]), NoopSink(), state=("group",))
    setup.batches(20, 60)
    plan = setup.rewinder.to_position(AtOffset(30), SplitScope())
    assert plan.to_json()["moves"] == [
        {"stream": "books", "topic": "shelf", "partition": 0, "from": 60, "to": 30, "records": 30}
    ]
    assert [effect for _, effect in plan.effects] == [
        "30 records are read again: their rows are added to those already written",
        "30 records are read again: their rows replace those of the same key",
        "30 records are read again: nothing is kept here",
    ]
    assert "state (group) starts empty" in " ".join(plan.warnings)
    assert plan.last_kept == (setup.state.current("reads").id, 0)
    assert setup.rewinder.to_position(Latest(), SplitScope()).skipped == 40


def test_a_rewind_is_a_new_generation_and_the_old_one_can_be_gone_back_to(tmp_path: Path) -> None:
    setup = RewindSetup(tmp_path)
    setup.batches(20, 60)
    first = setup.state.current("reads")
    second = setup.rewinder.execute(setup.rewinder.to_position(AtOffset(30), SplitScope()))
    assert setup.state.current("reads") == second
    assert second.manifest.start == {"books": {"shelf": {"0": 30}}}
    assert second.manifest.base == {"generation": first.id, "batch": 0}
    assert first.checkpoint.committed() is not None
    third = setup.rewinder.execute(setup.rewinder.to_checkpoint(CheckpointCopy("g", first)))
    committed = third.checkpoint.committed()
    assert committed is not None
    assert (committed.batch_id, committed.ends) == (1, ({"shelf": {"0": 60}},))
    assert third.id not in (first.id, second.id), "marks of batches never collide"


def test_replacing_begins_where_a_batch_ended(tmp_path: Path) -> None:
    setup = RewindSetup(tmp_path)
    setup.batches(20, 60, 90)
    plan = setup.rewinder.to_position(AtOffset(75), SplitScope(), replace=True)
    assert plan.start == {"books": {"shelf": {"0": 60}}}
    assert plan.last_kept == (setup.state.current("reads").id, 1)
    with pytest.raises(ProjectError) as refused:
        setup.rewinder.to_position(AtOffset(15), SplitScope(), replace=True)
    assert refused.value.code == "rewind-no-boundary"
    everything = setup.rewinder.to_position(Earliest(), SplitScope(), replace=True)
    assert everything.last_kept is None
    assert "records before 10 have expired" in " ".join(everything.warnings)


def test_batches_of_earlier_generations_count_as_far_as_they_were_kept(tmp_path: Path) -> None:
    setup = RewindSetup(tmp_path)
    setup.batches(20, 40, 60)
    first = setup.state.current("reads").id
    setup.rewinder.execute(setup.rewinder.to_position(AtOffset(40), SplitScope()))
    setup.batches(70)
    assert setup.rewinder.to_position(AtOffset(65), SplitScope()).last_kept == (first, 1)
    assert setup.rewinder.to_position(AtOffset(80), SplitScope()).last_kept == (setup.state.current("reads").id, 0)


def lake_rows(path: Path) -> list[int]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table()["n"].to_pylist())


def append(path: Path, number: int, mark: str | None, batch: int = 0) -> None:
    marks = [Transaction(app_id=mark, version=batch)] if mark else None
    rows = pa.table({"n": pa.array([number], pa.int64())})
    write_deltalake(str(path), rows, mode="append", commit_properties=CommitProperties(app_transactions=marks))


def test_a_lake_table_goes_back_to_the_version_of_a_batch(tmp_path: Path) -> None:
    setup = RewindSetup(tmp_path, LakeSink(path="t"))
    setup.batches(20, 40, 60)
    first = setup.state.current("reads")
    for batch in range(3):
        append(tmp_path / "t", batch, f"headrace.reads.{first.id}.0-lake", batch)
    plan = setup.rewinder.to_position(AtOffset(40), SplitScope(), replace=True)
    assert plan.effects[0][1].startswith("the table goes back to version 1 (1 commits")
    second = setup.rewinder.execute(plan)
    assert lake_rows(tmp_path / "t") == [0, 1]
    append(tmp_path / "t", 7, f"headrace.reads.{second.id}.0-lake", 0)
    setup.rewinder.execute(setup.rewinder.to_checkpoint(CheckpointCopy("g", first), replace=True))
    assert lake_rows(tmp_path / "t") == [0, 1, 2], "the first life as it was"
    setup.rewinder.execute(setup.rewinder.to_position(Earliest(), SplitScope(), replace=True))
    assert lake_rows(tmp_path / "t") == []


@pytest.mark.parametrize(
    ("mark", "code"),
    [
        (None, "rewind-others-wrote"),
        ("headrace.other.g1-x.0-lake", "rewind-others-wrote"),
        ("headrace.reads.replay-a.0-lake", "rewind-replayed"),
    ],
)
def test_rows_that_would_be_lost_for_ever_are_not_taken_back(tmp_path: Path, mark: str | None, code: str) -> None:
    setup = RewindSetup(tmp_path, LakeSink(path="t"))
    setup.batches(20, 40)
    current = setup.state.current("reads")
    append(tmp_path / "t", 0, f"headrace.reads.{current.id}.0-lake", 0)
    append(tmp_path / "t", 9, mark)
    append(tmp_path / "t", 1, f"headrace.reads.{current.id}.0-lake", 1)
    with pytest.raises(ProjectError) as refused:
        setup.rewinder.to_position(AtOffset(20), SplitScope(), replace=True)
    assert (refused.value.code, refused.value.exit_code) == (code, Exit.CONFLICT)
    assert setup.state.current("reads") == current
    assert lake_rows(tmp_path / "t") == [0, 1, 9]


def test_files_of_later_batches_are_deleted(tmp_path: Path) -> None:
    setup = RewindSetup(tmp_path, FilesSink(path="out", partition_by=[]))
    setup.batches(20, 40, 60)
    name = setup.state.current("reads").id.replace("-", "_")
    folder, workshop = tmp_path / "out" / "dt=1", tmp_path / ".out.headrace"
    (workshop / "staging" / f"reads-0_files-{name}-00000003").mkdir(parents=True)
    (workshop / "commits").mkdir()
    (workshop / "commits" / f"reads-0_files-{name}-00000003.json").write_text("{}")
    folder.mkdir(parents=True)
    for batch in range(3):
        (folder / f"reads-0_files-{name}-{batch:08d}-0000.json").write_text("1")
    (folder / f"other-0_files-{name}-00000002-0000.json").write_text("1")
    plan = setup.rewinder.to_position(AtOffset(45), SplitScope(), replace=True)
    assert plan.effects[0][1] == "1 file of later batches are deleted; 20 records are read again"
    setup.rewinder.execute(plan)
    left = sorted(path.name for path in folder.iterdir())
    assert left == [
        f"other-0_files-{name}-00000002-0000.json",
        f"reads-0_files-{name}-00000000-0000.json",
        f"reads-0_files-{name}-00000001-0000.json",
    ]
    assert list(workshop.rglob("*reads*")) == []


class FailingSink(NoopSink, Rewindable):
    """Fails the first time it is to take something back."""

    def take_back(self, rewind: Rewind) -> None:
        marker = Path(rewind.context.root) / "tried"
        if not marker.exists():
            marker.touch()
            raise ProjectError("lake-missing", "away")
        (Path(rewind.context.root) / "done").touch()


def test_an_interrupted_rewind_is_finished_before_the_flow_starts(tmp_path: Path) -> None:
    from headrace.engine.positions.rewind import finish_row_removal

    setup = RewindSetup(tmp_path, FailingSink())
    setup.batches(20)
    with pytest.raises(ProjectError):
        setup.rewinder.execute(setup.rewinder.to_position(Earliest(), SplitScope(), replace=True))
    current = setup.state.current("reads")
    assert current.manifest.reason == "rewind to earliest"
    for _ in range(2):
        finish_row_removal(setup.flow, current, setup.context)
    assert (tmp_path / "done").exists()
    assert not list(current.folder.glob("take_back*"))


def test_a_savepoint_is_a_copy_that_later_batches_do_not_touch(tmp_path: Path) -> None:
    setup = RewindSetup(tmp_path)
    savepoints = Savepoints(setup.state, "reads")
    with pytest.raises(ProjectError, match="no committed batch"):
        savepoints.create(setup.flow, setup.context)
    setup.batches(20, 40)
    made = savepoints.create(setup.flow, setup.context, "here")
    setup.batches(60)
    committed = made.generation.checkpoint.committed()
    assert committed is not None
    assert committed.batch_id == made.info.batch == 1
    assert made.info.positions == {"books": {"shelf": {"0": 40}}}
    original = setup.state.current("reads").checkpoint_folder / "offsets" / "0"
    assert original.samefile(made.folder / "checkpoint" / "offsets" / "0"), "a link costs no room"
    generation = setup.rewinder.execute(setup.rewinder.to_checkpoint(CheckpointCopy("savepoint here", made.generation)))
    savepoints.delete("here")
    assert savepoints.all() == []
    assert generation.checkpoint.committed() == committed
    with pytest.raises(ProjectError) as refused:
        savepoints.delete("here")
    assert (refused.value.code, refused.value.exit_code) == ("unknown-savepoint", Exit.NOT_FOUND)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("here", "savepoint-exists"),
        ("latest", "bad-savepoint-name"),
        ("g1-x", "bad-savepoint-name"),
        ("../x", "bad-savepoint-name"),
    ],
)
def test_names_of_savepoints_are_checked(tmp_path: Path, name: str, code: str) -> None:
    setup = RewindSetup(tmp_path)
    setup.batches(20)
    savepoints = Savepoints(setup.state, "reads")
    savepoints.create(setup.flow, setup.context, "here")
    with pytest.raises(ProjectError) as refused:
        savepoints.create(setup.flow, setup.context, name)
    assert refused.value.code == code


def test_no_savepoint_while_a_batch_is_half_done_and_a_rewind_says_so(tmp_path: Path) -> None:
    setup = RewindSetup(tmp_path)
    setup.batches(20)
    write_batch(setup.state.current("reads").checkpoint_folder, 1, {"shelf": {"0": 30}}, done=False)
    with pytest.raises(ProjectError) as refused:
        Savepoints(setup.state, "reads").create(setup.flow, setup.context)
    assert (refused.value.code, refused.value.exit_code) == ("batch-in-flight", Exit.CONFLICT)
    assert "unfinished" in setup.rewinder.to_position(Earliest(), SplitScope()).warnings[0]


def test_a_running_engine_is_not_disturbed(tmp_path: Path) -> None:
    setup = RewindSetup(tmp_path)
    with setup.state.lock(), pytest.raises(ProjectError) as refused, while_stopped(setup.state, "reads"):
        pass
    assert (refused.value.code, refused.value.exit_code) == ("flow-running", Exit.CONFLICT)
    with while_stopped(setup.state, "reads"):
        pass


def test_a_recreated_topic_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = RewindSetup(tmp_path)
    generation = setup.state.current("reads")
    for _ in range(2):
        check_topics(setup.flow, generation, setup.context)
    assert generation.manifest.topics == {"books/shelf": "first"}
    monkeypatch.setattr(ShelfPositions, "id", "second")
    with pytest.raises(ProjectError) as refused:
        check_topics(setup.flow, generation, setup.context)
    assert (refused.value.code, refused.value.exit_code) == ("topic-recreated", Exit.CONFLICT)
    assert "headrace rewind reads --to earliest" in (refused.value.hint or "")
    fresh = setup.rewinder.execute(setup.rewinder.to_position(Earliest(), SplitScope()))
    check_topics(setup.flow, fresh, setup.context)


PROGRESS: Mapping[str, Any] = {
    "sources": [
        {"endOffset": '{"shelf":{"0":20}}', "latestOffset": '{"shelf":{"0":50}}'},
        {"endOffset": "7", "latestOffset": None},
    ]
}


def test_the_log_of_positions_is_kept_by_time_and_bounded(tmp_path: Path) -> None:
    setup = RewindSetup(tmp_path)
    setup.batches(20)
    now = [1_000_000.0]
    log = PositionLog(setup.state, max_bytes=4000, clock=lambda: now[0])
    log.batch_done(setup.flow, PROGRESS)
    log.batch_done(setup.flow, PROGRESS)
    generation = setup.state.current("reads")
    assert read_log(generation) == [PositionEntry(1_000_000.0, 0, ({"shelf": {"0": 20}},), 30)], "once a second at most"
    with log_file(generation).open("a") as file:
        file.write('{"t": 1')  # a crash while writing
    for _ in range(2000):
        now[0] += 30
        log.batch_done(setup.flow, PROGRESS)
    assert log_file(generation).stat().st_size < 5000
    moments = read_log(generation)
    assert moments[-1].time == now[0]
    assert moments[0].time < now[0] - 3600
    now[0] += 8 * 86_400
    assert thin_entries(moments, now[0], timedelta(days=7).total_seconds()) == []


def test_positions_are_thinner_the_older_they_are() -> None:
    moments = [PositionEntry(float(t), t, (), None) for t in range(0, 200_000, 10)]
    kept = thin_entries(moments, 200_000.0, 7 * 86_400.0)
    recent = [m for m in kept if m.time >= 200_000 - 3600]
    assert len(recent) == 360
    assert 1300 < len([m for m in kept if 200_000 - 86_400 <= m.time < 200_000 - 3600]) < 1400
    assert 180 < len([m for m in kept if m.time < 200_000 - 86_400]) < 200


def test_lag_is_taken_from_reports_where_they_have_it() -> None:
    assert unread_records(PROGRESS) == 30
    assert unread_records({"sources": [{"endOffset": "7", "latestOffset": None}]}) is None


@pytest.mark.parametrize(
    ("read", "before", "now", "trend", "catch_up"),
    [
        (100, 0, 0, "steady", 0.0),
        (100, 1000, 1005, "steady", None),
        (100, 1000, 500, "shrinking", 10.0),
        (100, 500, 1000, "growing", None),
        (100, 5, 0, "shrinking", 0.0),
        (100, None, 10, None, None),
    ],
)
def test_a_pace_has_a_trend_and_an_end(
    read: int, before: int | None, now: int, trend: str | None, catch_up: float | None
) -> None:
    found = pace(read, before, now, 10.0)
    assert (found.rate, found.trend, found.catch_up_s) == (10.0, trend, catch_up)


def test_a_probe_reads_position_and_pace_without_spark(tmp_path: Path) -> None:
    setup = RewindSetup(tmp_path)
    probe = LagProbe("p", setup.flow, setup.context)
    assert probe.measure(None).to_json()["lag"] is None
    setup.batches(20)
    PositionLog(setup.state, clock=lambda: time.time() - 10).batch_done(setup.flow, PROGRESS)
    setup.batches(40)
    found = probe.measure(setup.state.current("reads"))
    assert (found.records, found.seconds) == (60, 0.0)
    assert found.pace.trend == "growing"
    said = json.loads(json.dumps(found.to_json()))
    assert said["partitions"] == [
        {
            "stream": "books",
            "topic": "shelf",
            "partition": 0,
            "start": 10,
            "committed": 40,
            "end": 100,
            "lag": 60,
            "lag_s": 0.0,
        }
    ]
    probe.close()
