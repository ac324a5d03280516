from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.processors.memory_state import MemoryHandle, StepClockAt

from headrace.core.errors import ProjectError
from headrace.core.filters import ColumnFilter, apply_all
from headrace.plan.checkpoint_shape import shape_of
from headrace.plan.compare import compare
from headrace.plan.explain import to_json, to_text
from headrace.plan.planner import make_plan
from headrace.processors._keyed.dedup_rule import SeenKeys, first_rows
from headrace.processors._steps.queries import condition, filters_of
from headrace.processors.deduplicate import Deduplicate
from headrace.project.loader import load
from headrace.testing.harness import ProjectHarness

START = datetime(2026, 1, 1, tzinfo=UTC)
PROJECT = """
project: once
streams:
  orders:
    source: {type: generate, fields: {id: {sequence: 1}}}
    format: {type: json, columns: "id bigint, area string, note string, at timestamp"}
    event_time: {column: at, max_future: null}
  clicks:
    source: {type: generate, fields: {id: {sequence: 1}}}
    format: {type: json, columns: "id bigint, page string"}
flows:
  counted:
    before: {orders: [{type: deduplicate, key: [id], ttl: 1min}]}
    sql: SELECT window.start AS start, count(*) AS n FROM orders GROUP BY window(at, '10 seconds')
    sinks: [console]
  clicked:
    sql: SELECT id, page FROM clicks
    after: [{type: deduplicate, key: [id], ttl: 1h}]
    sinks: [console]
  marked:
    sql: SELECT id, page FROM clicks
    after: [{type: deduplicate, key: [id], ttl: 1h, mark: repeat, when: page <> 'z' -- not these}]
    sinks: [console]
"""


def seen(rows: list[tuple[int, int]]) -> SeenKeys:
    """Rows of key and time; keys that are equal in one half only are different keys."""
    keys = np.array([key for key, _ in rows], np.int64)
    return SeenKeys(keys // 2, keys % 2, np.array([time for _, time in rows], np.int64))


def model(rows: list[tuple[int, int]], known: list[tuple[int, int]], ttl: int) -> list[int]:
    """One row after the other, in the order of their times."""
    passed: list[tuple[int, int]] = list(known)
    found = []
    for place in sorted(range(len(rows)), key=lambda index: rows[index][1]):
        key, time = rows[place]
        if all(other != key or abs(time - at) >= ttl for other, at in passed):
            passed.append(rows[place])
            found.append(place)
    return sorted(found)


def question(work: Any, keys: list[int], rows: pa.RecordBatch) -> pa.Table:
    """What a judge is asked about rows with these keys, of which 0 is none."""
    from headrace.processors._keyed.state import HIGH, KEYLESS, LOW

    halves = {HIGH: pa.array(keys, pa.int64()), LOW: pa.array(keys, pa.int64())}
    return pa.table({**halves, KEYLESS: [key == 0 for key in keys], **work.inputs(rows)})


POINTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=40)


@settings(max_examples=100, deadline=None)
@given(POINTS, POINTS, st.integers(1, 30))
def test_what_passes_is_what_the_rule_says(rows: list[Any], before: list[Any], ttl: int) -> None:
    known = [before[place] for place in model(before, [], ttl)]
    assert np.flatnonzero(first_rows(seen(rows), seen(known), ttl)).tolist() == model(rows, known, ttl)


def test_a_repeat_does_not_prolong_and_a_later_row_begins_anew() -> None:
    rows = [(1, 0), (1, 9), (1, 10), (1, 19), (1, 20), *((2, time) for time in range(0, 200, 10))]
    passed = first_rows(seen(rows), SeenKeys.none(), 10)
    assert passed.tolist() == [True, False, True, False, True, *[True] * 20]


BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), min_size=1, max_size=8), max_size=20)


