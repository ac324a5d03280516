"""Calls of the library become Spark's own words; wrong ones are refused before Spark sees them."""

from __future__ import annotations

import re

import pytest
from sqlglot import exp

from headrace.functions.expansion import called, expand, expand_text
from headrace.functions.library import families, library
from headrace.sql.query import SqlError, parse


def expanded(text: str) -> str:
    return expand(parse(text)).sql


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT upper(a) FROM t", "SELECT upper(a) FROM t"),
        ("SELECT TimestampFromUnix(a) AS b FROM t", "SELECT (timestamp_seconds(a)) AS b FROM t"),
        ("SELECT 1 + mapget(m, 'k') AS b FROM t", "SELECT 1 + (try_element_at(m, 'k')) AS b FROM t"),
        ("SELECT MapGet(m, 'k') FROM t", "SELECT (try_element_at(m, 'k')) AS `MapGet(m, 'k')` FROM t"),
        ("SELECT MapGet(a.m, 'k') FROM a", "SELECT (try_element_at(a.m, 'k')) AS `MapGet(a_m, 'k')` FROM a"),
        ("SELECT a FROM t GROUP BY a, MapGet(m, 'k')", "SELECT a FROM t GROUP BY a, (try_element_at(m, 'k'))"),
        (
            "SELECT DistinctCount(x) FILTER (WHERE y > 1) AS n FROM t",
            "SELECT (size(collect_set(x) FILTER (WHERE y > 1))) AS n FROM t",
        ),
        ("SELECT CollectArray(DISTINCT x) AS n FROM t", "SELECT (collect_set(x)) AS n FROM t"),
        ("SELECT CollectArray(x) OVER (ORDER BY y) n FROM t", "SELECT (collect_list(x) OVER (ORDER BY y)) n FROM t"),
        ("SELECT mine.MapGet(m, 'k') AS a FROM t", "SELECT mine.MapGet(m, 'k') AS a FROM t"),
        ("WITH features(a) AS (SELECT 1) SELECT a FROM t", "WITH features(a) AS (SELECT 1) SELECT a FROM t"),
        ("SELECT split(a, '') AS b FROM t", "SELECT split(a, '') AS b FROM t"),
        # what stays a function of its own
        ("SELECT s2areainkm2(a) FROM t", "SELECT s2areainkm2(a) FROM t"),
        ("SELECT S2Id(MapGet(m, 1L), b, 3) AS c FROM t",
         "SELECT (S2Id(CAST(((try_element_at(m, 1L))) AS DOUBLE), CAST(b AS DOUBLE), CAST(3 AS DOUBLE))) AS c FROM t"),
    ],
)  # fmt: skip
def test_calls_are_written_out_and_nothing_else_changes(text: str, expected: str) -> None:
    assert expanded(text) == expected


def test_comments_and_lines_stay_where_they_were() -> None:
    text = "SELECT -- first\n MapGet(m, -- the map\n 'k') AS a,\n MapGet(m, 'MapGet(x)') AS b FROM t"
    found = expanded(text)
    assert found.count("\n") == text.count("\n")
    assert found.splitlines()[0] == "SELECT -- first"
    assert "'MapGet(x)'" in found


@pytest.mark.parametrize(
    "text",
    [
        "SELECT b FROM t, LATERAL HistogramBucket(d, '1,2') AS h(b)",
        "SELECT b FROM t CROSS JOIN LATERAL HistogramBucket(d, '1,2') h(b)",
        "SELECT b FROM t LATERAL VIEW HistogramBucket(d, '1,2') h AS b",
        "SELECT b FROM t, LATERAL TABLE(HistogramBucket(d, '1,2')) AS h(b)",
    ],
)
def test_table_functions_become_lateral_views(text: str) -> None:
    query = expand(parse(text))
    lateral = query.tree.find(exp.Lateral)
    assert lateral is not None
    assert lateral.args["view"]
    assert [column.name for column in lateral.args["alias"].args["columns"]] == ["b"]
    assert "inline(" in query.sql
    assert not query.tree.args.get("joins")


def test_a_left_join_keeps_rows_without_a_partner() -> None:
    assert "LATERAL VIEW OUTER inline(" in expanded(
        "SELECT b FROM t LEFT JOIN LATERAL HistogramBucket(d, '1') AS h(b) ON TRUE"
    )


def test_a_value_that_is_costly_is_computed_once() -> None:
    assert expanded("SELECT Distance(f(a), 1, 2, 3) AS d FROM t").count("f(a)") == 1
    assert expanded("SELECT Distance(a, 1, 2, 3) AS d FROM t").count("_held") == 0


