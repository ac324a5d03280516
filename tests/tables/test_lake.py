"""Delta tables with a key: by their change feed, and by comparing."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.tables.applied import Applied

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.schema import from_ddl
from headrace.core.tables import TableShape
from headrace.tables.lake import LakeTable

COLUMNS = from_ddl("id bigint, name string")
TABLE = LakeTable(path="lake/orders", every="1ms")  # type: ignore[arg-type]


def rows_of(*rows: tuple[int, str | None]) -> pa.Table:
    return pa.Table.from_pylist([{"id": key, "name": name} for key, name in rows], COLUMNS)


def merge(path: str, rows: pa.Table) -> None:
    merging = DeltaTable(path).merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
    merging.when_matched_update_all().when_not_matched_insert_all().execute()


def held(path: str) -> list[dict[str, Any]]:
    return sorted(DeltaTable(path).to_pyarrow_table().to_pylist(), key=lambda row: row["id"])


def read(applied: Applied, context: Context, table: LakeTable = TABLE) -> int:
    """All that is there now; how many steps it took."""
    reader = LakeTable.reader({"orders": table}, applied.shapes, applied.position, context)
    before = len(applied.taken)
    while taken := reader.read(0.05):
        applied.take(taken)
        reader.confirm(taken.position)
    assert reader.lag() is None
    reader.close()
    return len(applied.taken) - before


@pytest.mark.parametrize("feed", ["true", "false"])
def test_a_table_is_followed_commit_by_commit(feed: str, context: Context) -> None:
    path = str(context.root / "lake" / "orders")
    configuration = {"delta.enableChangeDataFeed": feed}
    write_deltalake(path, rows_of((1, "a"), (2, "b")), configuration=configuration)
    TABLE.check(context)
    assert TABLE.shape(context) == TableShape(COLUMNS)
    applied = Applied(orders=TableShape(COLUMNS, ("id",)))
    read(applied, context)
    assert applied.table("orders") == held(path)
    assert applied.complete == {"orders"}
    chance = random.Random(5)
    for _ in range(3):
        merge(path, rows_of(*((key, chance.choice("abc")) for key in chance.sample(range(8), 3))))
        DeltaTable(path).delete(f"id = {chance.randrange(8)}")
        DeltaTable(path).update({"name": "'x'"}, predicate="id < 2")
        steps = read(applied, context)
        assert applied.table("orders") == held(path)
        assert feed == "true" or steps == 3
    DeltaTable(path).optimize.compact()
    read(applied, context)
    assert applied.table("orders") == held(path)
    assert read(applied, context) == 0
    begun = sum(len(taken.begins) for taken in applied.taken)
    assert begun == 1 if feed == "true" else begun >= 4


def test_a_key_that_moves_columns_that_come_and_a_table_made_anew(context: Context) -> None:
    path = str(context.root / "lake" / "orders")
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(path, rows_of((1, "a"), (2, "b")), configuration=feed)
    applied = Applied(orders=TableShape(COLUMNS, ("id",)))
    read(applied, context)
    DeltaTable(path).update({"id": "id + 1"})
    read(applied, context)
    assert applied.table("orders") == held(path) == [{"id": 2, "name": "a"}, {"id": 3, "name": "b"}]
    wider = rows_of((4, "d")).append_column("paid", pa.array([True]))
    write_deltalake(path, wider, mode="append", schema_mode="merge")
    read(applied, context)
    assert applied.table("orders") == held(path)
    assert applied.shapes["orders"].columns == from_ddl("id bigint, name string, paid boolean")
    other = Context(context.root / "other", context.state)
    write_deltalake(str(other.root / "lake" / "orders"), rows_of((9, "z")), configuration=feed)
    read(applied, other)
    assert applied.table("orders") == [{"id": 9, "name": "z", "paid": None}]


def test_rows_that_were_cut_off_are_read_again(context: Context) -> None:
    path = str(context.root / "lake" / "orders")
    write_deltalake(path, rows_of((1, "a")))
    applied = Applied(orders=TableShape(COLUMNS, ("id",)))
    reader = LakeTable.reader({"orders": TABLE}, applied.shapes, None, context)
    first = reader.read(1.0)
    reader.close()
    assert first is not None
    applied.take(first)
    assert applied.position == {"orders": {}}
    read(applied, context)
    assert applied.table("orders") == held(path)


def test_a_feed_that_begins_later_is_made_up_for(context: Context) -> None:
    path = str(context.root / "lake" / "orders")
    write_deltalake(path, rows_of((1, "a"), (2, "b")))
    applied = Applied(orders=TableShape(COLUMNS, ("id",)))
    read(applied, context)
    DeltaTable(path).delete("id = 1")
    DeltaTable(path).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    DeltaTable(path).update({"name": "'x'"})
    read(applied, context)
    assert applied.table("orders") == held(path)


def test_a_table_that_is_not_there_is_refused(context: Context) -> None:
    with pytest.raises(ProjectError) as missing:
        TABLE.check(context)
    assert missing.value.code == "lake-missing"
    assert TABLE.group == TABLE.label == "lake lake/orders"
