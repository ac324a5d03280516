"""Each rule by itself: after every batch the kept result equals Spark's own answer, in values and in types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.errors import ProjectError
from headrace.testing.views import ViewHarness
from headrace.views.algebra import (
    Aggregate,
    Call,
    Equal,
    Filter,
    Join,
    Match,
    Operator,
    Project,
    Ranked,
    Scan,
    UnionAll,
    View,
)
from headrace.views.plain import plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def call(name: str, sql: str, argument: str | None = None, **more: Any) -> Call:
    return Call(name, sql, sql.partition("(")[0], argument, **more)


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
    [],
    [
        ("U", "orders", order(1, 1, "10.00"), order(1, 2, "10.00")),
        ("I", "customers", (9, "north", None)),
        ("I", "orders", order(6, 9, "0.10")),
        ("D", "orders", order(3, None, None, -0.0)),
        ("I", "orders", order(7, None, "1.00")),
    ],
    [("U", "customers", (1, "north", 1), (1, "south", 1)), ("U", "customers", (9, "north", None), (9, None, 3))],
    [("D", "customers", (2, None, 2)), ("D", "orders", order(6, 9, "0.10")), ("I", "orders", order(8, 1, "2.50"))],
    [
        ("D", "orders", order(1, 2, "10.00")),
        ("D", "orders", order(2, 1, "-3.33", float("nan"))),
        ("D", "orders", order(8, 1, "2.50")),
        ("I", "customers", (2, "west", 2)),
    ],
    [("U", "orders", order(7, None, "1.00"), order(7, None, None)), ("I", "orders", order(9, None, "4.00"))],
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
NARROW = Project(ORDERS, (("k", "`o_customer`"), ("half", "`o_amount` / 2")))
TWICE = Project(ORDERS, (("k", "`o_customer` % 2"), ("t", "CAST(1 AS BIGINT)")))
IDS = Project(CUSTOMERS, (("k", "`c_id`"), ("t", "CAST(2 AS INT)")))
TOTALS = Aggregate(ORDERS, ("o_customer",), (call("n", "count(*)"), call("s", "sum(`o_amount`)", "`o_amount`")))
RANKS = (("rank", "row_number() OVER (PARTITION BY `o_customer` ORDER BY `o_amount` DESC, `o_id`)"),)
LEFT_JOIN = Match("left", ORDERS, CUSTOMERS, (Equal("o_customer", "c_id"),))

SHAPES: dict[str, Operator] = {
    "scan": ORDERS,
    "project": NARROW,
    "explode": Project(ORDERS, (("o_id", "`o_id`"), ("tag", "explode(`o_tags`)"))),
    "filter": Filter(ORDERS, "`o_amount` > 1 OR `o_weight` IS NULL"),
    "union": UnionAll((TWICE, IDS)),
    "join": BOTH,
    "join with a condition": Join((ORDERS, CUSTOMERS), (Equal("o_customer", "c_id"),), "`o_amount` > `c_level`"),
    "product": Join((NARROW, Project(CUSTOMERS, (("r", "`c_region`"),))), (), "`half` IS NOT NULL"),
    "three tables": Join(
        (ORDERS, CUSTOMERS, Project(ORDERS, (("p_customer", "`o_customer`"), ("p_id", "`o_id`")))),
        (Equal("o_customer", "c_id"), Equal("c_id", "p_customer")),
    ),
    "null-safe join": Join(
        (NARROW, Project(CUSTOMERS, (("r", "`c_region`"), ("level", "CAST(`c_level` AS INT)")))),
        (Equal("level", "k", nulls=True),),
    ),
    "sums": Aggregate(ORDERS, ("o_customer",), SUMS),
    "sums of all": Aggregate(ORDERS, (), SUMS),
    "sums over a join": Aggregate(BOTH, ("c_region",), SUMS),
    "distinct": Aggregate(Project(ORDERS, (("w", "`o_weight`"), ("t", "`o_tags`"))), ("w", "t"), ()),
    "having": Filter(TOTALS, "`n` > 1"),
    "project of groups": Project(TOTALS, (("n", "`n`"),)),
    "counts of counts": Aggregate(TOTALS, ("n",), (call("m", "count(*)"),)),
    "join of groups": Join((TOTALS, CUSTOMERS), (Equal("o_customer", "c_id"),)),
    "count of nothing": Aggregate(Scan("orders", ()), (), (call("n", "count(*)"),)),
    "others": Aggregate(ORDERS, ("o_customer",), OTHERS),
    "others of all": Aggregate(ORDERS, (), OTHERS),
    "others over a join": Aggregate(BOTH, ("c_region",), OTHERS),
    "others over an expression": Aggregate(
        Project(BOTH, (("odd", "`o_id` % 2"), ("o_weight", "`o_weight`"))), ("odd",), (call("m", "max(`o_weight`)"),)
    ),
    "highest total": Aggregate(TOTALS, ("n",), (call("m", "max(`s`)"),)),
    **{
        f"{kind} match": Match(kind, ORDERS, CUSTOMERS, (Equal("o_customer", "c_id"),))
        for kind in ("left", "right", "full", "semi", "anti")
    },
    "match with a condition": Match("left", ORDERS, CUSTOMERS, (Equal("o_customer", "c_id"),), "`o_amount` > `c_level`"),
    "match of nulls": Match("full", Project(ORDERS, (("x", "`o_customer`"),)), IDS, (Equal("x", "k", nulls=True),)),
    "match of duplicates": Match("left", IDS, Project(ORDERS, (("x", "`o_customer`"),)), (Equal("k", "x"),)),
    "match of a join": Match(
        "left", BOTH, Project(CUSTOMERS, (("d_id", "`c_id` + 1"), ("d", "`c_region`"))), (Equal("c_id", "d_id"),)
    ),
    "match of a match": Match(
        "left", LEFT_JOIN, Project(CUSTOMERS, (("d", "`c_region`"), ("e", "`c_id`"))), (Equal("c_region", "d"),)
    ),
    "sums over a match": Aggregate(LEFT_JOIN, ("c_region",), SUMS),
    "others over a match": Aggregate(LEFT_JOIN, ("c_region",), OTHERS),
    "ranked": Ranked(ORDERS, ("o_customer",), RANKS),
    "best of each": Filter(Ranked(ORDERS, ("o_customer",), RANKS), "`rank` <= 1"),
    "limit": Filter(Ranked(ORDERS, (), (("rank", "row_number() OVER (ORDER BY `o_id` DESC)"),)), "`rank` <= 2"),
    "ranked groups": Ranked(TOTALS, (), (("rank", "rank() OVER (ORDER BY `s` DESC NULLS LAST)"),)),
}


def harness(spark: SparkSession, root: Operator, key: tuple[str, ...] = ()) -> ViewHarness:
    view = View(root, root.columns, key)
    return ViewHarness(TABLES, plain(root, lambda name: f"`{name}`"), spark, view=view)


@pytest.fixture
def kept(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[ViewHarness]:
    with harness(spark, SHAPES[request.param]) as made:
        yield made


@pytest.mark.parametrize("kept", SHAPES, indirect=True)
def test_kept_equals_batch_after_every_batch(kept: ViewHarness) -> None:
    for number, batch in enumerate(BATCHES):
        kept.apply(batch)
        assert Counter(kept.rows()) == Counter(kept.batch_rows()), f"batch {number}"
        if number == 3:
            kept.restart()
