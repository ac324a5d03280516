"""Queries over changing tables with the answers that are known for them: the shared vectors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.testing import ViewHarness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "changes.json").read_text(encoding="utf-8"))
TYPES = {"int": "int", "text": "string", "numeric": "decimal(12,2)"}
# the tables of cases that only describe them
TRACED: dict[str, dict[str, Any]] = {
    "T01": {t: {"key": ["joinkey"], "columns": {"joinkey": "bigint", "data": "bigint"}} for t in ("left", "right")},
    "T04": {"Users": {"columns": {"Country": "string", "Salary": "bigint"}}},
    "T07": {"t": {"key": ["id"], "columns": {"id": "bigint", "v": "bigint"}}},
    "W01": {"t": {"key": ["id"], "columns": {"id": "bigint", "ts": "timestamp"}}},
}
Row = list[Any]


def of_kind(kind: str) -> list[Any]:
    return [pytest.param(case, id=case["id"]) for case in VECTORS["cases"] if case["kind"] == kind]


def tables(fixture: str) -> dict[str, Any]:
    return {
        name: {"key": table["pk"], "columns": {column: TYPES[kind] for column, kind, _ in table["cols"]}}
        for name, table in VECTORS["fixtures"][fixture]["tables"].items()
    }


def numbers_as(row: Sequence[Any], types: Sequence[str]) -> Row:
    return [
        Decimal(str(v)) if kind.startswith("decimal") and v is not None else v
        for v, kind in zip(row, types, strict=True)
    ]


def changes(fixture: str) -> Iterator[list[tuple[Any, ...]]]:
    """For each operation what it changes: a match may hit several rows."""
    specs = tables(fixture)
    there: dict[str, list[Row]] = {name: [] for name in specs}
    for op, name, *given in VECTORS["fixtures"][fixture]["ops"]:
        columns = specs[name]["columns"]
        if op == "I":
            row = numbers_as(given[0], list(columns.values()))
            there[name].append(row)
            yield [("I", name, row)]
            continue
        hit = [row for row in there[name] if all(row[list(columns).index(c)] == v for c, v in given[0].items())]
        there[name] = [row for row in there[name] if row not in hit]
        if op == "D":
            yield [("D", name, row) for row in hit]
            continue
        new = [[given[1].get(c, v) for c, v in zip(columns, row, strict=True)] for row in hit]
        new = [numbers_as(row, list(columns.values())) for row in new]
        there[name] += new
        yield [("U", name, old, row) for old, row in zip(hit, new, strict=True)]


def plain(value: Any) -> Any:
    match value:
        case Decimal():
            return float(value)
        case datetime():
            return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    return value


def bag(rows: Sequence[Sequence[Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(map(plain, row)) for row in rows)


def test_all_that_is_about_views_is_here() -> None:
    kinds = Counter(case["kind"] for case in VECTORS["cases"])
    assert (kinds["sql"], kinds["op_trace"], kinds["window"], kinds["deviation"]) == (13, 3, 1, 0)


@pytest.mark.spark
@pytest.mark.parametrize("case", of_kind("sql"))
def test_a_query_that_is_there_before_its_rows(spark: SparkSession, case: dict[str, Any]) -> None:
    done = list(changes(case["fixture"]))
    stages = {stage["after_ops"]: stage["expected"] for stage in case.get("stages", ())}
    # in a few batches where there are no stages
    ends = sorted({*(stages or (len(done) // 3, len(done) - 1)), len(done)})
    with ViewHarness(tables(case["fixture"]), case["query"], spark=spark) as harness:
        for start, end in zip([0, *ends], ends, strict=False):
            harness.apply([change for one in done[start:end] for change in one])
            if end in stages:
                assert bag(harness.rows()) == bag(stages[end]), end
        assert bag(harness.rows()) == bag(case["expected"])


@pytest.mark.spark
@pytest.mark.parametrize("case", of_kind("sql"))
def test_a_query_that_comes_after_its_rows(spark: SparkSession, case: dict[str, Any]) -> None:
    with ViewHarness(tables(case["fixture"]), case["query"], spark=spark) as harness:
        harness.apply([change for one in changes(case["fixture"]) for change in one])
        assert bag(harness.rows()) == bag(case["expected"])


@pytest.mark.spark
@pytest.mark.parametrize("case", of_kind("op_trace"))
def test_what_each_change_changes(spark: SparkSession, case: dict[str, Any]) -> None:
    with ViewHarness(TRACED[case["id"]], case["query"], spark=spark) as harness:
        for step in case["steps"]:
            harness.apply([tuple(step["in"])])
            assert net(harness.changes()) == net(step["out"]), step


def net(changes: Sequence[Sequence[Any]]) -> dict[tuple[Any, ...], int]:
    """Rows that came to be and ceased to be, by how often."""
    weights: Counter[tuple[Any, ...]] = Counter()
    for op, *images in changes:
        if op in ("U", "D"):
            weights[tuple(map(plain, images[0]))] -= 1
        if op in ("U", "I"):
            weights[tuple(map(plain, images[-1]))] += 1
    return {row: weight for row, weight in weights.items() if weight}


@pytest.mark.spark
@pytest.mark.parametrize("case", of_kind("window"))
def test_windows_of_time(spark: SparkSession, case: dict[str, Any]) -> None:
    with ViewHarness(TRACED[case["id"]], case["query"], spark=spark) as harness:
        harness.apply([("I", "t", [number, datetime.fromisoformat(at)]) for number, at in case["input"]])
        assert bag(harness.rows()) == bag(case["expected"])
