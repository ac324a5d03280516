"""Each rule by itself: after every batch the kept result equals Spark's own answer, in values and in types."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headrace.core.errors import ProjectError
from headrace.core.tables import WEIGHT
from headrace.testing.views import ViewHarness
from headrace.views.algebra.operators import (
    Aggregate,
    AggregateCall,
    Equal,
    Join,
    Match,
    Operator,
    Projection,
    Ranked,
    Scan,
    Selection,
    UnionAll,
    ViewPlan,
)
from headrace.views.maintain import incremental_view, relations, runner, state
from headrace.views.maintain.batch_query import batch_sql
from headrace.views.maintain.incremental_view import IncrementalView, TableDelta
from headrace.views.maintain.state import ViewState
from headrace.views.maintain.sums import COUNT, CallAsSums, Sum, Sums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TABLES: dict[str, dict[str, Any]] = {
    "orders": {
        "key": ["id"],
        "columns": {
            "id": "bigint",
            "customer": "int",
            "amount": "decimal(10,2)",
            "weight": "double",
            "tags": "array<string>",
        },
    },
    "customers": {"key": ["id"], "columns": {"id": "int", "region": "string", "level": "smallint"}},
}
ORDERS = Scan("orders", tuple((f"o_{name}", name) for name in TABLES["orders"]["columns"]))
CUSTOMERS = Scan("customers", tuple((f"c_{name}", name) for name in TABLES["customers"]["columns"]))
BOTH = Join((ORDERS, CUSTOMERS), (Equal("o_customer", "c_id"),))


def call(name: str, sql: str, argument: str | None = None, **more: Any) -> AggregateCall:
    return AggregateCall(name, sql, sql.partition("(")[0], argument, **more)


def order(number: int, customer: int | None, amount: str | None, weight: float | None = 1.5) -> tuple[Any, ...]:
    tags = None if number % 3 == 0 else [f"t{number % 2}", None]
    return (number, customer, None if amount is None else Decimal(amount), weight, tags)


BATCHES: list[list[tuple[Any, ...]]] = [
    [
        ("I", "customers", (1, "north", 1)),
        ("I", "customers", (2, None, 2)),
        ("I", "orders", order(1, 1, "10.00")),
        ("I", "orders", order(2, 1, "-3.33", float("nan"))),
        ("I", "orders", order(3, None, None, -0.0)),
        ("I", "orders", order(4, 9, "7.77", 0.0)),
        ("I", "orders", order(5, 2, "0.01", None)),
    ],
    [
        ("U", "orders", order(1, 1, "10.00"), order(1, 2, "10.00")),
        ("I", "customers", (9, "north", None)),
        ("U", "customers", (1, "north", 1), (1, "south", 1)),
        ("D", "orders", order(3, None, None, -0.0)),
        ("I", "orders", order(7, None, "1.00")),
    ],
    [("D", "customers", (2, None, 2)), ("U", "customers", (9, "north", None), (9, None, 3))],
    [
        ("D", "orders", order(1, 2, "10.00")),
        ("D", "orders", order(2, 1, "-3.33", float("nan"))),
        ("U", "orders", order(7, None, "1.00"), order(7, None, None)),
        ("I", "customers", (2, "west", 2)),
    ],
]

SUMS = (
    call("n", "count(*)"),
    call("nw", "count(`o_weight`)", "`o_weight`"),
    call("s", "sum(`o_amount`)", "`o_amount`"),
    call("a", "avg(`o_amount`)", "`o_amount`"),
    call("si", "sum(`o_customer`)", "`o_customer`"),
    call("ai", "avg(`o_id`)", "`o_id`"),
    call("f", "sum(`o_amount`) FILTER (WHERE `o_id` > 2)", "`o_amount`", condition="`o_id` > 2"),
)
OTHERS = (
    call("low", "min(`o_weight`)"),
    call("d", "count(DISTINCT `o_customer`)", "`o_customer`", distinct=True),
    call("w", "sum(`o_weight`)", "`o_weight`"),
    call("all", "array_sort(collect_list(`o_amount`))"),
)
NARROW = Projection(ORDERS, (("k", "`o_customer`"), ("half", "`o_amount` / 2")))
TWICE = Projection(ORDERS, (("k", "`o_customer` % 2"), ("t", "CAST(1 AS BIGINT)")))
IDS = Projection(CUSTOMERS, (("k", "`c_id`"), ("t", "CAST(2 AS INT)")))
TOTALS = Aggregate(ORDERS, ("o_customer",), (call("n", "count(*)"), call("s", "sum(`o_amount`)", "`o_amount`")))
RANKS = (("rank", "row_number() OVER (PARTITION BY `o_customer` ORDER BY `o_amount` DESC, `o_id`)"),)
LEFT_JOIN = Match("left", ORDERS, CUSTOMERS, (Equal("o_customer", "c_id"),))

SHAPES: dict[str, Operator] = {
    "explode": Projection(Selection(ORDERS, "`o_id` <> 4"), (("o_id", "`o_id`"), ("tag", "explode(`o_tags`)"))),
    "union": UnionAll((TWICE, IDS)),
    "join with a condition": Join((ORDERS, CUSTOMERS), (Equal("o_customer", "c_id"),), "`o_amount` > `c_level`"),
    "three tables": Join(
        (ORDERS, CUSTOMERS, Projection(ORDERS, (("p_customer", "`o_customer`"), ("p_id", "`o_id`")))),
        (Equal("o_customer", "c_id"), Equal("c_id", "p_customer")),
    ),
    "null-safe join": Join(
        (NARROW, Projection(CUSTOMERS, (("r", "`c_region`"), ("level", "CAST(`c_level` AS INT)")))),
        (Equal("level", "k", nulls=True),),
    ),
    "sums of all": Aggregate(ORDERS, (), SUMS),
    "sums over a join": Aggregate(BOTH, ("c_region",), SUMS),
    "distinct": Aggregate(Projection(ORDERS, (("w", "`o_weight`"), ("t", "`o_tags`"))), ("w", "t"), ()),
    "having, without the group": Projection(Selection(TOTALS, "`n` > 1"), (("n", "`n`"),)),
    "join of groups": Join((TOTALS, CUSTOMERS), (Equal("o_customer", "c_id"),)),
    "count of nothing": Aggregate(Scan("orders", ()), (), (call("n", "count(*)"),)),
    "others of all": Aggregate(ORDERS, (), OTHERS),
    "others over a join": Aggregate(BOTH, ("c_region",), OTHERS),
    "full match": Match("full", ORDERS, CUSTOMERS, (Equal("o_customer", "c_id"),)),
    "anti match": Match("anti", ORDERS, CUSTOMERS, (Equal("o_customer", "c_id"),), "`o_amount` > `c_level`"),
    "match of nulls": Match("full", Projection(ORDERS, (("x", "`o_customer`"),)), IDS, (Equal("x", "k", nulls=True),)),
    "match of a match": Match(
        "left", LEFT_JOIN, Projection(CUSTOMERS, (("d", "`c_region`"), ("e", "`c_id`"))), (Equal("c_region", "d"),)
    ),
    "others over a match": Aggregate(LEFT_JOIN, ("c_region",), OTHERS),
    "best of each": Selection(Ranked(ORDERS, ("o_customer",), RANKS), "`rank` <= 1"),
    "limit": Selection(Ranked(ORDERS, (), (("rank", "row_number() OVER (ORDER BY `o_id` DESC)"),)), "`rank` <= 2"),
}


def harness(spark: SparkSession, root: Operator, key: tuple[str, ...] = ()) -> ViewHarness:
    view = ViewPlan(root, root.columns, key)
    return ViewHarness(TABLES, batch_sql(root, lambda name: f"`{name}`"), spark, view=view)


def check(view: ViewHarness) -> None:
    assert Counter(view.rows()) == Counter(view.batch_rows())


@pytest.mark.parametrize("name", SHAPES)
def test_kept_equals_batch_after_every_batch(spark: SparkSession, name: str) -> None:
    with harness(spark, SHAPES[name]) as view:
        for batch in BATCHES:
            view.apply(batch)
            check(view)


def test_a_new_process_goes_on_and_a_batch_that_runs_again_gives_the_same(spark: SparkSession) -> None:
    with harness(spark, SHAPES["others over a join"], ("c_region",)) as view:
        view.apply(BATCHES[0])
        view.restart()
        view.apply(BATCHES[1])
        emitted = Counter(map(str, view.changes()))
        check(view)
        view.again()
        assert Counter(map(str, view.changes())) == emitted
        view.restart()
        view.again()
        assert Counter(map(str, view.changes())) == emitted
        view.apply(BATCHES[2])
        check(view)


def test_changes_are_told_by_key(spark: SparkSession) -> None:
    root = Aggregate(ORDERS, ("o_customer",), (call("n", "count(*)"),))
    with harness(spark, root, ("o_customer",)) as view:
        view.apply([("I", "orders", order(1, 1, "1")), ("I", "orders", order(2, None, "1"))])
        assert sorted(map(str, view.changes())) == ["('I', (1, 1))", "('I', (None, 1))"]
        view.apply([("U", "orders", order(1, 1, "1"), order(1, None, "1")), ("I", "orders", order(3, 3, "1"))])
        assert sorted(map(str, view.changes())) == ["('D', (1, 1))", "('I', (3, 1))", "('U', (None, 1), (None, 2))"]
        view.apply([("U", "orders", order(3, 3, "1"), order(3, 3, "2"))])
        assert view.changes() == []


def test_two_rows_of_one_key_are_refused(spark: SparkSession) -> None:
    with harness(spark, ORDERS, ("o_customer",)) as view, pytest.raises(ProjectError) as refused:
        view.apply([("I", "orders", order(1, 5, "1")), ("I", "orders", order(2, 5, "1"))])
    assert refused.value.code == "view-key"
    assert '{"o_customer":5}' in refused.value.message


def test_rows_without_a_key_get_one_that_stays(spark: SparkSession, tmp_path: Path) -> None:
    plan = ViewPlan(Projection(ORDERS, (("c", "`o_customer`"),)), ("customer",), ())
    with harness(spark, ORDERS) as tables:
        view = IncrementalView(tables.spark, plan, tables.tables, ViewState(tmp_path), identified=True)
        there: dict[str, Any] = {}
        for number, (batch, rows) in enumerate(
            (
                ([("I", "orders", order(n, customer, "1")) for n, customer in enumerate((7, 7, None))], [7, 7, None]),
                ([("D", "orders", order(0, 7, "1")), ("I", "orders", order(5, 8, "1"))], [7, None, 8]),
                ([("I", "orders", order(6, 7, "1"))], [7, 7, None, 8]),
            )
        ):
            for name, customer, weight in view.apply(number, tables.inputs(batch)).rows():
                assert (name in there) == (weight < 0)
                there.pop(name) if weight < 0 else there.update({name: customer})
            assert sorted(map(str, there.values())) == sorted(map(str, rows))
    assert view.schema.names == ["_id", "customer"]


def test_many_changes_are_written_by_spark_and_added_up(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (incremental_view, relations):
        monkeypatch.setattr(module, "SMALL_BATCH", 1)
    monkeypatch.setattr(incremental_view, "_READ_ALL_GROUPS", 1)
    monkeypatch.setattr(state, "_MIN_DELTA_ROWS", 1)
    for name in ("sums over a join", "others over a match"):
        with harness(spark, SHAPES[name]) as view:
            for batch in BATCHES[:3]:
                view.apply(batch)
                check(view)
            assert all(held.chunks <= 3 for held in view.maintained.state.sizes().values())


@pytest.mark.parametrize("rows", [1_000, 0])
def test_one_task_has_it_all_when_tables_are_small(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    plans: list[str] = []
    right = runner.collect

    def noted(frame: DataFrame) -> pa.Table | None:
        plans.append(frame._jdf.queryExecution().executedPlan().toString())
        return right(frame)

    monkeypatch.setattr(relations, "_ONE_TASK", rows)
    monkeypatch.setattr(runner, "collect", noted)
    with harness(spark, SHAPES["sums over a join"]) as view:
        for batch in BATCHES[:3]:
            view.apply(batch)
            check(view)
    assert len(plans) == 3, "one query a batch"
    assert ("Exchange" in plans[-1]) == (rows == 0)


def test_a_table_is_looked_for_again_only_when_it_changed(spark: SparkSession) -> None:
    asked: list[str] = []

    def noted(name: str, one: TableDelta) -> TableDelta:
        def old() -> DataFrame:
            asked.append(name)
            return one.old()

        return replace(one, old=old)

    with harness(spark, SHAPES["sums over a join"]) as view:
        result: Counter[tuple[Any, ...]] = Counter()
        looked = []
        for number, change in enumerate(
            (
                [("I", "customers", (1, "n", 1)), ("I", "orders", order(1, 1, "1"))],
                [("I", "orders", order(2, 1, "2"))],
                [("I", "orders", order(3, 1, "3"))],
                [("U", "customers", (1, "n", 1), (1, "s", 1))],
                [("I", "orders", order(4, 1, "4"))],
            )
        ):
            inputs = {name: noted(name, one) for name, one in view.inputs(change).items()}
            for *row, weight in view.maintained.apply(number, inputs).rows():
                result[tuple(row)] += weight
            looked.append([*asked])
            asked.clear()
        assert looked == [[], ["customers"], [], ["orders"], ["customers"]]
        assert +result == Counter(view.batch_rows())


def test_what_several_calls_add_up_is_kept_once() -> None:
    def view(name: str, added: str) -> CallAsSums:
        one = Sum(name, added, "BIGINT")
        return CallAsSums((one,), lambda value: value(one))

    both = Sums((view("__c0", WEIGHT), view("__c1", "a"), view("__c2", "b"), view("__c3", "a")))
    assert [one.name for one in both.columns] == [COUNT, "__c1", "__c2"]
    assert both.results(lambda one: one.name) == [COUNT, "__c1", "__c2", "__c1"]


def test_a_view_with_maps_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ProjectError) as refused:
        harness(spark, Projection(ORDERS, (("m", "map('a', `o_id`)"),)))
    assert refused.value.code == "view-unsupported"
    assert "'m' is a map" in refused.value.message
