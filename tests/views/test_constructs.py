"""Constructs of SQL from the text to the kept rows: after every batch they are what Spark says to the same query."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import ArithmeticException

from headrace.core.errors import ProjectError
from headrace.core.tables import TableShape
from headrace.testing.views import ViewHarness
from headrace.views.compile.normalise import normalise

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TABLES: dict[str, dict[str, Any]] = {
    "orders": {
        "key": ["id"],
        "columns": {
            "id": "bigint",
            "customer": "bigint",
            "amount": "bigint",
            "ts": "timestamp",
            "tags": "array<string>",
        },
    },
    "customers": {"key": ["id"], "columns": {"id": "bigint", "region": "string"}},
    "bag": {"columns": {"a": "bigint"}},
}


def order(number: int, customer: int | None, amount: int | None, minute: int, *tags: str) -> tuple[Any, ...]:
    return (number, customer, amount, datetime(2020, 1, 1, 0, minute, tzinfo=UTC), list(tags))


FIRST = [
    *(("I", "customers", row) for row in [(1, "EU"), (2, "US"), (3, None)]),
    *(("I", "orders", row) for row in [order(1, 1, 5, 1, "x", "y"), order(2, 1, 7, 4), order(3, None, 2, 12, "x")]),
    ("I", "orders", order(4, 9, None, 14, "y", "y")),
    ("I", "bag", (1,)),
]
SECOND = [
    ("D", "bag", (1,)),
    ("I", "bag", (None,)),
    ("U", "orders", order(2, 1, 7, 4), order(2, 2, 8, 31, "z")),
    ("D", "orders", order(3, None, 2, 12, "x")),
    ("U", "customers", (3, None), (3, "EU")),
    ("D", "customers", (1, "EU")),
]
THIRD = [("D", "bag", (None,)), ("I", "orders", order(5, None, 1, 2)), ("I", "customers", (4, "US"))]

CONSTRUCTS = {
    "not in": "SELECT id FROM orders WHERE customer NOT IN (SELECT a FROM bag)",
    "marks": "SELECT id, EXISTS (SELECT 1 FROM bag WHERE a = customer) AS e FROM orders "
    "WHERE amount > 5 OR customer IN (SELECT id FROM customers WHERE region = 'EU')",
    "values": "SELECT c.id, (SELECT count(*) FROM orders o WHERE o.customer = c.id) AS n, "
    "(SELECT max(amount) FROM orders) AS most FROM customers c",
    "rollup": "SELECT region, customer, sum(amount), grouping_id() FROM orders o LEFT JOIN customers c "
    "ON o.customer = c.id GROUP BY ROLLUP (region, customer)",
    "using": "SELECT id, region, amount FROM orders FULL JOIN customers USING (id) ORDER BY id DESC LIMIT 3",
    "windows": "SELECT window.start, tag, count(*) FROM orders LATERAL VIEW OUTER explode(tags) AS tag "
    "GROUP BY window(ts, '10 minutes', '5 minutes'), tag",
}


def check(harness: ViewHarness) -> None:
    with harness:
        for batch in (FIRST, SECOND, THIRD):
            harness.apply(batch)
            assert sorted(map(repr, harness.rows())) == sorted(map(repr, harness.batch_rows()))


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_the_kept_rows_are_those_of_the_query(name: str, spark: SparkSession) -> None:
    check(ViewHarness(TABLES, CONSTRUCTS[name], spark=spark))


def test_windows_and_ttl_in_from(spark: SparkSession) -> None:
    """Spark does not know them, so it is asked for what they mean."""
    meaning = (
        "SELECT id, window(ts, '5 minutes').end AS window_end FROM orders "
        "WHERE ts >= (SELECT max(ts) FROM orders) - INTERVAL '20 MINUTES'"
    )
    view = normalise("SELECT id, window_end FROM TTL(TUMBLE(orders, ts, '5 MINUTES'), ts, '20 MINUTES')", shapes(spark))
    assert view.key == ("id", "window_end")
    check(ViewHarness(TABLES, meaning, spark=spark, view=view))


def test_columns_of_unlike_types_match_as_spark_compares_them(spark: SparkSession) -> None:
    """'1' and '01' both equal 1: a change of one row must not forget the other that matches the same. The fields of a
    struct have the names of the text."""
    tables = {
        "codes": {"key": ["id"], "columns": {"id": "bigint", "code": "string"}},
        "customers": TABLES["customers"],
    }
    sql = "SELECT to_json(struct(codes.id, c.ID, c.region)) AS j FROM codes FULL JOIN customers c ON code = c.id"
    with ViewHarness(tables, sql, spark=spark) as harness:
        for batch in (
            [("I", "customers", (1, "EU")), ("I", "customers", (2, "US")), ("I", "codes", (1, "1"))],
            [("I", "codes", (2, "01"))],
            [("D", "codes", (1, "1"))],
            [("D", "codes", (2, "01"))],
        ):
            harness.apply(batch)
            assert sorted(harness.rows()) == sorted(harness.batch_rows())
    semi = "SELECT id FROM customers WHERE id IN (SELECT code FROM codes)"
    with ViewHarness(tables, semi, spark=spark) as harness:
        harness.apply([("I", "customers", (1, "EU")), ("I", "codes", (1, "1")), ("I", "codes", (2, "01"))])
        harness.apply([("D", "codes", (2, "01"))])
        assert (harness.rows(), harness.changes()) == ([(1,)], [])


def test_of_a_batch_that_fails_nothing_stays(spark: SparkSession) -> None:
    with ViewHarness(TABLES, "SELECT sum(10 DIV a) AS s FROM bag", spark=spark) as harness:
        harness.apply([("I", "bag", (5,))])
        with pytest.raises(ArithmeticException):
            harness.apply([("I", "bag", (2,)), ("I", "bag", (0,))])
        with pytest.raises(ProjectError):
            harness.apply([("I", "bag", (2,)), ("D", "bag", (7,))])
        harness.apply([("I", "bag", (1,))])
        assert harness.rows() == harness.batch_rows() == [(12,)]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("ts > 'now' AND tags[0] <> 'today'", "'now' as a time in a view: it depends on the clock"),
        ("no_such(id)", "Spark refuses the query: [UNRESOLVED_ROUTINE] Cannot resolve routine `no_such`"),
        ("amount AND true", "Spark refuses the query: [DATATYPE_MISMATCH"),
        (":p", "Spark refuses the query: [UNBOUND_SQL_PARAMETER]"),
        ("max(id ORDER BY id) OVER ()", "Spark refuses the query: [PARSE_SYNTAX_ERROR]"),
        ("parse_json(tags[0])", "a column of the view has a type that cannot be stored: 'variant'"),
    ],
)
def test_what_only_spark_knows_is_refused_before_any_row(item: str, message: str, spark: SparkSession) -> None:
    with pytest.raises(ProjectError) as refused:
        ViewHarness(TABLES, f"SELECT id, {item} AS x FROM orders", spark=spark)
    assert refused.value.code == "view-unsupported"
    assert refused.value.message.startswith(message)
    assert refused.value.hint


def shapes(spark: SparkSession) -> dict[str, TableShape]:
    with ViewHarness(TABLES, "SELECT a FROM bag", spark=spark) as harness:
        return dict(harness.tables)
