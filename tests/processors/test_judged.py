"""Rows that wait while others decide: in files or in notes, and what is left of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.processors.memory_state import MemoryHandle

from headrace.processors._keyed.keyed_filter import RowVerdict, _Fetch, _Judging, _Leave
from headrace.processors._keyed.spill import Parking
from headrace.processors._keyed.state import HIGH
from headrace.processors._steps.columns import with_type

SCHEMA = pa.schema(
    [("key", pa.string()), ("n", pa.int64()), ("tags", pa.list_(pa.struct([("@t", pa.string())]))), ("odd", pa.int32())]
)


@dataclass
class Clock:
    batch: int = 0

    def number(self) -> int:
        return self.batch

    def planned(self) -> int:
        return 0

    def watermark(self) -> int:
        return 0


class EvenJudge:
    """Even numbers pass, and are marked when they can be divided by four."""

    def asked(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        return {"n": rows.column("n")}

    def open(self, handle: Any) -> None:
        """It remembers nothing."""

    def judge(self, rows: pa.Table) -> RowVerdict:
        n = rows["n"].to_numpy()
        assert len(rows[HIGH]) == len(n)
        return RowVerdict(n % 2 == 0, pa.array(n % 4 == 0))


def batch(start: int, count: int) -> pa.RecordBatch:
    rows = [
        {"key": f"k{n % 7}", "n": n, "tags": [{"@t": str(n)}] if n % 3 else None} for n in range(start, start + count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def through(parking: Parking, tasks: list[list[pa.RecordBatch]], mark: str | None = "odd") -> list[dict[str, Any]]:
    """What Spark does with a step: leave, group by bucket, judge, fetch."""
    asked = [pa.Table.from_batches(_Leave(("key",), EvenJudge(), parking, SCHEMA)(iter(task))) for task in tasks]
    told: list[pd.DataFrame] = []
    for bucket, rows in pa.concat_tables(asked).to_pandas().groupby("bucket"):
        judging = _Judging(EvenJudge())
        judging.init(MemoryHandle())  # type: ignore[arg-type]
        told += judging.handleInputRows(bucket, iter([rows]), None)
    messages = iter([pa.RecordBatch.from_pandas(pd.concat(told), preserve_index=False)])
    output = SCHEMA if mark is None else with_type(SCHEMA, mark, pa.bool_())
    return [row for made in _Fetch(SCHEMA, mark, output)(messages) for row in made.to_pylist()]


@pytest.fixture(params=["files", "notes"])
def parking(request: pytest.FixtureRequest, tmp_path: Path) -> Parking:
    return Parking(str(tmp_path / "parked") if request.param == "files" else None, Clock())


def test_rows_come_back_whole_with_what_was_said_of_them(parking: Parking) -> None:
    tasks = [[batch(0, 40), batch(40, 0), batch(40, 25)], [batch(100, 1)], []]
    found = sorted(through(parking, tasks[:2]), key=lambda row: row["n"])
    given = [row for task in tasks for part in task for row in part.to_pylist() if row["n"] % 2 == 0]
    assert [{**row, "odd": None} for row in found] == given
    assert [row["odd"] for row in found] == [row["n"] % 4 == 0 for row in found]


def test_without_a_mark_nothing_is_added(parking: Parking) -> None:
    assert sorted(row["n"] for row in through(parking, [[batch(0, 9)]], mark=None)) == [0, 2, 4, 6, 8]


def test_a_task_without_rows_asks_nothing(parking: Parking) -> None:
    assert list(_Leave(("key",), EvenJudge(), parking, SCHEMA)(iter([batch(0, 0)]))) == []


def test_files_live_as_long_as_their_batch(tmp_path: Path) -> None:
    clock = Clock()
    parking = Parking(str(tmp_path), clock)
    through(parking, [[batch(0, 10)], [batch(10, 10)]])
    assert len(list(tmp_path.rglob("*.arrow"))) == 2
    # one that runs again has files of its own beside those of the attempt before
    through(parking, [[batch(0, 10)]])
    assert {file.parent.name for file in tmp_path.rglob("*.arrow")} == {"0"}
    clock.batch = 1
    through(parking, [[batch(0, 10)]])
    assert [file.parent.name for file in tmp_path.rglob("*.arrow")] == ["1"]


@pytest.mark.parametrize(
    ("master", "folder", "streaming", "expected"),
    [
        ("local[2]", "/scratch", True, "/scratch/parked/f/g1/after.0"),
        ("local[*]", "/scratch,/other", True, "/scratch/parked/f/g1/after.0"),
        ("spark://host:7077", "/scratch", True, None),
        ("local[2]", None, True, None),
        ("local[2]", "/scratch", False, None),
    ],
)
def test_files_only_where_all_tasks_see_them(
    master: str, folder: str | None, streaming: bool, expected: str | None
) -> None:
    settings = {"spark.master": master, **({"spark.local.dir": folder} if folder else {})}

    class Frame:
        sparkSession = type("Session", (), {"sparkContext": type("Context", (), {"getConf": lambda _: settings})()})()  # noqa: N815

    at: Any = type(
        "At", (), {"streaming": streaming, "flow": "f", "generation": "g1", "step": "after.0", "clock": Clock()}
    )
    frame: Any = Frame()
    assert Parking.of(frame, at).folder == expected


def test_a_judge_is_asked_about_rows_in_their_order(tmp_path: Path) -> None:
    seen: list[int] = []

    class Watches(EvenJudge):
        def judge(self, rows: pa.Table) -> RowVerdict:
            seen.extend(rows["n"].to_pylist())
            return RowVerdict(np.ones(rows.num_rows, np.bool_))

    one = pa.RecordBatch.from_pylist([{"key": "same", "n": n} for n in range(5)], schema=SCHEMA)
    two = pa.RecordBatch.from_pylist([{"key": "same", "n": n} for n in range(5, 9)], schema=SCHEMA)
    asked = pa.Table.from_batches(
        _Leave(("key",), Watches(), Parking(str(tmp_path), Clock()), SCHEMA)(iter([one, two]))
    )
    judging = _Judging(Watches())
    judging.init(MemoryHandle())  # type: ignore[arg-type]
    list(judging.handleInputRows(None, iter([asked.to_pandas().iloc[::-1]]), None))
    assert seen == list(range(9))
