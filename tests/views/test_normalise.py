"""SQL as operators, construct by construct; what is refused, and why."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.views.outlines import blocks, outline

from headrace.core.errors import ProjectError
from headrace.core.tables import TableShape
from headrace.sql.errors import SqlError
from headrace.views.algebra.operators import Aggregate, AggregateCall, Operator, Projection, Selection
from headrace.views.compile.normalise import normalise

TABLES = {
    "orders": TableShape(
        pa.schema(
            [
                ("id", pa.int64()),
                ("customer", pa.int64()),
                ("amount", pa.float64()),
                ("status", pa.string()),
                ("ts", pa.timestamp("us", tz="UTC")),
                ("tags", pa.list_(pa.string())),
                ("place", pa.struct([("city", pa.string())])),
            ]
        ),
        ("id",),
    ),
    "customers": TableShape(pa.schema([("id", pa.int64()), ("name", pa.string()), ("region", pa.string())]), ("id",)),
    "bag": TableShape(pa.schema([("a", pa.int64()), ("b", pa.string())])),
}
VIEWS = {"paid": "SELECT id, customer, amount FROM orders WHERE status = 'paid'", "Circle": "SELECT * FROM circle"}


@pytest.mark.parametrize(("sql", "expected", "key"), blocks("constructs.txt"))
def test_each_construct_becomes_operators(sql: str, expected: str, key: str) -> None:
    view = normalise(sql, TABLES, VIEWS)
    assert f"-> {outline(view.root)}" == expected
    assert ["key", *view.key] == key.split()
    assert len(view.columns) == len(view.root.columns)


@pytest.mark.parametrize(("sql", "expected"), blocks("refusals.txt"))
def test_what_cannot_be_kept_is_refused_with_the_reason(sql: str, expected: str) -> None:
    with pytest.raises(ProjectError) as refused:
        normalise(sql, TABLES, VIEWS)
    assert f"!! {refused.value.code}: {refused.value.message}" == expected
    assert refused.value.hint


def calls(sql: str) -> list[AggregateCall]:
    op: Operator = normalise(sql, TABLES).root
    while not isinstance(op, Aggregate):
        assert isinstance(op, Projection | Selection), op
        op = op.input
    return list(op.calls)


def test_the_parts_of_calls_that_matter_to_how_they_are_kept() -> None:
    found = calls(
        "SELECT count(*), count(amount), sum(DISTINCT amount), avg(amount) FILTER (WHERE customer > 1), max(id), "
        "count(DISTINCT id, status), mean(amount) FROM orders"
    )
    argument = found[1].argument
    assert [(one.function, one.argument is not None, one.distinct) for one in found] == [
        ("count", False, False),
        ("count", True, False),
        ("sum", True, True),
        ("avg", True, False),
        ("max", False, False),
        ("count", False, True),
        ("avg", True, False),
    ]
    assert found[1].sql == f"count({argument})"
    condition = found[3].condition
    assert condition is not None
    assert found[3].sql == f"avg({argument}) FILTER(WHERE {condition})"


def test_the_same_call_is_made_once() -> None:
    assert len(calls("SELECT sum(amount), sum(Amount) + 1, SUM(orders.amount) FROM orders HAVING sum(amount) > 1")) == 1


def test_names_of_the_result() -> None:
    view = normalise("SELECT l.id, r.ID, l.id AS id_1, count(*) OVER (), l.id + 1 FROM orders l, orders r", TABLES)
    assert view.columns == ("id", "ID_2", "id_1", "count(*) OVER ()", "(id + 1)")


def test_a_column_that_is_selected_twice_is_there_twice() -> None:
    view = normalise("SELECT id, id FROM customers", TABLES)
    assert view.columns == ("id", "id_1")
    assert len(set(view.root.columns)) == 2
    assert view.key == ("id",)


def test_a_declared_key_is_taken_and_has_to_be_there() -> None:
    assert normalise("SELECT b, a FROM bag", TABLES, key=["A"]).key == ("a",)
    with pytest.raises(ProjectError) as refused:
        normalise("SELECT b, a FROM bag", TABLES, key=["c"])
    assert refused.value.code == "unknown-column"


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("SELECT name FROM customers", ()),
        ("SELECT c.name, o.id FROM orders o JOIN customers c ON o.customer = c.id", ("id",)),
        ("SELECT c.id AS c, o.id AS o FROM orders o JOIN customers c ON o.status = c.name", ("c", "o")),
        ("SELECT c.id AS c, o.id AS o FROM orders o LEFT JOIN customers c ON o.status = c.name", ("c", "o")),
        ("SELECT c.id AS c, o.id AS o FROM orders o FULL JOIN customers c ON o.customer = c.id", ("c", "o")),
        ("SELECT o.id, x.n FROM orders o LEFT JOIN (SELECT b, count(*) n FROM bag GROUP BY b) x ON o.status = x.b",
         ("id",)),
        ("WITH d AS (SELECT DISTINCT b FROM bag) SELECT x.b, y.b AS c FROM d x FULL JOIN d y ON x.b = y.b", ()),
        ("SELECT a, b FROM bag", ()),
        ("SELECT a, b FROM bag GROUP BY a, b", ("a", "b")),
        ("SELECT customer FROM orders WHERE CASE WHEN amount > 1 AND customer = 1 AND id > 2 THEN true END", ()),
        ("SELECT status FROM orders WHERE id = 7", ("",)),
        ("SELECT c.id, o.id AS o FROM (SELECT DISTINCT b FROM bag) x JOIN customers c ON x.b = c.id JOIN orders o "
         "ON o.status = c.id", ()),
        ("SELECT c.id, x.b FROM (SELECT DISTINCT b FROM bag) x LEFT JOIN customers c ON x.b = c.id", ("b",)),
    ],
)  # fmt: skip
def test_keys_are_derived_only_where_they_hold(sql: str, key: tuple[str, ...]) -> None:
    """A FULL JOIN of keys that may be null has rows that its keys do not tell apart; one row needs no key."""
    assert normalise(sql, TABLES).key == tuple(one for one in key if one)


def test_only_used_columns_are_read() -> None:
    view = normalise("SELECT count(*) FROM (SELECT *, upper(status) FROM orders) WHERE amount > 1", TABLES)
    assert outline(view.root).endswith("(Filter[amount > 1](orders(amount))))")


def test_texts_and_numbers_stay_as_they_were_written() -> None:
    text = "'it''s' || r'\\d' || \"x\" || CAST(1.50BD + 1L AS STRING) || DATE '2020-01-01'"
    view = normalise(f"SELECT {text} AS t FROM bag", TABLES)
    assert isinstance(view.root, Projection)
    assert view.root.expressions[0][1] == text


def test_errors_say_where() -> None:
    with pytest.raises(SqlError) as refused:
        normalise("SELECT id,\n  amount,\n  rand()\nFROM orders", TABLES)
    assert refused.value.line == 3
    with pytest.raises(SqlError) as refused:
        normalise("SELECT region,\n  name\nFROM customers GROUP BY region", TABLES)
    assert refused.value.line == 2
