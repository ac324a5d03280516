from __future__ import annotations

import pyarrow as pa
import pytest
from tests.sql.cases import QUERIES, SCHEMAS

from headrace.sql.input_reads import InputReads, input_reads
from headrace.sql.query import parse


def read(sql: str, keep: dict[str, str] | None = None) -> dict[str, InputReads]:
    query = parse(sql)
    return input_reads(query, {name: SCHEMAS[name] for name in {t.lower() for t in query.tables}}, keep)


def filters(sql: str, name: str = "orders", keep: dict[str, str] | None = None) -> list[str]:
    return [str(one) for one in read(sql, keep)[name].filters]


@pytest.mark.parametrize(
    ("case", "columns"),
    [
        ("plain", ("id", "status")),
        ("mixed_case", ("id", "status", "Mixed")),
        ("qualified_struct", ("driver",)),
        ("higher_order", ("qty", "xs")),
        ("cte_shadows", ("id", "status", "qty")),
        ("struct_in_subquery", ("driver",)),
        ("window_alias", ("status", "qty", "ts")),
        ("unit_column", ("status", "ts")),
        ("comment", ("id",)),
        ("alias_is_column", ()),
        ("count_star", ()),
        ("odd_name", ("status", "odd.name")),
        ("join_using", ("id", "status")),
    ],
)
def test_only_the_columns_a_query_names_are_read(case: str, columns: tuple[str, ...]) -> None:
    assert read(QUERIES[case])["orders"].columns == columns


@pytest.mark.parametrize(
    "case",
    [
        "star",
        "qualified_star",
        "star_except",
        "struct_star",
        "star_in_struct",
        "natural",
        "pivot",
        "pipe",
        "identifier",
    ],
)
def test_what_uses_columns_without_naming_them_reads_all(case: str) -> None:
    assert all(one.columns is None for one in read(QUERIES[case]).values())


def test_a_qualified_name_is_a_column_of_that_input_alone() -> None:
    found = read("SELECT o.note, b.amount FROM orders o JOIN bookings b ON o.id = b.id")
    assert found["orders"].columns == ("id", "note")
    assert found["bookings"].columns == ("id", "amount")


def test_a_name_that_could_be_of_either_input_stays_in_both() -> None:
    """Without bookings.amount the subquery would silently mean orders.amount."""
    found = read(QUERIES["inner_name_wins"])
    assert "amount" in (found["bookings"].columns or ())
    assert "amount" in (found["orders"].columns or ())


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("alias", ["status = 'new'"]),
        ("reversed_comparison", ["id > 5", "amount <= 2.5"]),
        ("or_in_and", ["amount > 0.0"]),
        ("in_list", ["status in ('new', '', 'done')", "qty in (1, 2)"]),
        ("null_checks", ["status is not null"]),
        ("cte", ["amount > 1.0"]),
        ("full_join", ["status = 'new'"]),
        ("explode_outer", ["qty > 0"]),
    ],
)
def test_conditions_directly_over_an_input_are_applied_early(case: str, expected: list[str]) -> None:
    assert filters(QUERIES[case]) == expected


@pytest.mark.parametrize(
    "case",
    [
        "or", "not", "not_in", "in_with_null", "null_safe", "between", "like", "cast_on_column", "escapes",
        "doubled_quote", "adjacent_strings", "coalesce", "in_floats", "struct_field", "qualified_struct", "self_join",
        "union_same", "cte_shadows", "subquery", "pivot", "bracketed_join", "explode", "pipe",
    ],
)  # fmt: skip
def test_what_is_not_certain_is_left_to_spark(case: str) -> None:
    assert filters(QUERIES[case]) == []


def test_the_event_time_column_is_never_filtered_early() -> None:
    """The watermark must see every time."""
    sql = "SELECT id FROM orders WHERE qty > 1 AND id > 2"
    assert filters(sql, keep={"orders": "QTY"}) == ["id > 2"]


def test_a_sampled_table_is_not_filtered_early() -> None:
    assert filters("SELECT id FROM orders TABLESAMPLE (10 PERCENT) WHERE qty > 1") == []


def test_a_struct_column_named_like_its_table_is_not_mistaken_for_it() -> None:
    schema = pa.schema([("o", pa.struct([("status", pa.string())])), ("status", pa.string())])
    found = input_reads(parse("SELECT 1 AS one FROM t o WHERE o.status = 'x'"), {"t": schema})
    assert found["t"] == InputReads(("o", "status"), ())