@settings(max_examples=30, deadline=None)
@given(BATCHES, st.integers(1, 12))
def test_over_many_batches_nothing_in_time_is_judged_wrongly_and_old_keys_are_forgotten(
    batches: list[Any], ttl: int
) -> None:
    from headrace.processors._keyed.dedup_work import DedupFilter

    clock, handle = StepClockAt(), MemoryHandle()
    work = DedupFilter(ttl, "at", clock)
    work.open(handle)  # type: ignore[arg-type]
    passed: list[tuple[int, int]] = []
    for number, batch in enumerate(batches):
        clock.now = number * 5
        # up to `ttl` behind the watermark
        rows = [(key, clock.now - ttl + 1 + time) for key, time in batch]
        expected = [rows[place] for place in model(rows, passed, ttl)]
        times = pa.array([time for _, time in rows], pa.int64())
        given = pa.RecordBatch.from_pydict({"at": times.cast(pa.timestamp("us", "UTC"))})
        made = times.filter(pa.array(work.decide(question(work, [key + 1 for key, _ in rows], given)).passes))
        assert sorted(made.to_pylist()) == sorted(time for _, time in expected)
        passed += expected
    held = sum(len(part[0]) // 24 for part in handle.held["seen"].values)
    assert held <= 2 * len([one for one in passed if one[1] > clock.now - 2 * ttl]) + 16 * 8


def test_what_is_remembered_takes_24_bytes_per_key() -> None:
    kept = seen([(-5, 1), (7, 2)])
    assert len(kept.to_bytes()) == 48
    again = SeenKeys.from_bytes(kept.to_bytes())
    assert [again.high.tolist(), again.low.tolist(), again.time.tolist()] == [
        kept.high.tolist(), kept.low.tolist(), kept.time.tolist(),
    ]  # fmt: skip


def test_keys_are_looked_for_and_must_have_a_hash() -> None:
    step = Deduplicate(key=["order.id"], ttl=timedelta(hours=1))
    given = pa.schema([("order", pa.struct([("id", pa.int64())])), ("tags", pa.map_(pa.string(), pa.string()))])
    assert step.output(given) == given
    assert step.uses(frozenset({"tags"})) == {"tags", "order", "order.id"}
    with pytest.raises(ProjectError) as caught:
        Deduplicate(key=["order.nr"], ttl=timedelta(hours=1)).output(given)
    assert caught.value.code == "unknown-column"
    with pytest.raises(ProjectError) as caught:
        Deduplicate(key=["tags"], ttl=timedelta(hours=1)).output(given)
    assert caught.value.code == "step-type"


def test_repeats_may_be_marked_and_some_rows_left_alone() -> None:
    from headrace.processors._keyed.dedup_work import DedupFilter

    work = DedupFilter(10, None, StepClockAt(), (ColumnFilter("c", "is true"),), True)
    work.open(MemoryHandle())  # type: ignore[arg-type]

    def marks(keys: list[int], considered: list[bool | None]) -> list[bool | None]:
        told = work.decide(question(work, keys, pa.RecordBatch.from_pydict({"c": pa.array(considered, pa.bool_())})))
        assert told.passes.all()
        assert told.marks is not None
        return list(told.marks.to_pylist())

    # a row that is not looked at makes no other a repeat, and one without a key is none
    found = marks([1, 1, 2, 1, 0, 0], [False, True, True, True, True, None])
    assert found == [None, False, False, True, False, None]
    assert marks([1, 2, 3, 2], [True, False, True, True]) == [True, None, False, True]


def test_the_condition_and_the_mark_are_checked() -> None:
    step = Deduplicate(key=["id"], ttl=timedelta(hours=1), mark="repeat", when="app IN ('a', 'b')")
    given = pa.schema([("id", pa.string()), ("app", pa.string())])
    assert step.output(given) == given.append(pa.field("repeat", pa.bool_()))
    assert {"id", "app", "x"} <= (step.uses(frozenset({"repeat", "x"})) or set())
    assert step.label == "deduplicate by id for 1h when app IN ('a', 'b'), marked as repeat"
    with pytest.raises(ProjectError) as caught:
        step.output(pa.schema([("id", pa.string())]))
    assert caught.value.code == "unknown-column"
    with pytest.raises(ValueError, match="not a condition"):
        Deduplicate(key=["id"], ttl=timedelta(hours=1), when="app IN (")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "headrace.yaml").write_text(PROJECT)
    return tmp_path


def test_plan_shows_it_and_a_change_needs_a_new_generation(project: Path) -> None:
    plan = make_plan(load(project))
    assert plan.flow("counted").state == ("deduplicate", "aggregate")
    assert next(plan.flow("counted").streams()).columns == ("id", "at")
    assert "  ▹ deduplicate by id for 1min" in [line.removeprefix("  ") for line in to_text(plan)]
    assert to_json(plan)["flows"][1]["after"][0]["type"] == "deduplicate"
    old = shape_of(plan.flow("counted"))
    (project / "headrace.yaml").write_text(PROJECT.replace("ttl: 1min", "ttl: 2min"))
    new = shape_of(make_plan(load(project)).flow("counted"))
    assert compare(old, old, {}, {}).kind == "safe"
    assert compare(old, new, {}, {}).kind == "new_generation"


def test_a_real_time_flow_cannot_have_it(project: Path) -> None:
    text = PROJECT.replace("    after: [{type", "    mode: realtime\n    after: [{type")
    (project / "headrace.yaml").write_text(text)
    with pytest.raises(ProjectError) as caught:
        make_plan(load(project))
    assert caught.value.code == "realtime-unsupported"
    assert "deduplicate" in str(caught.value)


