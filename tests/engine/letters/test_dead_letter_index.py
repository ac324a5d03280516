"""The book of dead letters: written Parquet files in, counts, lists and histories out."""

from __future__ import annotations

import json
import resource
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.core.errors import Exit, ProjectError
from headrace.engine.letters.dead_letter_audit import AuditLog
from headrace.engine.letters.dead_letter_index import DeadLetterFilter, DeadLetterIndex, count, late_row_store
from headrace.engine.letters.dead_letters import SCHEMA, DeadLetterWriter, forget_batch, read_dead_letters
from headrace.engine.letters.late_rows import SCHEMA as LATE
from headrace.engine.state.locks import changing

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def letter(number: int, flow: str = "orders", **more: Any) -> dict[str, Any]:
    made = {
        "id": f"{number:024x}",
        "flow": flow,
        "stream": "shop",
        "generation": "g1-a",
        "reason": "malformed",
        "detail": f"no {number}",
        "position": json.dumps({"topic": "t", "partition": 0, "offset": number}),
        "value": f"record {number}".encode(),
        "met_at": NOON + timedelta(minutes=number),
        "metadata": None,
        "batch": 0,
    }
    return {**made, **more}


def write(folder: Path, name: str, letters: list[dict[str, Any]]) -> None:
    place = folder / letters[0]["flow"] / letters[0]["stream"]
    place.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(letters, schema=SCHEMA), place / f"{name}.parquet")


@pytest.fixture
def book(tmp_path: Path) -> DeadLetterIndex:
    """Eight letters of two flows, two of them met twice."""
    write(tmp_path, "b", [letter(1), letter(2, reason="no-event-time")])
    write(tmp_path, "a", [letter(3), letter(4), letter(5, stream="shop")])
    write(tmp_path, "c", [letter(2, reason="no-event-time"), letter(1)])
    write(tmp_path, "a", [letter(3, "rides"), letter(6, "rides"), letter(7, "rides", met_at=NOON + timedelta(days=2))])
    write(tmp_path, "d", [letter(3), letter(4), letter(5)])
    return DeadLetterIndex(tmp_path)


def ids(index: pa.Table) -> list[int]:
    return sorted(int(text, 16) for text in index["id"].to_pylist())


def test_an_empty_folder_has_no_letters(tmp_path: Path) -> None:
    shelf = DeadLetterIndex(tmp_path / "nowhere").read()
    assert shelf.index.num_rows == 0
    assert shelf.newest(shelf.index, 10) == []
    assert count(shelf.index, "reason") == []
    assert count(shelf.index, "day") == []


def test_every_letter_is_there_once_per_flow(book: DeadLetterIndex) -> None:
    assert ids(book.read("orders").index) == [1, 2, 3, 4, 5]
    assert ids(book.read().index) == [1, 2, 3, 3, 4, 5, 6, 7]


def test_counts(book: DeadLetterIndex) -> None:
    index = book.read().index

    def counts(by: Any) -> dict[str, int]:
        return {group[by]: group["count"] for group in count(index, by)}

    assert counts("reason") == {"malformed": 7, "no-event-time": 1}
    assert counts("flow") == {"orders": 5, "rides": 3}
    assert list(counts("day").items()) == [("2026-02-02", 1), ("2026-01-31", 7)]
    assert count(index, "reason")[0]["newest"] == NOON + timedelta(days=2)


def test_the_newest_come_first_with_all_but_their_bytes(book: DeadLetterIndex) -> None:
    shelf = book.read()
    rows = shelf.newest(shelf.index, 3)
    assert [(row["flow"], int(row["id"], 16)) for row in rows] == [("rides", 7), ("rides", 6), ("orders", 5)]
    assert [row["detail"] for row in rows] == ["no 7", "no 6", "no 5"]
    assert all(row["status"] == "open" and "value" not in row for row in rows)
    assert len(shelf.newest(shelf.index, None)) == 8


def test_fetching_gives_the_right_records_from_several_files(book: DeadLetterIndex) -> None:
    shelf = book.read()
    chosen = DeadLetterFilter(flow="orders").of(shelf.index).slice(1, 3)
    fetched = pa.concat_tables(shelf.fetch(chosen))
    assert fetched["id"].to_pylist() == chosen["id"].to_pylist()
    assert fetched["value"].to_pylist() == [f"record {int(text, 16)}".encode() for text in chosen["id"].to_pylist()]


