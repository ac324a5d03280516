"""Changes go in and rows come out: keys, conflicts, versions, events, indexes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.core.endpoints import Conflicts, Endpoint, Op
from headrace.core.schema import from_ddl
from headrace.store.endpoint.reader import StoreReader
from headrace.store.endpoint.resolve import EXISTS, MISSING
from headrace.store.endpoint.writer import StoreWriter
from headrace.store.lmdb.errors import StoreDamagedError
from headrace.store.rows.served_row import ServedRow

PEOPLE = Endpoint(
    "people",
    from_ddl("id bigint, name string, age int, at timestamp"),
    key=("id",),
    indexes=(("age",), ("name", "age")),
    text=("name",),
)


def changes(endpoint: Endpoint, *found: tuple[Op, dict[str, Any]] | tuple[Op, dict[str, Any], Any]) -> pa.RecordBatch:
    """A batch of changes: op, row, and the old key if that is another."""
    rows = [{"__op": int(one[0]), "__old": one[2] if len(one) > 2 else None, **one[1]} for one in found]
    return pa.RecordBatch.from_pylist(rows, endpoint.changes)


def rows(reader: StoreReader) -> list[dict[str, Any]]:
    with reader.transaction() as transaction:
        return [json.loads(row.json) for row in transaction.scan()]


def test_what_is_put_in_can_be_read(tmp_path: Path) -> None:
    writer = StoreWriter.open(tmp_path, PEOPLE)
    ada = {"id": 1, "name": "Ada Lovelace", "age": 36}
    applied = writer.apply(1, [changes(PEOPLE, (Op.INSERT, ada), (Op.UPSERT, {"id": 2, "name": None}))])
    assert (applied.changes, applied.ignored, applied.refused) == (2, 0, 0)
    reader = StoreReader.open(tmp_path)
    with reader.transaction() as transaction:
        assert (transaction.position, transaction.version, transaction.rows) == (1, 2, 2)
        assert transaction.get([1]) == ServedRow(
            1, b'{"id":1,"name":"Ada Lovelace","age":36,"at":null}', transaction.reader.keys.row_key([1])
        )
        assert transaction.get([3]) is None
        assert [json.loads(row.json)["id"] for row in transaction.scan()] == [1, 2]
        assert [json.loads(row.json)["id"] for row in transaction.scan(transaction.reader.keys.row_key([1]))] == [2]
    reader.close()
    writer.close()


def test_an_update_moves_the_entries_of_a_row(tmp_path: Path) -> None:
    writer = StoreWriter.open(tmp_path, PEOPLE)
    reader = StoreReader.open(tmp_path)
    writer.apply(1, [changes(PEOPLE, (Op.INSERT, {"id": 1, "name": "Ada Lovelace", "age": 36}))])
    writer.apply(2, [changes(PEOPLE, (Op.UPDATE, {"id": 2, "name": "Ada King", "age": 36}, {"id": 1}))])
    assert [row["id"] for row in rows(reader)] == [2]
    with reader.transaction() as transaction:
        found = {
            name: transaction.txn.stat(transaction.databases[name])["entries"] for name in (b"ix0", b"ix1", b"text")
        }
        (event,) = transaction.events(1).events
    assert found == {b"ix0": 1, b"ix1": 1, b"text": 2}
    assert (event.op, json.loads(event.old or b"")["id"], json.loads(event.new or b"")["id"]) == (Op.UPDATE, 1, 2)
    reader.close()
    writer.close()


def test_a_segment_counts_once(tmp_path: Path) -> None:
    writer = StoreWriter.open(tmp_path, PEOPLE)
    batch = changes(PEOPLE, (Op.INSERT, {"id": 1, "name": "Ada"}))
    assert writer.apply(5, iter([batch])).changes == 1
    assert writer.apply(5, [batch]).changes == 0
    writer.close()
    again = StoreWriter.open(tmp_path, PEOPLE)
    assert (again.position, again.version) == (5, 1)
    assert again.apply(4, [batch]).changes == 0
    again.close()


NOTES = Endpoint("notes", from_ddl("id int, text string"), key=("id",))
Change = tuple[str, list[Any]] | tuple[str, list[Any], list[Any]]


@pytest.mark.parametrize(
    ("policy", "steps", "expected", "version", "refused"),
    [
        ({}, [("I", [1, "old"]), ("I", [1, "new"])], [[1, "old"]], 1, None),
        ({"on_insert": "update"}, [("I", [1, "old"]), ("I", [1, "new"])], [[1, "new"]], 2, None),
        ({"on_insert": "error"}, [("I", [1, "old"]), ("I", [1, "new"])], [[1, "old"]], 1, (1, EXISTS)),
        ({}, [("U", [1, None], [1, "x"])], [], 0, None),
        ({"on_update": "upsert"}, [("U", [1, None], [1, "x"])], [[1, "x"]], 1, None),
        ({"on_update": "error"}, [("U", [1, None], [1, "x"])], [], 0, (0, MISSING)),
        ({}, [("D", [1, None])], [], 0, None),
        ({"on_delete": "error"}, [("D", [1, None])], [], 0, (0, MISSING)),
        ({}, [("I", [1, "a"]), ("I", [2, "b"]), ("U", [1, "a"], [2, "c"])], [[1, "a"], [2, "b"]], 2, None),
        (
            {"on_update": "upsert"},
            [("I", [1, "a"]), ("I", [2, "b"]), ("U", [1, "a"], [2, "c"])],
            [[1, "a"], [2, "b"]],
            2,
            (2, EXISTS),
        ),
        (
            {"on_update": "error"},
            [("I", [1, "a"]), ("I", [2, "b"]), ("U", [1, "a"], [2, "c"])],
            [[1, "a"], [2, "b"]],
            2,
            (2, EXISTS),
        ),
        # the row that is to move is not there, where it is to go is one
        ({}, [("I", [2, "b"]), ("U", [1, "a"], [2, "c"])], [[2, "b"]], 1, None),
        (
            {"on_update": "upsert"},
            [("I", [2, "b"]), ("U", [1, "a"], [2, "c"])],
            [[2, "b"]],
            1,
            (1, EXISTS),
        ),
        (
            {"on_update": "error"},
            [("I", [2, "b"]), ("U", [1, "a"], [2, "c"])],
            [[2, "b"]],
            1,
            (1, MISSING),
        ),
        ({"on_update": "upsert"}, [("U", [1, "a"], [2, "c"])], [[2, "c"]], 1, None),
        ({}, [("I", [1, "a"]), ("U", [1, "a"], [2, "c"])], [[2, "c"]], 2, None),
        ({}, [("I", [1, "a"]), ("D", [1, None]), ("I", [1, "b"])], [[1, "b"]], 3, None),
        # set to what it is: no change
        ({}, [("I", [1, "a"]), ("U", [1, "a"], [1, "a"])], [[1, "a"]], 1, None),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_conflicts(
    tmp_path: Path,
    policy: dict[str, Any],
    steps: Sequence[Change],
    expected: list[list[Any]],
    version: int,
    refused: tuple[int, str] | None,
    together: bool,
) -> None:
    endpoint = Endpoint(NOTES.name, NOTES.columns, key=NOTES.key, conflicts=Conflicts(**policy))
    batches = [changes(endpoint, _change(step)) for step in steps]
    writer = StoreWriter.open(tmp_path, endpoint)
    told: list[tuple[int, str]] = []
    if together:
        told = [(one.index, one.reason) for one in writer.apply(1, batches).refusals]
    else:
        for at, batch in enumerate(batches):
            told += [(at, one.reason) for one in writer.apply(at + 1, [batch]).refusals]
    reader = StoreReader.open(tmp_path)
    assert [list(row.values()) for row in rows(reader)] == expected
    assert writer.version == version
    assert told == ([refused] if refused else [])
    with reader.transaction() as transaction:
        assert (transaction.rows, transaction.refused) == (len(expected), len(told))
    reader.close()
    writer.close()


def _change(step: Change) -> Any:
    match step:
        case ("U", old, new):
            return (Op.UPDATE, dict(zip(("id", "text"), new, strict=True)), {"id": old[0]})
        case ("I", new):
            return (Op.INSERT, dict(zip(("id", "text"), new, strict=True)))
        case (_, old):
            return (Op.DELETE, {"id": old[0]})


def test_rows_without_key_are_added(tmp_path: Path) -> None:
    endpoint = Endpoint("lines", from_ddl("text string"), indexes=(("text",),))
    writer = StoreWriter.open(tmp_path, endpoint)
    batch = pa.RecordBatch.from_pylist([{"__op": 1, "text": "a"}, {"__op": 0, "text": "a"}], endpoint.changes)
    assert writer.apply(1, [batch, batch]).changes == 4
    reader = StoreReader.open(tmp_path)
    assert rows(reader) == [{"text": "a"}] * 4
    reader.close()
    writer.close()


def test_of_events_the_last_are_kept(tmp_path: Path) -> None:
    writer = StoreWriter.open(tmp_path, NOTES, events=3)
    reader = StoreReader.open(tmp_path)
    with reader.transaction() as transaction:
        assert transaction.events(0).first_kept == 1
    for position in (1, 2):
        batch = changes(NOTES, *((Op.UPSERT, {"id": 1, "text": f"{position}{at}"}) for at in range(5)))
        writer.apply(position, [batch])
    with reader.transaction() as transaction:
        found = transaction.events(0)
        assert (found.first_kept, [event.version for event in found.events]) == (8, [8, 9, 10])
        assert [event.version for event in transaction.events(8, limit=1).events] == [9]
        assert transaction.events(10).events == []
    reader.close()
    writer.close()


def test_what_cannot_be_served_is_refused_and_stops_nothing(tmp_path: Path) -> None:
    writer = StoreWriter.open(tmp_path, PEOPLE)
    batch = changes(PEOPLE, *((Op.UPSERT, {"id": number, "name": "Ada"}) for number in range(3)))
    far = pa.array([0, 2**62, None], pa.int64()).cast(PEOPLE.columns.field("at").type)
    odd = pa.array([b"a\xff", b"b", b"c"]).view(pa.string())
    batch = batch.set_column(5, PEOPLE.columns.field("at"), far).set_column(3, PEOPLE.columns.field("name"), odd)
    (refused,) = writer.apply(1, [batch]).refusals
    assert (refused.index, refused.reason) == (1, "'at' is outside the years 1 to 9999")
    reader = StoreReader.open(tmp_path)
    assert [row["name"] for row in rows(reader)] == ["a\ufffd", "c"]
    writer.verify()
    reader.close()
    writer.close()


@pytest.mark.service
def test_a_map_that_is_full_grows(tmp_path: Path) -> None:
    writer = StoreWriter.open(tmp_path, NOTES, size=1 << 18)
    code = (
        "import sys; from pathlib import Path; from headrace.store.lmdb.environment import acquire;"
        "from headrace.store.endpoint.reader import StoreReader;"
        "reader = StoreReader(acquire(Path(sys.argv[1]), size=1 << 18));\n"
        "for _ in sys.stdin:\n"
        "    with reader.transaction() as view: print(len(list(view.scan())), flush=True)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        for position in range(1, 3):
            texts = [{"id": number, "text": f"{position} " * 200} for number in range(1000 * position)]
            # read again when the map grew: from a function, and from what can only be read once
            batch = changes(NOTES, *((Op.UPSERT, row) for row in texts))
            writer.apply(position, (lambda batch=batch: iter([batch])) if position == 1 else iter([batch]))
            other.stdin.write("\n")
            other.stdin.flush()
            assert other.stdout.readline() == f"{1000 * position}\n"
        other.stdin.close()
    writer.verify()
    writer.close()
    assert (tmp_path / "data.mdb").stat().st_size > 1 << 18


def test_a_view_is_of_one_moment(tmp_path: Path) -> None:
    writer = StoreWriter.open(tmp_path, NOTES)
    writer.apply(1, [changes(NOTES, (Op.INSERT, {"id": 1, "text": "a"}))])
    reader = StoreReader.open(tmp_path)
    with reader.transaction() as transaction:
        writer.apply(2, [changes(NOTES, (Op.DELETE, {"id": 1}), (Op.INSERT, {"id": 2, "text": "b"}))])
        assert (transaction.position, transaction.rows) == (1, 1)
        assert transaction.get([1]) is not None
        assert transaction.get([2]) is None
    found = reader.get([2])
    assert found is not None
    assert json.loads(found.json) == {"id": 2, "text": "b"}
    assert reader.get([1]) is None
    reader.close()
    writer.close()


def test_another_definition_is_not_written_into_a_store(tmp_path: Path) -> None:
    StoreWriter.open(tmp_path, NOTES).close()
    with pytest.raises(StoreDamagedError, match="another definition of 'notes'"):
        StoreWriter.open(tmp_path, Endpoint("notes", from_ddl("id int, text string, more int"), key=("id",)))
    # policies may change within a version
    StoreWriter.open(tmp_path, Endpoint("notes", NOTES.columns, key=("id",), conflicts=Conflicts("update"))).close()
    reader = StoreReader.open(tmp_path)
    assert reader.endpoint.conflicts.on_insert == "update"
    reader.close()


def test_what_was_refused_is_kept(tmp_path: Path) -> None:
    endpoint = Endpoint("notes", NOTES.columns, key=("id",), conflicts=Conflicts(on_insert="error"))
    writer = StoreWriter.open(tmp_path, endpoint)
    writer.apply(1, [changes(endpoint, (Op.INSERT, {"id": 1, "text": "a"}), (Op.INSERT, {"id": 1, "text": "b"}))])
    reader = StoreReader.open(tmp_path)
    with reader.transaction() as transaction:
        (kept,) = transaction.refusals()
    row = {"id": 1, "text": "b"}
    assert kept == {"position": 1, "change": 1, "op": "insert", "reason": EXISTS, "row": row}
    reader.close()
    writer.close()