def test_it_needs_rows_that_are_final(project: Path) -> None:
    text = PROJECT.replace("    after: [{type", "    output: update\n    after: [{type")
    (project / "headrace.yaml").write_text(text)
    with pytest.raises(ProjectError) as caught:
        make_plan(load(project))
    assert caught.value.code == "step-needs-append"


def test_the_event_time_must_come_through(project: Path) -> None:
    (project / "headrace.yaml").write_text(
        PROJECT.replace("ttl: 1min}]", "ttl: 1min}, {type: column, columns: {id: id}, keep: none}]").replace(
            "SELECT window.start AS start, count(*) AS n FROM orders GROUP BY window(at, '10 seconds')",
            "SELECT id FROM orders",
        )
    )
    with pytest.raises(ProjectError) as caught:
        make_plan(load(project))
    assert caught.value.code == "bad-event-time"


def order(number: int, second: int) -> dict[str, Any]:
    return {"id": number, "area": "x", "at": START + timedelta(seconds=second)}


@pytest.mark.spark
def test_windows_after_it_count_each_key_once_also_after_a_restart(project: Path, spark: Any) -> None:
    with ProjectHarness(project, spark) as harness:
        harness.feed("orders", [order(n, n) for n in range(20)] + [order(n, n + 5) for n in range(20)])
        harness.run("counted", "clicked")
        harness.restart()
        # repeats of what came before the restart, within and after the minute
        harness.feed("orders", [order(3, 25), order(4, 64), order(100, 26)])
        harness.run("counted")
        # 22 is late for its window; 1000 closes them all
        harness.feed("orders", [order(200, 22), order(200, 1000)])
        harness.run("counted")
        rows = {row["start"]: row["n"] for row in harness.rows("counted")}
        assert rows == {START + timedelta(seconds=at): n for at, n in ((0, 10), (10, 10), (20, 1), (60, 1))}
        assert [row["event_time"] for row in harness.late_rows("counted")] == [START + timedelta(seconds=22)]


@pytest.mark.spark
def test_after_the_sql_by_the_time_of_batches(project: Path, spark: Any) -> None:
    with ProjectHarness(project, spark) as harness:
        harness.feed("clicks", [{"id": n % 4, "page": "a"} for n in range(8)] + [{"page": "b"}, {"page": "c"}])
        harness.run("clicked", "marked")
        harness.restart()
        harness.feed("clicks", [{"id": 3, "page": "z"}, {"id": 9, "page": "z"}, {"id": 3, "page": "q"}])
        harness.run("clicked", "marked")
        marks = Counter((row["page"], row["repeat"]) for row in harness.rows("marked"))
        assert marks == {
            ("a", False): 4,
            ("a", True): 4,
            ("b", False): 1,
            ("c", False): 1,
            ("z", None): 2,
            ("q", True): 1,
        }
        rows = sorted((row["id"] is None, row["id"], row["page"]) for row in harness.rows("clicked") if row["id"])
        assert rows == [(False, 1, "a"), (False, 2, "a"), (False, 3, "a"), (False, 9, "z")]
        assert sorted(row["page"] for row in harness.rows("clicked") if row["id"] is None) == ["b", "c"]


@pytest.mark.parametrize(
    ("when", "passing"),
    [
        ("app = 'a'", [0, 1]),
        ("app IS NULL", [3]),
        ("app IS NOT NULL AND ok", [0]),
        ("(ok) AND (app <> 'b') AND n >= 0 -- all of them", [0]),
        ("n IN (1, 2)", [1, 2]),
    ],
)
def test_a_simple_condition_needs_no_spark(when: str, passing: list[int]) -> None:
    rows = pa.RecordBatch.from_pydict(
        {"app": ["a", "a", "b", None], "ok": [True, None, False, True], "n": pa.array([0, 1, 2, 3], pa.int64())}
    )
    found = filters_of(condition(when), rows.schema)
    assert found
    mask = apply_all(found, rows)
    assert mask is not None
    assert np.flatnonzero(mask.to_numpy(zero_copy_only=False)).tolist() == passing


@pytest.mark.parametrize(
    "when",
    ["app = 'a' OR ok", "NOT ok", "upper(app) = 'A'", "app = name", "APP IS NULL", "true", "n = 1.5", "ok IS TRUE"],
)
def test_other_conditions_are_left_to_spark(when: str) -> None:
    given = pa.schema([("app", pa.string()), ("name", pa.string()), ("ok", pa.bool_()), ("n", pa.int64())])
    assert filters_of(condition(when), given) is None


def test_another_hash_needs_a_new_generation() -> None:
    assert Deduplicate(key=["id"], ttl=timedelta(hours=1)).state_options["hash"] == "blake2b"
