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

from headrace.processors._keyed.keyed_filter import FilterDecision, _FetchRows, _FilterProcessor, _SpillRows
from headrace.processors._keyed.spill import Spill
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


class EvenFilter:
    """Even numbers pass, and are marked when they can be divided by four."""

    def inputs(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        return {"n": rows.column("n")}

    def open(self, handle: Any) -> None:
        """It remembers nothing."""

    def decide(self, rows: pa.Table) -> FilterDecision:
        n = rows["n"].to_numpy()
        assert len(rows[HIGH]) == len(n)
        return FilterDecision(n % 2 == 0, pa.array(n % 4 == 0))


def batch(start: int, count: int) -> pa.RecordBatch:
    rows = [
        {"key": f"k{n % 7}", "n": n, "tags": [{"@t": str(n)}] if n % 3 else None} for n in range(start, start + count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def through(spill: Spill, tasks: list[list[pa.RecordBatch]], mark: str | None = "odd") -> list[dict[str, Any]]:
    """What Spark does with a step: leave, group by bucket, row_filter, fetch."""
    asked = [pa.Table.from_batches(_SpillRows(("key",), EvenFilter(), spill, SCHEMA)(iter(task))) for task in tasks]
    told: list[pd.DataFrame] = []
    for bucket, rows in pa.concat_tables(asked).to_pandas().groupby("bucket"):
        judging = _FilterProcessor(EvenFilter())
        judging.init(MemoryHandle())  # type: ignore[arg-type]
        told += judging.handleInputRows(bucket, iter([rows]), None)
    messages = iter([pa.RecordBatch.from_pandas(pd.concat(told), preserve_index=False)])
    output = SCHEMA if mark is None else with_type(SCHEMA, mark, pa.bool_())
    return [row for made in _FetchRows(SCHEMA, mark, output)(messages) for row in made.to_pylist()]


@pytest.fixture(params=["files", "notes"])
def spill(request: pytest.FixtureRequest, tmp_path: Path) -> Spill:
    return Spill(str(tmp_path / "parked") if request.param == "files" else None, Clock())


def test_rows_come_back_whole_with_what_was_said_of_them(spill: Spill) -> None:
    tasks = [[batch(0, 40), batch(40, 0), batch(40, 25)], [batch(100, 1)], []]
    found = sorted(through(spill, tasks[:2]), key=lambda row: row["n"])
    given = [row for task in tasks for part in task for row in part.to_pylist() if row["n"] % 2 == 0]
    assert [{**row, "odd": None} for row in found] == given
    assert [row["odd"] for row in found] == [row["n"] % 4 == 0 for row in found]


def test_without_a_mark_nothing_is_added(spill: Spill) -> None:
    assert sorted(row["n"] for row in through(spill, [[batch(0, 9)]], mark=None)) == [0, 2, 4, 6, 8]


def test_a_task_without_rows_asks_nothing(spill: Spill) -> None:
    assert list(_SpillRows(("key",), EvenFilter(), spill, SCHEMA)(iter([batch(0, 0)]))) == []


def test_files_live_as_long_as_their_batch(tmp_path: Path) -> None:
    clock = Clock()
    spill = Spill(str(tmp_path), clock)
    through(spill, [[batch(0, 10)], [batch(10, 10)]])
    assert len(list(tmp_path.rglob("*.arrow"))) == 2
    # one that runs again has files of its own beside those of the attempt before
    through(spill, [[batch(0, 10)]])
    assert {file.parent.name for file in tmp_path.rglob("*.arrow")} == {"0"}
    clock.batch = 1
    through(spill, [[batch(0, 10)]])
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
    assert Spill.of(frame, at).folder == expected


def test_a_judge_is_asked_about_rows_in_their_order(tmp_path: Path) -> None:
    seen: list[int] = []

    class Watches(EvenFilter):
        def decide(self, rows: pa.Table) -> FilterDecision:
            seen.extend(rows["n"].to_pylist())
            return FilterDecision(np.ones(rows.num_rows, np.bool_))

    one = pa.RecordBatch.from_pylist([{"key": "same", "n": n} for n in range(5)], schema=SCHEMA)
    two = pa.RecordBatch.from_pylist([{"key": "same", "n": n} for n in range(5, 9)], schema=SCHEMA)
    asked = pa.Table.from_batches(
        _SpillRows(("key",), Watches(), Spill(str(tmp_path), Clock()), SCHEMA)(iter([one, two]))
    )
    judging = _FilterProcessor(Watches())
    judging.init(MemoryHandle())  # type: ignore[arg-type]
    list(judging.handleInputRows(None, iter([asked.to_pandas().iloc[::-1]]), None))
    assert seen == list(range(9))
