"""Files of a folder that bring rows of a table."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from tests.tables.applied import Applied

import headrace.tables.files.reader as files_reader
from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.schema import from_ddl
from headrace.core.tables import TableShape
from headrace.tables.files import FilesTable

COLUMNS = from_ddl("id bigint, name string")
SHAPE = TableShape(COLUMNS, ("id",))
MOMENTS = count(1_700_000_000)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "in").mkdir()
    return Context(tmp_path, str(tmp_path / "state"))


def files(**options: Any) -> FilesTable:
    return FilesTable(**{"path": "in", "every": "1ms", **options})


def put(context: Context, name: str, content: Any) -> None:
    """A file that is newer than all before it."""
    path = context.root / "in" / name
    if isinstance(content, str):
        path.write_text(content)
    else:
        pq.write_table(pa.Table.from_pylist(content), path)
    moment = next(MOMENTS)
    os.utime(path, (moment, moment))


def read(applied: Applied, context: Context, table: FilesTable) -> int:
    """All that is there now; how many steps it took."""
    reader = FilesTable.reader({"orders": table}, applied.shapes, applied.position, context)
    before = len(applied.taken)
    while taken := reader.read(0.02):
        applied.take(taken)
        reader.confirm(taken.position)
    reader.close()
    return len(applied.taken) - before


def names(applied: Applied) -> dict[int, Any]:
    return {row["id"]: row["name"] for row in applied.table("orders")}


def test_files_are_read_once_in_their_order(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_reader, "_PAGE", 2)
    table = files()
    put(context, "b.parquet", [{"id": n, "name": "a"} for n in range(5)])
    put(context, "a.parquet", [{"id": 1, "name": "b"}])
    put(context, "_half.parquet", "not yet")
    put(context, "readme.txt", "no rows")
    assert table.shape(context) == TableShape(COLUMNS)
    applied = Applied(orders=SHAPE)
    assert read(applied, context, table) == 6
    assert names(applied) == {0: "a", 1: "b", 2: "a", 3: "a", 4: "a"}
    assert applied.complete == {"orders"}
    assert read(applied, context, table) == 0
    put(context, "a.parquet", [{"id": 1, "name": "c"}, {"id": 7, "name": "d"}])
    (context.root / "in" / "b.parquet").unlink()
    assert read(applied, context, table) == 1
    assert names(applied) == {0: "a", 1: "c", 2: "a", 3: "a", 4: "a", 7: "d"}
    assert list((applied.position or {})["orders"]["seen"]) == ["a.parquet"]
    put(context, "c.parquet", [{"id": 8, "name": "e", "paid": True}])
    read(applied, context, table)
    assert applied.table("orders")[-1] == {"id": 8, "name": "e", "paid": True}


@pytest.mark.parametrize(
    ("format", "first", "second"),
    [
        ("csv", 'id,name,op\n1,a,I\n2,"b, c",I\n', "op,id,name\nD,1,\nU,2,\nI,3,x\n"),
        (
            "json",
            '{"id": 1, "name": "a", "op": "I"}\n{"id": 2, "name": "b, c", "more": 1}\n',
            '{"id": 1, "op": "D"}\n{"id": 2, "op": "U"}\n{"id": 3, "name": "x", "op": "I"}\n',
        ),
    ],
)
def test_rows_may_say_what_they_are(format: str, first: str, second: str, context: Context) -> None:
    table = files(format=format, columns="id bigint, name string", op="op")
    applied = Applied(orders=SHAPE)
    put(context, f"1.{format}", first)
    read(applied, context, table)
    assert names(applied) == {1: "a", 2: "b, c"}
    put(context, f"2.{format}", second)
    read(applied, context, table)
    assert names(applied) == {2: None, 3: "x"}


def test_a_first_reading_that_was_cut_off_begins_again(context: Context) -> None:
    put(context, "a.parquet", [{"id": 1, "name": "a"}])
    applied = Applied(orders=SHAPE)
    reader = FilesTable.reader({"orders": files()}, applied.shapes, None, context)
    for _ in range(2):
        taken = reader.read(1.0)
        assert taken is not None
        applied.take(taken)
    (context.root / "in" / "a.parquet").unlink()
    read(applied, context, files())
    assert names(applied) == {}, "what was not there at the end of the first reading is not part of it"


def test_what_is_wrong_has_a_code(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[FilesTable, str, str]] = [
        (files(columns="id bigint"), "damaged.parquet", "PAR1 but no more"),
        (files(format="csv", columns="id bigint, name string"), "bad.csv", "id,name\nx,a\n"),
        (files(format="json", columns="id bigint"), "bad.json", '{"id": "x"}\n'),
        (files(format="csv", columns="id bigint", op="op"), "none.csv", "id\n1\n"),
        (files(format="csv", columns="id bigint, name string", op="op"), "odd.csv", "id,name,op\n1,a,X\n"),
    ]
    for table, name, content in cases:
        put(context, name, content)
        shape = TableShape(from_ddl(str(table.columns)), ("id",))
        with pytest.raises(ProjectError) as refused:
            read(Applied(orders=shape), context, table)
        assert refused.value.code == "files-not-understood"
        assert name in refused.value.message
        (context.root / "in" / name).unlink()
    for table, code in ((files(path="inn"), "no-files"), (files(), "table-columns-unknown")):
        with pytest.raises(ProjectError) as refused:
            table.check(context)
        assert refused.value.code == code
    monkeypatch.setattr(files_reader, "_MOST_FILES", 0)
    put(context, "a.parquet", [{"id": 1, "name": "a"}])
    with pytest.raises(ProjectError) as refused:
        read(Applied(orders=SHAPE), context, files())
    assert refused.value.code == "too-many-files"


def test_options_that_do_not_fit_are_refused() -> None:
    for bad, reason in (
        ({"format": "csv"}, "needs `columns`"),
        ({"path": "s3://bucket/in"}, "must be a local folder"),
        ({"columns": "id numbers"}, "not a list of columns"),
    ):
        with pytest.raises(ValidationError, match=reason):
            files(**bad)
    assert files().group == files().label == "files in"
