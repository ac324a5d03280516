from __future__ import annotations

import pytest
from tests.sql.cases import QUERIES

from headrace.sql.query import SqlError, parse


@pytest.mark.parametrize("case", QUERIES)
def test_correct_queries_are_parsed(case: str) -> None:
    assert parse(QUERIES[case]).tables


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT 1 AS one", ()),
        ("SELECT * FROM a JOIN b USING (k) JOIN a c USING (k)", ("a", "b")),
        ("WITH a AS (SELECT * FROM a) SELECT * FROM a", ("a",)),
        ("WITH b AS (SELECT * FROM a), c AS (SELECT * FROM b) SELECT * FROM c JOIN d USING (k)", ("a", "d")),
        ("WITH b AS (SELECT * FROM c), c AS (SELECT * FROM b) SELECT * FROM c", ("c",)),
        ("SELECT * FROM (WITH x AS (SELECT * FROM a) SELECT * FROM x) JOIN x USING (k)", ("a", "x")),
        ("WITH RECURSIVE r(n) AS (SELECT n FROM a UNION ALL SELECT n + 1 FROM r) SELECT * FROM r", ("a",)),
        ("SELECT /*+ BROADCAST(o) */ * FROM orders o", ("orders",)),
        ("SELECT * FROM a, range(5), lake.other, (VALUES (1)) v", ("a",)),
        ("SELECT * FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k)", ("a", "b")),
    ],
)
def test_inputs_are_the_tables_that_the_query_does_not_define(sql: str, tables: tuple[str, ...]) -> None:
    assert parse(sql).tables == tables


@pytest.mark.parametrize(
    ("sql", "output"),
    [
        ("SELECT a, b AS c, t.d, s.x.y FROM t", ("a", "c", "d", "y")),
        ("SELECT *, 1 AS one FROM t", ("*", "one")),
        ("SELECT count(*) FROM t", ("",)),
        ("SELECT a FROM t UNION ALL SELECT b FROM t", ("a",)),
        ("SELECT a AS `driver.name` FROM t", ("driver.name",)),
    ],
)
def test_output_is_what_can_be_told_without_spark(sql: str, output: tuple[str, ...]) -> None:
    assert parse(sql).output == output


@pytest.mark.parametrize(
    ("sql", "line", "near"),
    [
        ("SELECT a,\n  b fro t WHERE", 2, "t"),
        ("SELECT a\nFROM t\nWHERE (a = 1", 3, "1"),
        ("SELECT a\nFROM t WHERE a = = 1", 2, "="),
    ],
)
def test_a_syntax_error_says_where(sql: str, line: int, near: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse(sql)
    error = caught.value
    assert (error.code, error.line) == ("sql-syntax", line)
    assert f"near '{near}'" in error.message
    assert error.offset is not None
    assert sql[error.offset :].startswith(near)


@pytest.mark.parametrize("sql", ["SELECT 'abc\nFROM t", "SELECT `a FROM t"])
def test_an_open_quote_is_named_without_quoting_the_text(sql: str) -> None:
    with pytest.raises(SqlError, match="is not closed") as caught:
        parse(sql)
    assert "FROM" not in caught.value.message


@pytest.mark.parametrize("sql", ["", "-- nothing", "SELECT 1; SELECT 2", "DROP TABLE t", "INSERT INTO t SELECT 1"])
def test_anything_but_one_query_is_refused(sql: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse(sql)
    assert caught.value.code == "sql-not-a-query"


def test_deep_nesting_is_refused_not_crashed_on() -> None:
    with pytest.raises(SqlError) as caught:
        parse("SELECT " + "(" * 5000 + "1" + ")" * 5000)
    assert caught.value.code == "sql-syntax"


def test_errors_point_to_their_part_of_the_text() -> None:
    query = parse("SELECT a,\n  t.b\nFROM t")
    error = query.error_at(query.tree.selects[1], "some-code", "message", "hint")
    assert (error.line, error.offset) == (2, 12)


@pytest.mark.parametrize(
    ("sql", "line", "near"),
    [
        ("SELECT a,\n FROM t", 1, "between ',' and 'FROM'"),
        ("SELECT a,\n b,\n , c FROM t", 2, "between ',' and ','"),
        ("SELECT , a FROM t", 1, "between 'SELECT' and ','"),
        ("SELECT\n FROM t", 1, "between 'SELECT' and 'FROM'"),
        ("SELECT sum(a,) FROM t", 1, "between ',' and ')'"),
        ("SELECT a FROM t GROUP BY\n a,\n;", 2, "ends with a comma"),
    ],
)
def test_a_comma_too_many_is_refused_as_spark_does(sql: str, line: int, near: str) -> None:
    with pytest.raises(SqlError, match=r"something is missing|comma") as caught:
        parse(sql)
    assert (caught.value.code, caught.value.line) == ("sql-syntax", line)
    assert near in caught.value.message
    assert caught.value.hint
    assert parse("SELECT a, `from` FROM t").tables == ("t",)
