"""Spark's own answer, once over everything and once over what `reads` leaves of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sql.cases import BOOKINGS, ORDERS, QUERIES, SCHEMAS

from headrace.core.filters import apply_all
from headrace.sql.input_reads import InputReads, input_reads
from headrace.sql.query import parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NAN = float("nan")
TEXTS = ("new", "done", "", "ride", "hour", "x", "1", "a'b", "d", None)
NUMBERS = (0.0, -0.0, 1.0, 2.5, 4.0, NAN, None)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def order(number: int, status: str | None, amount: float | None, qty: int | None, note: str | None) -> dict[str, Any]:
    even = number % 2 == 0
    return {
        "id": number,
        "status": status,
        "amount": amount,
        "qty": qty,
        "ts": NOON.replace(minute=number % 60),
        "driver": {"name": "ann" if even else None, "age": number} if number % 3 else None,
        "tags": [("k", note)] if even else None,
        "xs": [{"a": number, "b": qty}] * (number % 3) if even else None,
        "note": note,
        "odd.name": status,
        "Mixed": note,
        "ok": None if number % 5 == 0 else even,
    }


def booking(number: int, service: str | None, amount: float | None, note: str | None) -> dict[str, Any]:
    bts = NOON.replace(minute=number % 60, second=30)
    return {"id": number, "service": service, "amount": amount, "bts": bts, "note": note}


ORDER_ROWS = [
    order(
        i, TEXTS[i % len(TEXTS)], NUMBERS[i % len(NUMBERS)], (None, 0, 1, 2, 3)[i % 5], TEXTS[(i * 7 + 3) % len(TEXTS)]
    )
    for i in range(40)
]
BOOKING_ROWS = [
    booking(i * 2, TEXTS[i % len(TEXTS)], NUMBERS[(i * 3) % len(NUMBERS)], TEXTS[(i * 3 + 1) % len(TEXTS)])
    for i in range(16)
]


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """Tiny data and many queries: compiling each would take most of the time."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    return session


def left_over(rows: list[dict[str, Any]], schema: pa.Schema, used: InputReads) -> pa.Table:
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    mask = apply_all(used.filters, batch)
    kept = pa.Table.from_batches([batch if mask is None else batch.filter(mask)])
    return kept if used.columns is None else kept.select(used.columns or schema.names[:1])


def answer(spark: SparkSession, sql: str, tables: dict[str, pa.Table]) -> list[str]:
    for name, table in tables.items():
        spark.createDataFrame(table).createOrReplaceTempView(name)
    return sorted(map(repr, spark.sql(sql).collect()))


def check(spark: SparkSession, sql: str, rows: dict[str, list[dict[str, Any]]]) -> None:
    query = parse(sql)
    schemas = {name: SCHEMAS[name] for name in {table.lower() for table in query.tables}}
    whole = {name: pa.Table.from_pylist(rows[name], schema=schema) for name, schema in schemas.items()}
    used = input_reads(query, schemas, {"orders": "ts", "bookings": "bts"})
    part = {name: left_over(rows[name], schema, used[name]) for name, schema in schemas.items()}
    assert answer(spark, sql, part) == answer(spark, sql, whole)


@pytest.mark.parametrize("case", QUERIES)
def test_spark_gives_the_same_answer_over_what_is_read(session: SparkSession, case: str) -> None:
    check(session, QUERIES[case], {"orders": ORDER_ROWS, "bookings": BOOKING_ROWS})


CONDITIONS = (
    "{q}status = '{text}'", "{q}status <> '{text}'", "{q}status IN ('{text}', 'done')", "{q}qty > {int}",
    "{int} >= {q}qty", "{q}qty = {int}", "{q}amount < {float}", "{q}amount >= {float}", "{q}amount <> {float}",
    "{q}amount = {float}", "{q}id <= {int}", "{q}note IS NOT NULL", "NOT {q}qty = {int}", "{q}qty IS NULL",
    "({q}status = '{text}' OR {q}qty = {int})", "{q}amount IN ({float}, 0)", "{q}qty < {float}", "{q}amount > {int}",
)  # fmt: skip
SHAPES = (
    ("SELECT id, status, qty, amount FROM orders WHERE {where}", ""),
    ("SELECT o.status, count(*) AS n FROM orders o WHERE {where} GROUP BY o.status", "o."),
    ("SELECT o.id, b.service FROM orders o FULL JOIN bookings b ON o.id = b.id WHERE {where}", "o."),
    ("SELECT b.id, o.note FROM bookings b LEFT JOIN orders o ON o.id = b.id WHERE {where}", "o."),
    ("WITH c AS (SELECT * FROM orders WHERE {where}) SELECT a.id FROM c a LEFT JOIN c b ON a.id = b.id + 1", ""),
    ("SELECT id FROM bookings WHERE id NOT IN (SELECT id FROM orders WHERE {where})", ""),
)


@st.composite
def statements(draw: st.DrawFn) -> str:
    shape, qualifier = draw(st.sampled_from(SHAPES))
    chosen = draw(st.lists(st.sampled_from(CONDITIONS), min_size=1, max_size=3))
    literals = {
        "text": draw(st.sampled_from(["new", "", "x", "1"])),
        "int": draw(st.sampled_from(["0", "1", "-1", "3", "2147483648"])),
        "float": draw(st.sampled_from(["0.0", "-0.0", "2.5", "1", "1e0", "0.1"])),
    }
    return shape.format(where=" AND ".join(one.format(q=qualifier, **literals) for one in chosen))


order_rows = st.lists(
    st.tuples(
        st.sampled_from(TEXTS), st.sampled_from(NUMBERS), st.sampled_from((None, 0, 1, 2, 3)), st.sampled_from(TEXTS)
    ),
    max_size=12,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sql=statements(), values=order_rows)
def test_no_row_that_spark_keeps_is_dropped_early(session: SparkSession, sql: str, values: list[Any]) -> None:
    orders = [order(number, *row) for number, row in enumerate(values)]
    check(session, sql, {"orders": orders, "bookings": BOOKING_ROWS})


def test_the_schemas_of_the_cases_are_what_spark_makes_of_them(spark: SparkSession) -> None:
    for schema in (ORDERS, BOOKINGS):
        assert spark.createDataFrame(schema.empty_table()).columns == schema.names
