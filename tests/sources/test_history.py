"""The history of a stream: which files, in which order, and as which columns."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import ProjectError
from headrace.core.schema import TIMESTAMP, from_ddl
from headrace.engine.inputs.history import (
    RowGroup,
    lake_files,
    newest_offsets,
    parquet_files,
    row_groups,
    split_into_parts,
)
from headrace.engine.inputs.history_rows import FILE, ROW, HistoryReader, as_times, conform
from headrace.project.ranges import folder_range, parse_ranges


def at(hour: int, day: int = 1) -> datetime:
    return datetime(2026, 1, day, hour, tzinfo=UTC)


def test_ranges_include_both_ends() -> None:
    days, hours = parse_ranges("2026-01-01, 2026-01-02;2026-01-05T06:30:00Z,2026-01-05T08")
    assert (days.begin, days.end) == (at(0), at(0, 3))
    assert (hours.begin, hours.end) == (at(6, 5), at(9, 5))


@pytest.mark.parametrize("text", ["2026-01-01", "2026-01-02,2026-01-01", "today,tomorrow", "2026-01-01,", ""])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(ValueError, match=r"start,end|neither a day|ends before"):
        parse_ranges(text)


def test_folders_of_days_and_hours() -> None:
    day, hour = folder_range({"dt": "2026-01-01"}), folder_range({"dt": "2026-01-01", "hr": "07"})
    assert day is not None
    assert hour is not None
    assert (day.begin, day.end, hour.begin, hour.end) == (at(0), at(0, 2), at(7), at(8))
    assert folder_range({"hr": "07"}) is None
    assert folder_range({"dt": "yesterday"}) is None


def write(file: Path, times: list[datetime], **columns: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"at": pa.array(times, TIMESTAMP), "id": pa.array(range(len(times)), pa.int64()), **columns})
    pq.write_table(table, file, row_group_size=2)
    return file


def test_dates_choose_folders(tmp_path: Path) -> None:
    for day, hour in ((1, "06"), (1, "07"), (2, "00"), (9, "00")):
        write(tmp_path / f"dt=2026-01-0{day}" / f"hr={hour}" / "a.parquet", [at(int(hour), day)])
    (tmp_path / "dt=2026-01-01" / "_SUCCESS").touch()
    ranges = parse_ranges("2026-01-01T07,2026-01-01T07;2026-01-02,2026-01-03")
    found = [file.path.removeprefix(f"{tmp_path}/") for file in parquet_files([str(tmp_path)], ranges)]
    assert found == ["dt=2026-01-01/hr=07/a.parquet", "dt=2026-01-02/hr=00/a.parquet"]
    assert len(parquet_files([str(tmp_path)], [])) == 4
    write(tmp_path / "loose.parquet", [at(1)])
    with pytest.raises(ProjectError) as caught:
        parquet_files([str(tmp_path)], ranges)
    assert caught.value.code == "backfill-dates"
    with pytest.raises(ProjectError) as caught:
        parquet_files([str(tmp_path / "nothing")], [])
    assert caught.value.code == "no-files"


SCHEMA = from_ddl("id bigint, at timestamp, dt string, _offset bigint, gone double")


@pytest.mark.parametrize("options", [{}, {"use_deprecated_int96_timestamps": True}, {"write_statistics": False}])
def test_pieces_know_their_times_and_rows(tmp_path: Path, options: dict[str, bool]) -> None:
    file = tmp_path / "dt=2026-01-01" / "a.parquet"
    file.parent.mkdir()
    times = [at(5), at(3), at(9), at(8), at(10)]
    pq.write_table(pa.table({"at": pa.array(times, TIMESTAMP), "id": range(5)}), file, row_group_size=2, **options)
    (first, second, third) = row_groups(parquet_files([str(tmp_path)], []), SCHEMA, "at", "ms")
    assert [one.rows for one in (first, second, third)] == [2, 2, 1]
    assert [one.row for one in (first, second, third)] == [0, 2, 4]
    assert first.first == round(at(3).timestamp() * 1e6)
    assert second.last == round(at(9).timestamp() * 1e6)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"id": pa.array(["x"])}, "'id' is string"),
        ({"at": pa.array([True])}, "'at' is bool"),
        ({"other": pa.array([1])}, "no column 'at'"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    base = {"at": pa.array([at(1)], TIMESTAMP), "id": pa.array([1])}
    pq.write_table(pa.table(columns if "other" in columns else {**base, **columns}), tmp_path / "a.parquet")
    with pytest.raises(ProjectError) as caught:
        row_groups(parquet_files([str(tmp_path)], []), SCHEMA, "at", "ms")
    assert caught.value.code == "backfill-columns"
    assert said in caught.value.message
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    with pytest.raises(ProjectError) as caught:
        row_groups(parquet_files([str(tmp_path)], []), SCHEMA, "at", "ms")
    assert caught.value.code == "files-not-understood"


def test_rows_are_those_of_the_stream(tmp_path: Path) -> None:
    file = write(tmp_path / "dt=2026-01-01" / "a.parquet", [at(1), at(2), at(3)], _offset=pa.array([7, 8, 9]))
    pieces = row_groups(parquet_files([str(tmp_path)], []), SCHEMA, "at", "ms")
    lines = pa.RecordBatch.from_pydict({"value": [piece.to_line() for piece in pieces]})
    read = HistoryReader(SCHEMA, "at", until=round(at(3).timestamp() * 1e6))
    rows = [row for batch in read(iter([lines])) for row in batch.to_pylist()]
    assert [(row["id"], row["_offset"], row[ROW]) for row in rows] == [(0, 7, 0), (1, 8, 1)]
    assert rows[0] == {
        "id": 0, "at": at(1), "dt": "2026-01-01", "_offset": 7, "gone": None, FILE: str(file), ROW: 0,
    }  # fmt: skip


def test_rows_without_a_time_are_not_left_out(tmp_path: Path) -> None:
    pq.write_table(pa.table({"at": pa.array([None, at(9)], TIMESTAMP), "id": [1, 2]}), tmp_path / "a.parquet")
    (piece,) = row_groups(parquet_files([str(tmp_path)], []), SCHEMA, "at", "ms")
    lines = pa.RecordBatch.from_pydict({"value": [piece.to_line()]})
    (batch,) = HistoryReader(SCHEMA, "at", until=round(at(5).timestamp() * 1e6))(iter([lines]))
    assert batch.column("id").to_pylist() == [1]


MAP = pa.map_(pa.string(), pa.int64())


@pytest.mark.parametrize(
    "given",
    [
        pa.array([[("a", 1)], None, [], [("b", 2), ("c", None)]], pa.map_(pa.string(), pa.int32())),
        pa.array(
            [[{"key": "a", "value": 1}], None, [], [{"key": "b", "value": 2}, {"key": "c", "value": None}]],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.int32())])),
        ),
    ],
    ids=["map", "list"],
)
def test_both_layouts_of_maps(given: pa.Array, tmp_path: Path) -> None:
    expected = [[("a", 1)], None, [], [("b", 2), ("c", None)]]
    assert conform(given, MAP).to_pylist() == expected
    assert conform(given.slice(3), MAP).to_pylist() == expected[3:]
    pq.write_table(pa.table({"tags": given}), tmp_path / "a.parquet")
    (piece,) = row_groups(parquet_files([str(tmp_path)], []), pa.schema([("tags", MAP)]), None, "ms")
    lines = pa.RecordBatch.from_pydict({"value": [piece.to_line()]})
    (batch,) = HistoryReader(pa.schema([("tags", MAP)]), None)(iter([lines]))
    assert batch.column("tags").to_pylist() == expected


def test_nested_values_are_read_by_name() -> None:
    target = pa.struct([("a", pa.int64()), ("new", pa.string()), ("items", pa.list_(pa.struct([("m", MAP)])))])
    items = pa.list_(pa.struct([("m", pa.list_(pa.struct([("key", pa.string()), ("value", pa.int64())])))]))
    held = pa.struct([("items", items), ("a", pa.int32())])
    given = pa.array([{"a": 1, "items": [{"m": [{"key": "k", "value": 5}]}, None]}, None], held)
    assert conform(given, target).to_pylist() == [{"a": 1, "new": None, "items": [{"m": [("k", 5)]}, None]}, None]


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        (pa.array([at(7).replace(tzinfo=None)], pa.timestamp("ns")), "ms"),
        (pa.array([round(at(7).timestamp())]), "s"),
        (pa.array([round(at(7).timestamp() * 1000)]), "ms"),
        (pa.array([round(at(7).timestamp() * 1e6) * 1000]), "ns"),
        (pa.array(["2026-01-01T07:00:00"]), "ms"),
        (pa.array(["2026-01-01T09:00:00+02:00"]), "ms"),
    ],
)
def test_times_however_they_are_written(values: pa.Array, unit: str) -> None:
    assert as_times(values, unit).to_pylist() == [at(7)]


def test_the_highest_offsets(tmp_path: Path) -> None:
    for number, (partition, offset) in enumerate(((0, 5), (1, 3), (0, 9))):
        table = pa.table({"_topic": ["t"], "_partition": pa.array([partition], pa.int32()), "_offset": [offset]})
        pq.write_table(table, tmp_path / f"{number}.parquet")
    assert newest_offsets(parquet_files([str(tmp_path)], []), ["t"]) == {"t": {0: 9, 1: 3}}
    assert newest_offsets(parquet_files([str(tmp_path)], []), ["t", "u"]) == {"t": {0: 9, 1: 3}}
    pq.write_table(pa.table({"_partition": [0], "id": [1]}), tmp_path / "x.parquet")
    with pytest.raises(ProjectError) as caught:
        newest_offsets(parquet_files([str(tmp_path)], []), ["t"])
    assert caught.value.code == "backfill-seam"


def test_a_lake_table_as_it_stands(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    path = str(tmp_path / "lake")
    rows = pa.table({"at": pa.array([at(1), at(2)], TIMESTAMP), "id": [1, 2], "dt": ["a b", "c"]})
    write_deltalake(path, rows, partition_by=["dt"])
    version, files = lake_files(path)
    write_deltalake(path, rows, mode="append")
    assert version == 0
    assert sorted(file.folders["dt"] for file in files) == ["a b", "c"]
    pieces = row_groups(files, SCHEMA, "at", "ms")
    lines = pa.RecordBatch.from_pydict({"value": [piece.to_line() for piece in pieces]})
    found = [row for batch in HistoryReader(SCHEMA, "at")(iter([lines])) for row in batch.to_pylist()]
    assert sorted((row["id"], row["dt"]) for row in found) == [(1, "a b"), (2, "c")]
    with pytest.raises(ProjectError) as caught:
        lake_files(str(tmp_path / "none"))
    assert caught.value.code == "lake-missing"


times = st.one_of(st.none(), st.integers(0, 100))


@st.composite
def some_pieces(draw: st.DrawFn) -> list[RowGroup]:
    found = []
    for number in range(draw(st.integers(0, 12))):
        first = draw(times)
        last = None if first is None else first + draw(st.integers(0, 30))
        found.append(RowGroup(f"f{number}", 0, 0, draw(st.integers(1, 50)), first, last))
    return found


@settings(max_examples=60, deadline=None)
@given(pieces=some_pieces(), most=st.integers(1, 120), delay=st.one_of(st.none(), st.integers(0, 40)))
def test_parts_hold_all_pieces_in_order_and_nothing_is_late(
    pieces: list[RowGroup], most: int, delay: int | None
) -> None:
    parts = split_into_parts(pieces, most, delay)
    assert sorted(one.path for part in parts for one in part) == sorted(one.path for one in pieces)
    assert all(parts)
    newest = None
    for part in parts:
        for one in part:
            if delay is not None and newest is not None and one.first is not None:
                assert one.first >= newest - delay, "a window would take it for late"
        known = [one.last for one in part if one.last is not None]
        newest = max([*known, *([newest] if newest is not None else [])], default=None)
    if delay is None:
        assert all(len(part) == 1 or sum(one.rows for one in part) <= most for part in parts)


def test_a_piece_is_one_line() -> None:
    line = RowGroup("a", 2, 30, 10, folders={"dt": "x"}).to_line()
    assert json.loads(line) == {"path": "a", "group": 2, "row": 30, "folders": {"dt": "x"}}
    assert "\n" not in line
