"""Every record that goes into the decode step comes out, is filtered out by a condition, or is a dead letter."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.context import Context
from headrace.core.filters import ColumnFilter
from headrace.core.schema import from_ddl
from headrace.core.sizes import binary_bytes
from headrace.core.tallies.step_tally import BYTES_IN, StepTally
from headrace.engine.inputs.decode import BadRecordError, DecodeStep
from headrace.engine.letters.dead_letters import DeadLetterWriter, read_dead_letters
from headrace.formats.json import JsonFormat
from headrace.project.model import EventTime

COLUMNS = "id bigint, status string, at string"


def step(folder: Path, **changes: Any) -> DecodeStep:
    context = Context(folder, str(folder))
    columns = changes.pop("columns", COLUMNS)
    values: dict[str, Any] = {
        "decoder": JsonFormat(columns=columns).decoder(context, from_ddl(columns)),
        "position": ("_offset",),
        "metadata": (),
        "filters": (),
        "event_time": None,
        "on_error": "dead_letter",
        "letters": DeadLetterWriter(folder / "letters", "flow", "stream", "g1"),
    }
    return DecodeStep(**{**values, **changes})


def batch(records: list[bytes | None], first: int = 0) -> pa.RecordBatch:
    offsets = pa.array(range(first, first + len(records)), pa.int64())
    return pa.RecordBatch.from_arrays([pa.array(records, pa.binary()), offsets], names=["value", "_offset"])


def rows_of(made: DecodeStep, *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    return [row for out in made(iter(batches)) for row in out.to_pylist()]


def test_good_rows_pass_with_their_metadata_and_bad_ones_are_kept(tmp_path: Path) -> None:
    records = [b'{"id": 1}', b"oops", b'{"id": 3, "status": "x"}']
    rows = rows_of(step(tmp_path, metadata=("_offset",)), batch(records, first=10))
    assert rows == [
        {"id": 1, "status": None, "at": None, "_offset": 10},
        {"id": 3, "status": "x", "at": None, "_offset": 12},
    ]
    (letter,) = read_dead_letters(tmp_path / "letters").to_pylist()
    assert (letter["value"], json.loads(letter["position"])) == (b"oops", {"offset": 11})
    assert (letter["flow"], letter["stream"], letter["generation"]) == ("flow", "stream", "g1")
    assert letter["reason"] == "malformed"


def test_bytes_of_values_and_of_keys_that_are_read_are_counted(tmp_path: Path) -> None:
    tally = StepTally("flow", "stream")
    given = batch([b'{"id": 1}', None, b"oops", b'{"id": 2}'])
    keyed = given.append_column("_key", pa.array([b"k", b"", None, b"key"], pa.binary()))
    rows_of(step(tmp_path, tally=tally), given, given.slice(2, 1), batch([]))
    assert tally.counts[BYTES_IN] == 9 + 4 + 9 + 4
    tally.counts.clear()
    rows_of(step(tmp_path, tally=tally, metadata=("_key",)), keyed)
    assert tally.counts[BYTES_IN] == 9 + 4 + 9 + 4
    large = keyed.column("_key").cast(pa.large_binary())
    assert binary_bytes(large.slice(3)) == 3


def test_filters_drop_rows_but_not_bad_records(tmp_path: Path) -> None:
    records = [b'{"id": 1, "status": "a"}', b'{"id": 2, "status": "b"}', b'{"id": 3}', b"{"]
    rows = rows_of(step(tmp_path, filters=(ColumnFilter("status", "=", ("a",)),)), batch(records))
    assert [row["id"] for row in rows] == [1]
    assert read_dead_letters(tmp_path / "letters").num_rows == 1


def test_a_replayed_task_leaves_each_letter_once(tmp_path: Path) -> None:
    for _attempt in range(3):
        rows_of(step(tmp_path), batch([b"bad", b'{"id": 1}', b"worse"]))
    letters = read_dead_letters(tmp_path / "letters").to_pylist()
    assert sorted(letter["value"] for letter in letters) == [b"bad", b"worse"]


def test_the_same_record_in_two_generations_is_one_letter(tmp_path: Path) -> None:
    for generation in ("g1", "g2"):
        letters = DeadLetterWriter(tmp_path / "letters", "flow", "stream", generation)
        rows_of(step(tmp_path, letters=letters), batch([b"bad"]))
    assert read_dead_letters(tmp_path / "letters").num_rows == 1


def test_skipped_records_are_remembered_without_their_bytes(tmp_path: Path) -> None:
    letters = DeadLetterWriter(tmp_path / "letters", "flow", "stream", "g1", keep_value=False)
    rows_of(step(tmp_path, letters=letters, on_error="skip"), batch([b"secret"]))
    (letter,) = read_dead_letters(tmp_path / "letters").to_pylist()
    assert letter["value"] is None


def test_on_error_fail_names_the_record(tmp_path: Path) -> None:
    with pytest.raises(BadRecordError, match=r"'offset': 1.*malformed"):
        rows_of(step(tmp_path, on_error="fail"), batch([b'{"id": 1}', b"bad"]))


def test_letters_are_durable_when_the_reader_stops_early(tmp_path: Path) -> None:
    running = step(tmp_path)(iter([batch([b"bad"]), batch([b'{"id": 1}'], first=1)]))
    next(running)
    running.close()
    assert read_dead_letters(tmp_path / "letters").num_rows == 1


MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("columns", "unit", "given"),
    [
        ("at timestamp", "ms", "2026-01-02T03:04:05.678Z"),
        ("at string", "ms", "2026-01-02T03:04:05.678Z"),
        ("at string", "ms", "2026-01-02T04:04:05.678+01:00"),
        ("at string", "ms", "2026-01-02 03:04:05.678"),
        ("at bigint", "ms", 1767323045678),
        ("at bigint", "us", 1767323045678000),
        ("at bigint", "ns", 1767323045678000000),
    ],
)
def test_event_times_of_all_kinds(tmp_path: Path, columns: str, unit: Any, given: object) -> None:
    made = step(tmp_path, columns=columns, event_time=EventTime(column="at", unit=unit))
    (row,) = rows_of(made, batch([json.dumps({"at": given}).encode()]))
    assert row == {"at": MOMENT}


def test_a_record_without_event_time_is_a_dead_letter(tmp_path: Path) -> None:
    records = [b'{"id": 1, "at": "2026-01-01T00:00:00Z"}', b'{"id": 2}', b"bad", b'{"id": 4, "at": "yesterday"}']
    rows = rows_of(step(tmp_path, event_time=EventTime(column="at"), metadata=("_offset",)), batch(records))
    assert [(row["id"], row["_offset"]) for row in rows] == [(1, 0)]
    letters = {
        json.loads(x["position"])["offset"]: x["reason"] for x in read_dead_letters(tmp_path / "letters").to_pylist()
    }
    assert letters == {1: "no-event-time", 2: "malformed", 3: "no-event-time"}


RECORD = st.one_of(
    st.integers(-5, 5).map(lambda n: json.dumps({"id": n, "at": "2026-01-01T00:00:00Z"}).encode()),
    st.sampled_from([b"", b"{", b"null", b'{"id": "x"}', b'{"id": 1}', b'{"id": 1, "at": "no"}', b"\xff", None]),
)


@given(st.lists(st.lists(RECORD, max_size=8), max_size=4))
def test_in_is_out_plus_dead_letters(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[bytes | None]]
) -> None:
    folder = tmp_path_factory.mktemp("letters")
    made, first = [], 0
    for records in batches:
        made.append(batch(records, first))
        first += len(records)
    rows = rows_of(step(folder, event_time=EventTime(column="at"), metadata=("_offset",)), *made)
    letters = read_dead_letters(folder / "letters").to_pylist()
    offsets = [row["_offset"] for row in rows] + [json.loads(x["position"])["offset"] for x in letters]
    assert sorted(offsets) == list(range(first))
