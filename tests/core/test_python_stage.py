"""A Python stage: one `mapInArrow`, however many steps share it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from headrace.core.kinds import kinds
from headrace.core.python_stage import Batches, PythonStage, Work

SCHEMA = pa.schema([("n", pa.int64())])


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(numbers)}, SCHEMA)


def times(factor: int) -> Work:
    def work(batches: Batches) -> Batches:
        for rows in batches:
            yield batch(*(factor * n for n in rows.column("n").to_pylist()))

    return work


def fail(batches: Batches) -> Batches:
    yield next(batches)
    raise ValueError("no")


@dataclass
class Rows:
    """A DataFrame, as far as a stage uses it: it runs each stage at once on one batch."""

    values: list[int]
    stages: list[str] = field(default_factory=list)

    def mapInArrow(self, function: Any, ddl: str) -> Any:  # noqa: N802
        self.stages.append(ddl)
        return [n for rows in function(iter([batch(*self.values)])) for n in rows.column("n").to_pylist()]


@dataclass
class Box:
    flushed: int = 0

    def keep(self, rows: pa.RecordBatch, index: int, reason: str, detail: str, *, whole: bool = True) -> None:
        raise AssertionError("nothing is kept")

    def flush(self) -> None:
        self.flushed += 1


def stage(rows: Any) -> PythonStage:
    return PythonStage(rows, SCHEMA)


def test_an_empty_stage_runs_no_python() -> None:
    rows = Rows([1])
    empty = stage(rows)
    assert (empty.is_empty, empty.finish(), rows.stages) == (True, rows, [])


def test_functions_run_in_their_order_in_one_stage() -> None:
    rows = Rows([1, 2])
    doubled = stage(rows).then(times(2), SCHEMA).then(lambda found: (one.slice(1) for one in found), SCHEMA)
    assert doubled.finish() == [4]
    assert doubled.finish_with(times(10), "n bigint") == [40]
    assert rows.stages == ["`n` bigint", "n bigint"], "one mapInArrow each"
    other = Rows([5, 6])
    assert doubled.on(other).finish() == [12]  # type: ignore[arg-type, comparison-overlap]


def test_a_last_function_needs_no_other() -> None:
    rows = Rows([1])
    assert stage(rows).finish_with(times(3), "n bigint") == [3]


def test_dead_letters_are_flushed_also_when_a_step_fails() -> None:
    first, second = Box(), Box()
    failing = stage(Rows([1])).then(times(1), SCHEMA, first).then(fail, SCHEMA, second)
    with pytest.raises(ValueError, match="no"):
        failing.finish()
    assert (first.flushed, second.flushed) == (1, 1)


def test_batches_have_the_columns_that_were_announced() -> None:
    narrow = stage(Rows([1])).then(times(1), pa.schema([("n", pa.int32())]))
    found: list[pa.Schema] = []

    def look(batches: Batches) -> Batches:
        for rows in batches:
            found.append(rows.schema)
            yield rows

    narrow.finish_with(look, "n int")
    assert found == [pa.schema([("n", pa.int32())])]


def test_sinks_that_can_end_a_stage() -> None:
    assert [name for name, kind in kinds("sinks").items() if hasattr(kind, "write_stage")] == ["kafka"]
