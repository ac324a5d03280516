"""The log of tables: weighted rows of all tables of a group, committed together, kept as long as they are wanted."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.core.context import Context
from headrace.core.files.state_files import StatePath, write_atomically
from headrace.core.schema import from_ddl
from headrace.core.tables import WEIGHT, TableShape
from headrace.log.log import LogCutError, LogDamagedError
from headrace.log.tables import LogMovedError, TableLog, group_id, table_log

ORDERS = TableShape(from_ddl("id bigint, state string"), ("id",))
PEOPLE = TableShape(from_ddl("name string, born date"), ("name",))
SHAPES = {"orders": ORDERS, "people": PEOPLE}
AT = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def log(root: StatePath) -> TableLog:
    return TableLog(root / "shop")


def weighted(*rows: tuple[int, str, int]) -> pa.Table:
    columns = dict(zip(("id", "state", WEIGHT), zip(*rows, strict=True), strict=True))
    return pa.table({name: list(values) for name, values in columns.items()}, schema=ORDERS.weighted)


def put(log: TableLog, number: int, *rows: tuple[int, str, int]) -> int:
    return log.commit({"orders": weighted(*rows)} if rows else {}, {"lsn": number}, SHAPES, AT, ["orders"])


def held(log: TableLog, sequence: int, shape: TableShape = ORDERS) -> list[tuple[Any, ...]]:
    """The table at a sequence, from what adds up to it."""
    found: dict[tuple[Any, ...], int] = {}
    for rows in log.rows("orders", sequence, shape):
        for row in rows.to_pylist():
            weight = row.pop(WEIGHT)
            found[tuple(row.values())] = found.get(tuple(row.values()), 0) + weight
    assert set(found.values()) <= {0, 1}
    return sorted(row for row, weight in found.items() if weight)


def fold(log: TableLog, sequence: int) -> None:
    """What the engine does with Spark."""
    folder = log.staging("orders", sequence)
    out = pa.BufferOutputStream()
    pq.write_table(weighted(*((*row, 1) for row in held(log, sequence))), out)
    write_atomically(folder / "part-0.parquet", out.getvalue().to_pybytes())
    log.fold("orders", sequence, [folder / "part-0.parquet"])


def test_commits_are_read_in_order_with_all_that_they_say(log: TableLog) -> None:
    assert (log.end(), log.begin(), log.position(), log.shapes(), log.id()) == (0, 1, None, {}, None)
    assert (log.complete(), log.counts(), log.newest(), log.after(0)) == (frozenset(), {}, None, [])
    assert put(log, 10, (1, "new", 1), (2, "new", 1)) == 1
    assert put(log, 20, (1, "new", -1), (1, "paid", 1)) == 2
    assert put(log, 30) == 3
    for one in (log, TableLog(log.folder)):
        assert (one.end(), one.position(), one.shapes(), one.complete()) == (3, {"lsn": 30}, SHAPES, {"orders"})
        assert one.counts() == {"orders": 2, "people": 0}
        segments = one.after(0)
        assert [(one.sequence, one.rows, one.position["lsn"], one.at) for one in segments] == [
            (1, 2, 10, AT),
            (2, 2, 20, AT),
            (3, 0, 30, AT),
        ]
        assert [segment.sequence for segment in one.after(1, 1)] == [2]
        assert one.after(3) == []
        (part,) = segments[1].parts["orders"]
        assert one.read(part, ORDERS) == weighted((1, "new", -1), (1, "paid", 1))
        assert held(one, 1) == [(1, "new"), (2, "new")]
        assert held(one, 3) == [(1, "paid"), (2, "new")]
    assert log.id() == TableLog(log.folder).id() is not None


def test_who_has_not_seen_the_newest_commit_is_refused(log: TableLog) -> None:
    put(log, 1, (1, "new", 1))
    other = TableLog(log.folder)
    put(other, 2, (2, "new", 1))
    with pytest.raises(LogMovedError):
        log.commit({}, {"lsn": 3}, SHAPES, None, [], after=1)
    assert log.commit({}, {"lsn": 3}, SHAPES, None, [], after=2) == 3
    assert [segment.position["lsn"] for segment in log.after(0)] == [1, 2, 3]


def test_a_writer_that_slept_adds_nothing(log: TableLog, monkeypatch: pytest.MonkeyPatch) -> None:
    put(log, 1, (1, "new", 1))
    late = TableLog(log.folder)
    late.end()
    monkeypatch.setattr(late, "end", lambda: 1)
    put(log, 2, (2, "new", 1))
    with pytest.raises(LogMovedError):
        put(late, 9, (9, "late", 1))
    put(log, 3, (3, "new", 1))
    log.retain(3)
    late._seen, late._newest = 1, None
    with pytest.raises((LogMovedError, LogDamagedError)):
        put(late, 9, (9, "late", 1))
    assert (log.end(), log.begin()) == (3, 3)


def test_a_column_that_was_added_is_null_in_older_parts(log: TableLog) -> None:
    put(log, 1, (1, "new", 1))
    wider = TableShape(ORDERS.columns.append(pa.field("amount", pa.decimal128(9, 2))), ("id",))
    log.commit({}, {"lsn": 2}, {**SHAPES, "orders": wider}, None, [])
    assert log.shapes()["orders"] == wider
    assert held(log, 2, wider) == [(1, "new", None)]


def test_a_base_stands_for_all_parts_before_it(log: TableLog) -> None:
    for number in range(1, 7):
        put(log, number, (number, "new", 1))
    before = held(log, 4), held(log, 6)
    fold(log, 3)
    fold(log, 5)
    assert len(log.state("orders", 6)) == 2
    assert log.is_base(log.state("orders", 5))
    assert not log.is_base(log.state("orders", 6))
    assert (held(log, 4), held(log, 6)) == before


def test_what_is_not_needed_goes(log: TableLog) -> None:
    for number in range(1, 7):
        put(log, number, (number, "new", 1))
    before = held(log, 4), held(log, 6)
    fold(log, 4)
    assert log.retain(4) == 5
    for one in (log, TableLog(log.folder)):
        assert (held(one, 4), held(one, 6)) == before
        assert [segment.sequence for segment in one.after(4)] == [5, 6]
        with pytest.raises(LogCutError):
            one.after(3)
        with pytest.raises(LogCutError):
            one.state("orders", 3)
    assert len(list((log.folder / "parts").iterdir())) == 2
    assert log.retain(100) == 6
    assert (log.begin(), log.end(), log.position()) == (6, 6, {"lsn": 6})
    assert held(TableLog(log.folder), 6) == before[1]
    assert put(TableLog(log.folder), 7, (7, "new", 1)) == 7


def test_a_table_that_is_never_folded_keeps_its_files(log: TableLog) -> None:
    for number in range(1, 9):
        put(log, number, (number, "new", 1), (number, "old", 1), (number, "old", -1))
        if number in (3, 6):
            assert log.retain(number) == number
    assert log.retain(7) == 8
    log.retain(2)
    assert log.begin() == 8
    assert held(TableLog(log.folder), 7) == [(number, "new") for number in range(1, 8)]
    fold(log, 8)
    put(log, 9)
    assert log.retain(8) == 9
    assert held(TableLog(log.folder), 9) == [(number, "new") for number in range(1, 9)]
    assert list((log.folder / "parts").glob("*")) == []
    assert len(list((log.folder / "bases" / "orders").iterdir())) == 2


def test_a_part_that_is_not_what_was_written_is_told(log: TableLog) -> None:
    put(log, 1, (1, "new", 1))
    (part,) = log.after(0)[0].parts["orders"]
    content = log.file(part).read_bytes()
    write_atomically(log.file(part), content[:-9] + b"x" + content[-8:])
    with pytest.raises(LogDamagedError, match="checksum"):
        log.read(part, ORDERS)


def test_groups_have_folders_of_their_own(tmp_path: Path) -> None:
    assert group_id("pg://host:5432/db slot") != group_id("pg___host_5432_db_slot")
    assert "/" not in group_id("pg://host:5432/db")
    log = table_log(Context(tmp_path, str(tmp_path / "state")), "shop")
    assert log.folder.parent == tmp_path / "state" / "log" / "tables"