def test_choosing(book: DeadLetterIndex) -> None:
    index = book.read().index
    assert ids(DeadLetterFilter(reason="no-event-time").of(index)) == [2]
    assert ids(DeadLetterFilter(flow="rides", since=NOON + timedelta(minutes=6)).of(index)) == [6, 7]
    assert ids(DeadLetterFilter(stream="elsewhere").of(index)) == []


def test_a_letter_is_found_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    box = DeadLetterWriter(tmp_path, "orders", "shop", "g1-a")
    for number in range(30):
        box.add("malformed", "", {"offset": number}, b"x")
    box.flush()
    book = DeadLetterIndex(tmp_path)
    shelf = book.read()
    wanted = shelf.index["id"][17].as_py()
    assert book.find(shelf, [wanted[:12], f"orders/{wanted}"])["id"].to_pylist() == [wanted], "named twice, there once"
    with pytest.raises(ProjectError) as unknown:
        book.find(shelf, ["zz"])
    assert (unknown.value.code, unknown.value.exit_code) == ("unknown-letter", Exit.NOT_FOUND)
    with pytest.raises(ProjectError) as several:
        book.find(shelf, [max("0123456789abcdef", key=[text[0] for text in shelf.index["id"].to_pylist()].count)])
    assert several.value.code == "ambiguous-letter"


def test_two_flows_that_met_one_record_have_two_letters(book: DeadLetterIndex) -> None:
    shelf = book.read()
    with pytest.raises(ProjectError) as several:
        book.find(shelf, [f"{3:024x}"])
    assert (several.value.code, several.value.exit_code) == ("ambiguous-letter", Exit.USAGE)
    assert f"orders/{3:024x}, rides/{3:024x}" in str(several.value.hint)
    book.history.append("discarded", book.find(shelf, [f"rides/{3:024x}"]))
    assert ids(DeadLetterFilter().of(book.read("orders").index)) == [1, 2, 3, 4, 5]
    assert ids(DeadLetterFilter().of(book.read("rides").index)) == [6, 7]


def test_a_letter_is_open_until_it_is_replayed_or_discarded(book: DeadLetterIndex) -> None:
    shelf = book.read("orders")
    one = book.find(shelf, [f"{1:024x}"])
    book.history.append("replay-begun", one, replay="r1")
    assert DeadLetterFilter().of(book.read("orders").index).num_rows == 5
    bad = one.set_column(one.schema.get_field_index("reason"), "reason", pa.array(["wrong-type"]))
    book.history.append("still-bad", bad.append_column("detail", pa.array(["x" * 1000])), replay="r1")
    assert DeadLetterFilter().of(book.read("orders").index).num_rows == 5
    book.history.append("discarded", one)
    assert ids(DeadLetterFilter(status="discarded").of(book.read("orders").index)) == [1]
    book.history.append("replayed", one, replay="r2")
    assert ids(DeadLetterFilter(status="replayed").of(book.read("orders").index)) == [1]
    events = book.history.of("orders", f"{1:024x}")
    assert [event["what"] for event in events] == ["replay-begun", "still-bad", "discarded", "replayed"]
    assert (events[1]["reason"], events[1]["replay"], len(events[1]["detail"])) == ("wrong-type", "r1", 300)
    assert all(event["by"] and event["at"] for event in events)
    assert book.history.of("rides", f"{1:024x}") == []


def test_a_record_that_a_later_generation_met_again_is_open_again(book: DeadLetterIndex) -> None:
    book.history.append("replayed", book.read().index)
    assert DeadLetterFilter().of(book.read().index).num_rows == 0
    write(book.folder, "g2", [letter(1, generation="g2-b", met_at=NOON + timedelta(days=9))])
    assert ids(DeadLetterFilter().of(book.read().index)) == [1]


