"""A group is captured: what its source says is in the log, once, and what is wrong is told and tried again."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.capture.kit import TestTable

from headrace.capture.worker import CaptureWorker
from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.core.schema import from_ddl
from headrace.core.tables import WEIGHT, CapturedBatch, RowChange, TableShape
from headrace.log.groups import group_id
from headrace.log.tables import TableLog, table_log
from headrace.log.tablestatus import read_group, read_groups, tables_folder
from headrace.project.model import RestartSpec
from headrace.project.tables import TableSpec
from headrace.store.tables.copy import TableCopy

QUICK = RestartSpec(backoff=timedelta(milliseconds=10), max_backoff=timedelta(milliseconds=20))
AT = datetime(2026, 5, 1, tzinfo=UTC)
BOTH = frozenset({"cups"})


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setattr("headrace.capture.group._QUIET_SECONDS", 0.05)
    monkeypatch.setattr("headrace.capture.group._WAIT_SECONDS", 0.02)
    TestTable.said, TestTable.readers = queue.Queue(), []
    return Context(tmp_path, str(tmp_path / "state"))


@pytest.fixture
def start(context: Context) -> Iterator[Callable[..., CaptureWorker]]:
    """Starts followers that are stopped when the test ends."""
    started: list[CaptureWorker] = []

    def begin(restart: RestartSpec = QUICK, **tables: TableSpec) -> CaptureWorker:
        made = CaptureWorker("told", tables or {"cups": spec()}, context, tables_folder(context), restart, _redact)
        started.append(made)
        made.start()
        return made

    yield begin
    for one in started:
        one.stop()
        assert one.join(10)


def _redact(text: str) -> str:
    return text.replace("hunter2", "***")


def spec(**options: Any) -> TableSpec:
    key = options.pop("key", [])
    return TableSpec(source=TestTable(**options), key=key)


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)


def say(*taken: CapturedBatch | Exception) -> None:
    for one in taken:
        TestTable.said.put(one)


def rows(log: TableLog) -> list[list[tuple[Any, ...]]]:
    """The weighted rows of each commit."""
    found = []
    for segment in log.after(0, 1000):
        parts = [part for parts in segment.parts.values() for part in parts]
        tables = [log.read(part, log.shapes()["cups"]) for part in parts]
        found.append([(row.pop(WEIGHT), *row.values()) for table in tables for row in table.to_pylist()])
    return found


def first(*names: str) -> CapturedBatch:
    table = pa.table({"id": list(range(len(names))), "name": list(names)}, schema=from_ddl("id bigint, name string"))
    return CapturedBatch({"at": 1}, rows={"cups": table}, begins=BOTH, ends=BOTH, at=AT)


def change(number: int, *row: Any) -> CapturedBatch:
    return CapturedBatch({"at": number}, [RowChange("cups", row)])


def test_a_snapshot_and_what_changes_after_it_are_logged_and_confirmed(
    context: Context, start: Callable[..., CaptureWorker]
) -> None:
    follower = start()
    log = table_log(context, "told")
    say(first("mug", "cup"))
    until(lambda: log.end() == 1)
    say(change(2, 1, "Cup"))
    until(lambda: log.end() == 2)
    assert rows(log) == [[(1, 0, "mug"), (1, 1, "cup")], [(-1, 1, "cup"), (1, 1, "Cup")]]
    assert (log.complete(), log.position(), log.counts()) == (BOTH, {"at": 2}, {"cups": 2})
    (reader,) = TestTable.readers
    until(lambda: reader.confirmed == [{"at": 1}, {"at": 2}])
    until(lambda: follower.state == "running" and follower.progress.caught_up)
    follower.stop()
    assert follower.join(10)
    assert reader.closed
    said = read_group(tables_folder(context), "told")
    assert said is not None
    assert (said["state"], said["sequence"], said["changes"], said["reason"]) == ("stopped", 2, 4, None)
    assert said["tables"] == {"cups": {"rows": 2, "complete": True}}
    assert said["newest"] == AT.isoformat()
    assert read_groups(tables_folder(context)) != []


def test_it_goes_on_where_the_log_is(context: Context, start: Callable[..., CaptureWorker]) -> None:
    one = start()
    log = table_log(context, "told")
    say(first("mug"))
    until(lambda: log.end() == 1)
    one.stop()
    assert one.join(10)
    start()
    say(change(2, 0, "Mug"))
    until(lambda: log.end() == 2)
    assert TestTable.readers[-1].after == {"at": 1}
    assert rows(log)[1] == [(-1, 0, "mug"), (1, 0, "Mug")]


def test_changes_that_come_close_together_are_committed_together(
    context: Context, start: Callable[..., CaptureWorker]
) -> None:
    say(first("mug"), *(change(number, 0, f"mug {number}") for number in range(2, 52)))
    start()
    log = table_log(context, "told")
    until(lambda: log.position() == {"at": 51})
    assert log.end() <= 4
    assert [commit[0][0] for commit in rows(log)[1:]] == [-1] * (log.end() - 1)
    assert rows(log)[-1][-1] == (1, 0, "mug 51")


def test_a_source_that_is_away_is_waited_for_and_told(context: Context, start: Callable[..., CaptureWorker]) -> None:
    say(first("mug"))
    follower = start()
    log = table_log(context, "told")
    until(lambda: log.end() == 1)
    away = ProjectError("source-away", "no answer with password hunter2", hint="start it", exit_code=Exit.TRANSIENT)
    say(*[away] * 3)
    until(lambda: follower.state == "degraded" or len(TestTable.readers) > 3)
    until(lambda: len(TestTable.readers) >= 4)
    until(lambda: follower.state == "running")
    say(change(2, 0, "Mug"))
    until(lambda: log.end() == 2)
    assert [reader.after for reader in TestTable.readers[1:]] == [{"at": 1}] * (len(TestTable.readers) - 1)
    assert all(reader.closed for reader in TestTable.readers[:-1])
    assert follower.document()["restarts"] == 3


def test_what_is_wrong_is_said_without_secrets(context: Context, start: Callable[..., CaptureWorker]) -> None:
    say(RuntimeError("hunter2 is odd"))
    follower = start(RestartSpec())
    until(lambda: follower.reason is not None)
    assert follower.reason is not None
    assert follower.reason["code"] == "table-capture-failed"
    assert "hunter2" not in str(follower.document())


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ("id bigint, name string, size int", None),
        ("id bigint, size int, name string", "table-changed"),
        ("id bigint", "table-changed"),
        ("id bigint, name int", "table-changed"),
    ],
)
def test_a_table_may_only_get_more_columns(
    context: Context, start: Callable[..., CaptureWorker], columns: str, code: str | None
) -> None:
    follower = start()
    log = table_log(context, "told")
    say(first("mug"))
    until(lambda: log.end() == 1)
    say(CapturedBatch({"at": 2}, shapes={"cups": TableShape(from_ddl(columns), ("id",))}))
    if code is None:
        until(lambda: log.end() == 2)
        say(CapturedBatch({"at": 3}, [RowChange("cups", (0, "mug", 7))]))
        until(lambda: log.end() == 3)
        assert rows(log)[2] == [(-1, 0, "mug", None), (1, 0, "mug", 7)]
    else:
        until(lambda: len(TestTable.readers) > 1)
        assert log.end() == 1
        assert follower.document()["restarts"] >= 1


def test_a_key_is_needed_and_cannot_change(context: Context, start: Callable[..., CaptureWorker]) -> None:
    keyless = start(cups=spec(own_key=()))
    until(lambda: keyless.reason is not None and keyless.reason["code"] == "table-key")
    keyless.stop()
    assert keyless.join(10)
    log = table_log(context, "told")
    named = start(cups=spec(own_key=(), key=["name"]))
    say(first("mug"))
    until(lambda: log.end() == 1)
    assert log.shapes()["cups"].key == ("name",)
    named.stop()
    assert named.join(10)
    other = start(cups=spec(own_key=(), key=["id"]))
    until(lambda: other.reason is not None and other.reason["code"] == "table-changed")


def test_who_commits_to_the_same_log_is_followed(context: Context, start: Callable[..., CaptureWorker]) -> None:
    start()
    log = table_log(context, "told")
    say(first("mug"))
    until(lambda: log.end() == 1)
    other = TableLog(log.folder)
    cups = log.shapes()["cups"]
    stolen = pa.table({"id": [0, 0], "name": ["mug", "pot"], WEIGHT: [-1, 1]}, schema=cups.weighted)
    other.commit({"cups": stolen}, {"at": 5}, {"cups": cups}, None, BOTH)
    say(change(2, 0, "lost"))
    until(lambda: len(TestTable.readers) == 2)
    assert TestTable.readers[1].after == {"at": 5}
    say(change(6, 0, "jug"))
    until(lambda: log.end() == 3)
    assert rows(log)[-1] == [(-1, 0, "pot"), (1, 0, "jug")]


def test_a_copy_in_which_damage_is_met_is_made_again(context: Context, start: Callable[..., CaptureWorker]) -> None:
    follower = start()
    log = table_log(context, "told")
    say(first("mug", "cup"))
    until(lambda: log.end() == 1)
    follower.stop()
    assert follower.join(10)
    copy = TableCopy.open(tables_folder(context) / group_id("told"))
    with copy._environment.lmdb.begin(write=True) as txn:
        cursor = txn.cursor(copy._rows)
        cursor.first()
        txn.put(cursor.key(), cursor.value()[:-1] + b"?", db=copy._rows)
    copy.close()
    start()
    say(change(2, 0, "Mug"))
    until(lambda: len(TestTable.readers) == 3)
    say(change(2, 0, "Mug"))
    until(lambda: log.end() == 2)
    assert rows(log)[1] == [(-1, 0, "mug"), (1, 0, "Mug")]


def test_a_table_that_is_taken_out_stays_as_it_was(context: Context, start: Callable[..., CaptureWorker]) -> None:
    both = start(cups=spec(), pots=spec())
    log = table_log(context, "told")
    say(first("mug"), CapturedBatch({"at": 2}, [RowChange("pots", (1, "tea pot"))]))
    until(lambda: log.end() == 2)
    both.stop()
    assert both.join(10)
    start(cups=spec())
    say(change(3, 0, "Mug"))
    until(lambda: log.end() == 3)
    assert list(TestTable.readers[-1].shapes) == ["cups"]
    assert (sorted(log.shapes()), log.counts()) == (["cups", "pots"], {"cups": 1, "pots": 1})
