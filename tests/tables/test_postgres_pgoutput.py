"""Messages as the server sends them, put together by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from struct import pack
from typing import Any

import pyarrow as pa
import pytest

from headrace.core.errors import ProjectError
from headrace.core.tables import UNCHANGED, RowChange, TableShape
from headrace.tables.postgres.pgoutput import Followed, Transactions
from headrace.tables.postgres.types import TEXT, PostgresTypes, TypeRow

TYPES = PostgresTypes(lambda numbers: {23: TypeRow("int4", True, 0, -1, 0)})
SHAPE = TableShape(pa.schema([("id", pa.int32()), ("v", pa.string())]), ("id",))


def transactions(skip: tuple[int, int] | None = None) -> Transactions:
    followed = {7: Followed("t", SHAPE)}
    typed = lambda name, number, sent: [TYPES.of(23, -1) if c.type == 23 else TEXT for c in sent]  # noqa: E731
    return Transactions(followed, typed, skip)


def begin(final: int) -> bytes:
    return b"B" + pack(">QqI", final, 1_000_000, 1)


def commit(final: int) -> bytes:
    return b"C" + pack(">BQQq", 0, final, final + 8, 0)


def relation(*columns: tuple[str, int], number: int = 7) -> bytes:
    told = b"".join(b"\1" + name.encode() + b"\0" + pack(">Ii", kind, -1) for name, kind in columns)
    return b"R" + pack(">I", number) + b"public\0t\0d" + pack(">H", len(columns)) + told


def values(*texts: Any) -> bytes:
    made = pack(">H", len(texts))
    for text in texts:
        if text is UNCHANGED:
            made += b"u"
        else:
            made += b"n" if text is None else b"t" + pack(">I", len(text.encode())) + text.encode()
    return made


def insert(*texts: Any, number: int = 7) -> bytes:
    return b"I" + pack(">I", number) + b"N" + values(*texts)


def update(new: tuple[Any, ...], old: tuple[Any, ...] | None = None, kind: bytes = b"K") -> bytes:
    before = b"" if old is None else kind + values(*old)
    return b"U" + pack(">I", 7) + before + b"N" + values(*new)


def delete(*texts: Any) -> bytes:
    return b"D" + pack(">I", 7) + b"K" + values(*texts)


TRUNCATE = b"T" + pack(">IB", 1, 0) + pack(">I", 7)
COLUMNS = relation(("id", 23), ("v", 25))


def feed(told: Transactions, *messages: bytes) -> Transactions:
    for message in messages:
        told.feed(message)
    return told


def test_changes_come_when_their_transaction_ends() -> None:
    told = feed(transactions(), begin(100), COLUMNS, insert("1", "a"), update(("1", UNCHANGED)), b"Y" + b"\0" * 8)
    assert not told.whole
    assert told.final == 100
    feed(told, update(("2", "b"), ("1", None)), delete("2", None), insert("5", None, number=8), commit(100))
    portion = told.take()
    assert portion.changes == [
        RowChange("t", [1, "a"]),
        RowChange("t", [1, UNCHANGED]),
        RowChange("t", [2, "b"], (1,)),
        RowChange("t", None, (2,)),
    ]
    assert portion.at == datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert (told.reached, told.final) == (108, None)
    assert not told.take()


def test_a_full_row_as_it_was_tells_a_changed_key_only_if_it_changed() -> None:
    told = feed(transactions(), begin(100), COLUMNS, update(("1", "b"), ("1", "a"), b"O"))
    feed(told, update((UNCHANGED, "c"), ("1", "b"), b"O"), commit(100))
    assert told.take().changes == [RowChange("t", [1, "b"]), RowChange("t", [1, "c"])]


def test_what_was_before_a_table_was_emptied_is_gone() -> None:
    told = feed(transactions(), begin(100), COLUMNS, insert("1", "a"), commit(100))
    feed(told, begin(200), insert("2", "b"), TRUNCATE, insert("3", "c"))
    assert told.whole.changes == [RowChange("t", [1, "a"])]
    feed(told, commit(200))
    portion = told.take()
    assert portion.changes == [RowChange("t", [3, "c"])]
    assert portion.emptied == {"t"}


def test_rows_from_before_a_column_was_added_have_none_there() -> None:
    told = feed(transactions(), begin(100), COLUMNS, insert("1", "a"), commit(100), begin(200), insert("2", "b"))
    feed(told, relation(("id", 23), ("more", 23), ("v", 25)), insert("3", "33", "c"))
    assert told.whole.changes[0].row == [1, "a"]
    feed(told, commit(200))
    portion = told.take()
    assert [change.row for change in portion.changes] == [[1, "a", None], [2, "b", None], [3, "c", 33]]
    assert portion.shapes["t"].columns.names == ["id", "v", "more"]
    feed(told, begin(300), relation(("id", 23), ("v", 25)), insert("4", "d"), commit(300))
    portion = told.take()
    assert [change.row for change in portion.changes] == [[4, "d", None]]
    assert portion.shapes == {}


def test_the_rest_of_a_transaction_begins_where_its_first_part_ended() -> None:
    messages = [begin(100), COLUMNS, *(insert(str(n), "x") for n in range(5)), commit(100)]
    told = feed(transactions(), *messages[:5])
    first = told.take_open()
    assert [change.row for change in first.changes] == [[0, "x"], [1, "x"], [2, "x"]]
    rest = feed(transactions(skip=(100, told.count)), *messages, begin(200), insert("9", "y"), commit(200)).take()
    assert [change.row for change in rest.changes] == [[3, "x"], [4, "x"], [9, "y"]]


def test_what_cannot_be_followed_is_refused() -> None:
    def code(*messages: bytes) -> str:
        with pytest.raises(ProjectError) as caught:
            feed(transactions(), begin(100), *messages)
        return f"{caught.value.code}: {caught.value.message}"

    assert code(relation(("id", 25), ("v", 25))).startswith("table-type-changed: column 'id' of table 't' was int32")
    assert code(relation(("v", 25))).startswith("table-identity")
    assert code(COLUMNS.replace(b"\1id", b"\0id")).startswith("table-identity")
    assert code(COLUMNS, insert("one", "v")).startswith("table-value: table 't', row (…), column 'id': one")
