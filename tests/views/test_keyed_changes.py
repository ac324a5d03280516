"""Weighted rows as changes by key: the driver and Spark say the same, in the same types."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headrace.core.endpoints import OLD, OP, Op
from headrace.core.errors import ProjectError
from headrace.core.records import spark_schema
from headrace.core.schema import from_ddl, to_ddl
from headrace.core.tables import WEIGHT
from headrace.views.maintain.keyed_changes import KeyedChanges, changes_by_key, keyed_table
from headrace.views.maintain.result_delta import ResultDelta
from headrace.views.maintain.runner import local_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DDL = (
    "id bigint, day date, amount decimal(10,2), at timestamp, name string, big binary, tags array<string>, "
    f"place struct<x:double,y:array<int>>, {WEIGHT} bigint"
)
ROWS = [
    (1, None, Decimal("1.50"), None, "new", b"x", ["a", None], {"x": 1.0, "y": [1]}, 1),
    (1, None, Decimal("2.50"), None, "old", None, None, {"x": None, "y": None}, -1),
    (2, None, None, None, "came", b"", [], None, 1),
    (None, None, Decimal("0.00"), None, "went", None, ["c"], None, -1),
]


def table(rows: list[tuple[Any, ...]], ddl: str = DDL) -> pa.Table:
    schema = from_ddl(ddl)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def said(changes: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(map(str, changes.to_pylist()))  # type: ignore[arg-type]


def test_one_change_per_key() -> None:
    found = {row["id"]: row for row in keyed_table(table(ROWS), ["id"]).to_pylist()}
    assert {key: Op(row[OP]) for key, row in found.items()} == {1: Op.UPDATE, 2: Op.INSERT, None: Op.DELETE}
    assert (found[1]["name"], found[1][OLD]["name"]) == ("new", "old")
    assert found[2][OLD] is None
    assert found[None][OLD]["name"] == found[None]["name"] == "went"


@pytest.mark.parametrize("weights", [(1, 1), (-1, -1), (2, -1)])
def test_two_rows_of_one_key_are_told(weights: tuple[int, int]) -> None:
    rows = table([(7, "a", weights[0]), (7, "b", weights[1])], f"id bigint, name string, {WEIGHT} bigint")
    with pytest.raises(ProjectError) as error:
        keyed_table(rows, ["id"])
    assert error.value.code == "view-key"
    assert '{"id":7}' in str(error.value)


def test_keys_that_python_compares_otherwise_are_left_to_spark() -> None:
    def unused() -> Any:
        raise AssertionError("nobody asked")

    of_doubles = table([(1.0, 1)], f"id double, {WEIGHT} bigint")
    assert KeyedChanges(ResultDelta(of_doubles, unused), ["id"]).collected is None
    assert KeyedChanges(ResultDelta(table(ROWS), unused), ["id"]).collected is not None


@pytest.mark.spark
@pytest.mark.parametrize("rows", [ROWS, []], ids=["some", "none"])
def test_spark_says_the_same(spark: SparkSession, rows: list[tuple[Any, ...]]) -> None:
    few = table(rows)
    with changes_by_key(ResultDelta(few, lambda: local_rows(spark, few, to_ddl(few.schema))), ["id"]) as changes:
        assert changes.collected is not None
        assert spark_schema(changes.rows) == changes.collected.schema
        assert said(changes.rows.toArrow()) == said(changes.collected)