def test_lambda_variables_are_no_columns() -> None:
    query = expand(parse("SELECT OutlierMad(v, t, s, 15, 3, 3, 5), LinearTrend(f(t), v, s, 5) AS l FROM x"))
    assert {column.name for column in query.tree.find_all(exp.Column)} == {"v", "t", "s"}
    query = expand(parse("SELECT ArrayAggregate(a, 'average', 'long') AS m FROM x"))
    assert {column.name for column in query.tree.find_all(exp.Column)} == {"a"}


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("ArrayAggregate(a, 'distinct.coun', 'other')", "unknown operation coun"),
        ("ArrayAggregate(a, 'count.distinct', 'other')", "cannot follow"),
        ("ArrayAggregate(a, 'distinct', 'other')", "must give one value"),
        ("ArrayAggregate(a, 'sum', 'other')", "needs numbers"),
        ("ArrayAggregate(a, ops, 'other')", "must be a string literal"),
        ("ArrayOperate(a, 'count', 'other')", "must give an array"),
        ("ArrayOperate(a, 'limit', 'other')", "write limit(3)"),
        ("Distance(1, 2, 3)", "it takes 4 arguments, and there are 3"),
        ("ElementAt(a)", "it takes 2 to 5 arguments, and there are 1"),
        ("Features('k')", "it takes 2 or more arguments, and there are 1"),
        ("Features('k', 1, 'l')", "2 by 2"),
        ("SingleFeatureWithType('k', 1, 'Integer')", "unknown type 'Integer'"),
        ("EndOfMonth(1, 'Asia/Kolkatta')", "unknown time zone 'Asia/Kolkatta'"),
        ("FormatTimeInZone(t, 'UTC', 'hh:mm z')", "'z' in the pattern is not known"),
        ("FormatTimeInZone(t, 'UTC', \"hh 'o\")", "is not closed"),
        ("GeoHash(1, 2, 13)", "from 1 to 12, not 13"),
        ("S2Id(1, 2, -1)", "from 0 to 30, not -1"),
        ("JsonQuery(j, '$ .k1')", "invalid path"),
        ("JsonDelete(j, '$ .k1')", "invalid path"),
        ("JsonDelete(j, '$')", "invalid path"),
        ("JsonUpdate(j, '$.a[', 1)", "invalid path"),
        ("PercentileAggregator(101, v)", "between 0 and 100"),
        ("HistogramBucket(1, '1,two')", "'two' is not a number"),
        ("LinearTrend(t, v, s, 0)", "at least one minute"),
        ("ExponentialMovingAverage(t, v, s, 5, 2)", "between 0 and 1"),
        ("SelectFields(d, 'f')", "name of the message is missing"),
        ("Filters(d, 'm', status = 1)", "CondEq"),
        ("DartGet('../etc', k)", "not the name of a lookup"),
        ("DartContains('l', k, '(')", "not a pattern"),
        ("ElementAt(a, 0, 'a b')", "not a path"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_with_place_and_hint(call: str, reason: str) -> None:
    with pytest.raises(SqlError) as found:
        expanded(f"SELECT 1,\n {call} FROM t")
    assert found.value.code == "function-argument"
    assert reason in found.value.message
    assert (found.value.line, found.value.offset) == (2, 11)
    assert found.value.hint


def test_the_nearest_zone_and_operation_are_named() -> None:
    with pytest.raises(SqlError, match="zone") as found:
        expanded("SELECT EndOfWeek(1, 'Asia/Kolkatta') FROM t")
    assert found.value.hint == "did you mean 'Asia/Kolkata'?"
    with pytest.raises(SqlError, match="coun") as found:
        expanded("SELECT ArrayAggregate(a, 'coun', 'other') FROM t")
    assert "did you mean 'count'" in str(found.value.hint)


def test_any_statement_can_be_written_out() -> None:
    assert (
        expand_text("CREATE TABLE x AS SELECT MapGet(m, 1) AS a").sql
        == "CREATE TABLE x AS SELECT (try_element_at(m, 1)) AS a"
    )
    assert expand_text("SELECT 'unclosed").sql == "SELECT 'unclosed"
    assert called("SELECT a.f(x), g(1), `h`(2) FROM s AS q(a)") >= {"g", "h"}


def test_every_function_is_described() -> None:
    assert len(library()) == sum(len(functions) for _, functions in families().values())
    for about, functions in families().values():
        assert about
        for one in functions:
            assert one.about.endswith("."), one.name
            assert one.name in one.example or one.name == "CondEq"
            assert one.gives
            assert all(re.search(r" -> \w", signature) for signature in one.signatures), one.name
            assert (one.expand, one.arrow, one.build) != (None, None, None), one.name
