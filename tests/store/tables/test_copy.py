"""The copy of a table makes changes whole: what was there goes, what is there comes, each once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.core.errors import ProjectError
from headrace.core.schema import from_ddl
from headrace.core.tables import UNCHANGED, WEIGHT, CapturedBatch, RowChange, TableShape
from headrace.store.lmdb.errors import StoreDamagedError
from headrace.store.tables.copy import TableCopy

ITEMS = TableShape(from_ddl("id bigint, name string, price decimal(9,2)"), ("id",))
SHAPES = {"items": ITEMS}


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[TableCopy]:
    made = TableCopy.open(tmp_path / "copy")
    yield made
    made.close()


def take(copy: TableCopy, *changes: RowChange, shapes: dict[str, TableShape] = SHAPES, **more: Any) -> list[Any]:
    """What comes of changes, as (weight, row)."""
    found = copy.take(CapturedBatch({}, changes, **more), shapes)
    copy.commit("log", copy.sequence + 1)
    return [(row.pop(WEIGHT), tuple(row.values())) for table in sorted(found) for row in found[table].to_pylist()]


def put(*row: Any, before: tuple[Any, ...] | None = None, table: str = "items") -> RowChange:
    return RowChange(table, row, before)


def gone(*key: Any) -> RowChange:
    return RowChange("items", None, key)


CUP, MUG = (1, "cup", Decimal("2.50")), (2, "mug", None)


def test_a_row_comes_changes_and_goes(copy: TableCopy) -> None:
    assert take(copy, put(*CUP), put(*MUG)) == [(1, CUP), (1, MUG)]
    assert take(copy, put(*CUP)) == []
    assert take(copy, put(1, "Cup", Decimal("2.5"))) == [(-1, CUP), (1, (1, "Cup", Decimal("2.50")))]
    assert take(copy, gone(2), gone(3)) == [(-1, MUG)]
    assert copy.counts() == {"items": 1}
    assert take(copy, put(2, "cup", None, before=(1,))) == [(-1, (1, "Cup", Decimal("2.50"))), (1, (2, "cup", None))]
    assert [batch.to_pylist() for batch in copy.rows("items", ITEMS)] == [[{"id": 2, "name": "cup", "price": None}]]


def test_changes_of_one_key_come_to_their_net_effect(copy: TableCopy) -> None:
    assert take(copy, put(*CUP), put(1, "jug", None), gone(1)) == []
    assert take(copy, put(1, "jug", None), put(*CUP)) == [(1, CUP)]
    assert take(copy, gone(1), put(*CUP)) == []
    assert take(copy, put(2, "cup", None, before=(1,)), put(*CUP, before=(2,))) == []
    assert take(copy, put(5, "a", None, before=(1,)), put(1, "b", None), put(5, "c", None)) == [
        (-1, CUP),
        (1, (1, "b", None)),
        (1, (5, "c", None)),
    ]


def test_values_that_were_not_sent_are_what_they_were(copy: TableCopy) -> None:
    take(copy, put(*CUP))
    bulk = {"items": pa.table({"id": [7], "name": ["pot"], "price": [Decimal("9.00")]}, schema=ITEMS.columns)}
    found = take(
        copy,
        put(1, UNCHANGED, Decimal("3.00")),
        put(1, "tea cup", UNCHANGED),
        put(7, UNCHANGED, None),
        put(8, UNCHANGED, UNCHANGED, before=(7,)),
        rows=bulk,
    )
    assert found == [(-1, CUP), (1, (1, "tea cup", Decimal("3.00"))), (1, (8, "pot", None))]
    with pytest.raises(ProjectError) as error:
        take(copy, put(99, UNCHANGED, None))
    assert error.value.code == "table-row-unknown"
    with pytest.raises(ProjectError):
        take(copy, gone(1), put(1, UNCHANGED, None))
    assert take(copy, gone(8)) == [(-1, (8, "pot", None))]  # nothing of what failed was kept


def test_rows_that_a_new_snapshot_does_not_have_go_when_it_ends(copy: TableCopy) -> None:
    rows = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"], "price": [None] * 3}, schema=ITEMS.columns)
    begun = frozenset({"items"})
    assert take(copy, begins=begun, rows={"items": rows}) == [
        (1, (n, c, None)) for n, c in ((1, "a"), (2, "b"), (3, "c"))
    ]
    assert take(copy, ends=begun) == []
    assert take(copy, begins=begun, rows={"items": rows.slice(0, 1)}) == []
    assert take(copy, put(4, "d", None)) == [(1, (4, "d", None))]
    assert take(copy, begins=begun, rows={"items": rows.slice(1, 1)}) == []  # it began again
    assert take(copy, put(4, "D", None), ends=begun) == [
        (-1, (4, "d", None)),
        (1, (4, "D", None)),
        (-1, (1, "a", None)),
        (-1, (3, "c", None)),
    ]
    assert copy.counts() == {"items": 2}
    with pytest.raises(ValueError, match="did not begin"):
        copy.take(CapturedBatch({}, ends=begun), SHAPES)


def test_a_column_that_is_added_is_null_in_rows_that_are_there(copy: TableCopy) -> None:
    take(copy, put(*CUP))
    wider = {"items": TableShape(ITEMS.columns.append(pa.field("tags", pa.list_(pa.string()))), ("id",))}
    assert take(copy, put(1, "cup", UNCHANGED, ["x"]), shapes=wider) == [
        (-1, (*CUP, None)),
        (1, (*CUP, ["x"])),
    ]


def test_every_type_is_kept_exactly(copy: TableCopy) -> None:
    shape = TableShape(
        from_ddl(
            "a tinyint, b double, c decimal(38,10), d binary, e date, f timestamp, g timestamp_ntz, h boolean, i float,"
            " j array<struct<x: decimal(9,3), y: timestamp>>, k map<string, date>, l array<timestamp_ntz>, m string"
        ),
        ("c", "f", "m"),
    )
    there = datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    old = (-5, float("inf"), Decimal("-1E-10"), b"\x00\xff", date(1900, 1, 1), there, datetime(1969, 1, 1, 0, 0, 0, 1),
           True, 0.5, [{"x": Decimal("1.500"), "y": there}, None], [("k", date(2000, 2, 29)), ("z", None)],
           [datetime(2026, 1, 1, 2, 3, 4, 5)], "long" * 200)  # fmt: skip
    new = (5, -0.0, *old[2:])
    shapes = {"all": shape}
    (first,) = take(copy, put(*old, table="all"), shapes=shapes)
    found = take(copy, put(*new, table="all"), shapes=shapes)
    assert found[0] == (-1, first[1])
    assert found[0][1][9][0]["x"] == Decimal("1.500")
    assert found[0][1][5] == there.astimezone(UTC)
    assert found[0][1][:5] + found[0][1][6:] == old[:5] + old[6:]
    nulls = (*[None] * 2, *old[2:3], *[None] * 2, old[5], *[None] * 6, old[12])
    assert [weight for weight, _row in take(copy, put(*nulls, table="all"), shapes=shapes)] == [-1, 1]
    assert take(copy, put(*nulls, table="all"), shapes=shapes) == []


def test_a_value_that_a_column_cannot_hold_is_told(copy: TableCopy) -> None:
    for row in ((1, 5, None), (1, "a", Decimal("1.005")), ("x", "a", None)):
        with pytest.raises(ProjectError) as error:
            take(copy, put(*row))
        assert error.value.code == "table-value"
    assert take(copy, put(*CUP)) == [(1, CUP)]


def test_what_was_not_committed_is_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    copy = TableCopy.open(folder)
    take(copy, put(*CUP))
    copy.take(CapturedBatch({}, [put(*MUG)]), SHAPES)
    copy.close()
    again = TableCopy.open(folder)
    assert (again.log, again.sequence, again.counts()) == ("log", 1, {"items": 1})
    assert take(again, put(*MUG)) == [(1, MUG)]
    again.close()


def test_the_map_grows_when_it_is_full(tmp_path: Path) -> None:
    copy = TableCopy.open(tmp_path / "copy", size=1 << 17)
    for start in range(0, 4000, 1000):
        changes = [put(number, "x" * 100, None) for number in range(start, start + 1000)]
        assert len(take(copy, *changes)) == 1000
    assert copy.counts() == {"items": 4000}
    copy.close()


def test_a_row_that_is_not_what_was_written_is_told(copy: TableCopy) -> None:
    take(copy, put(*CUP))
    with copy._environment.lmdb.begin(write=True) as txn:
        cursor = txn.cursor(copy._rows)
        cursor.first()
        txn.put(cursor.key(), cursor.value()[:-1] + b"?", db=copy._rows)
    with pytest.raises(StoreDamagedError):
        take(copy, put(1, "x", None))