def test_what_a_batch_put_aside_is_forgotten_when_it_runs_again(tmp_path: Path) -> None:
    for name in ("g1-a-0000000004-x", "g1-a-0000000005-x", "g1-a-0000000005-y", "g2-b-0000000005-x"):
        write(tmp_path, name, [letter(1)])
    write(tmp_path, "g1-a-0000000005-x", [letter(1, "rides")])
    write(tmp_path, "merged-1", [letter(1, batch=4), letter(2, batch=5), letter(3, batch=None)])
    forget_batch(tmp_path, "orders", "g1-a", 5)
    left = sorted(file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*.parquet"))
    assert left == [
        "orders/shop/g1-a-0000000004-x.parquet",
        "orders/shop/g2-b-0000000005-x.parquet",
        "orders/shop/merged-1.parquet",
        "rides/shop/g1-a-0000000005-x.parquet",
    ]
    assert pq.read_table(tmp_path / "orders/shop/merged-1.parquet")["batch"].to_pylist() == [4, None]


def test_files_are_not_merged_while_letters_are_read(book: DeadLetterIndex) -> None:
    with book.locked(), changing(book.folder / "orders") as alone:
        assert not alone
    with changing(book.folder / "orders") as alone:
        assert alone


def test_a_file_that_is_not_finished_is_not_read(book: DeadLetterIndex) -> None:
    (book.folder / "orders" / "shop" / ".merged-2.parquet").write_bytes(b"half")
    assert ids(book.read("orders").index) == [1, 2, 3, 4, 5]
    assert read_dead_letters(book.folder, "orders").num_rows == 5


def test_half_a_line_of_history_is_forgotten_and_written_over(book: DeadLetterIndex) -> None:
    index = book.read("rides").index
    book.history.append("discarded", index.slice(0, 1))
    with book.history.file.open("ab") as file:
        file.write(b'{"at": "2026-01-31", "what": "discarded", "fl')
    assert DeadLetterFilter(status="discarded").of(book.read().index).num_rows == 1
    book.history.append("discarded", index.slice(1, 1))
    assert DeadLetterFilter(status="discarded").of(book.read().index).num_rows == 2
    assert len(book.history.file.read_bytes().splitlines()) == 2


def test_a_spoilt_history_is_an_error_with_its_file(book: DeadLetterIndex) -> None:
    book.history.file.write_text("no JSON\n")
    with pytest.raises(ProjectError) as spoilt:
        book.read()
    assert spoilt.value.code == "letters-history"
    assert str(book.history.file) in spoilt.value.message


def test_only_one_may_change_letters_at_a_time(tmp_path: Path) -> None:
    history = AuditLog(tmp_path / "letters")
    with history.lock(), pytest.raises(ProjectError) as taken, AuditLog(tmp_path / "letters").lock():
        pass
    assert (taken.value.code, taken.value.exit_code) == ("replay-running", Exit.CONFLICT)
    with history.lock():
        pass


def test_many_letters_are_not_many_python_objects(tmp_path: Path) -> None:
    """100,000 letters of 5 KB: counting, listing and discarding them needs far less than their 500 MB."""
    for part in range(10):
        numbers = range(part * 10_000, (part + 1) * 10_000)
        table = pa.table(
            {
                "id": [f"{number:024x}" for number in numbers],
                "flow": pa.repeat("orders", 10_000),
                "stream": pa.repeat("shop", 10_000),
                "generation": pa.repeat("g1-a", 10_000),
                "reason": pa.repeat("malformed", 10_000),
                "detail": pa.repeat("d", 10_000),
                "position": pa.repeat("{}", 10_000),
                "value": pa.repeat(b"v" * 5000, 10_000),
                "met_at": pa.repeat(pa.scalar(NOON, SCHEMA.field("met_at").type), 10_000),
                "metadata": pa.nulls(10_000, pa.string()),
                "batch": pa.nulls(10_000, pa.int64()),
            },
            schema=SCHEMA,
        )
        place = tmp_path / "orders" / "shop"
        place.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, place / f"{part}.parquet")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    book = DeadLetterIndex(tmp_path)
    shelf = book.read()
    assert count(shelf.index, "reason")[0]["count"] == 100_000
    assert len(shelf.newest(shelf.index, 5)) == 5
    book.history.append("discarded", shelf.index.slice(0, 60_000))
    assert DeadLetterFilter().of(book.read().index).num_rows == 40_000
    # KB, some of which are for libraries that are loaded only now
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 250_000


def test_late_rows_are_read_alike(tmp_path: Path) -> None:
    row = {"id": "a", "flow": "counts", "stream": "shop", "generation": "g1-a", "batch": 3, "event_time": NOON}
    rest = {"watermark": NOON + timedelta(hours=1), "position": None, "row": '{"id": 1}', "met_at": NOON}
    place = tmp_path / "counts" / "shop"
    place.mkdir(parents=True)
    for name in ("x", "y"):
        pq.write_table(pa.Table.from_pylist([row | rest], schema=LATE), place / f"{name}.parquet")
    shelf = late_row_store(tmp_path)
    assert count(shelf.index, "flow") == [{"flow": "counts", "count": 1, "newest": NOON}]
    assert shelf.newest(shelf.index, 5)[0]["row"] == '{"id": 1}'
