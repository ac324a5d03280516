"""What Spark reads in a text, and in what was made of it: the same, word for word."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.errors import ProjectError
from headrace.views.algebra.vocabulary import AGGREGATES, NUMBERED, ORDER_DEPENDENT, PEERS
from headrace.views.compile.parsing import parse_view, to_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

OPERATORS = """
a || b; a DIV b; a % b; a / b; -a; ~a; a & b | c ^ d; a << 2; a = b; a == b; a <> b; a != b; a <=> b; NOT a; ! a
a RLIKE 'x'; a NOT RLIKE 'x'; a LIKE 'x%' ESCAPE '!'; a ILIKE 'x'; a LIKE ANY ('x', 'y'); a NOT LIKE ALL ('x')
a BETWEEN 1 AND 2; a NOT BETWEEN 1 AND b + 1; a IS NULL; a IS NOT NULL; a IS TRUE; a IS NOT FALSE; a IS DISTINCT FROM b
a IN (1, 2); a NOT IN (1); (a, b) IN ((1, 2)); a::int; CAST(a AS DECIMAL(10, 2)); TRY_CAST(a AS map<string, int>)
CASE a WHEN 1 THEN 'x' ELSE 'y' END; CASE WHEN a > 1 AND b THEN 1 END; a.b.c; a[0].b; m['k']; array(1, 2)[0]
ts - INTERVAL '1' DAY; ts - INTERVAL '1-2' YEAR TO MONTH; INTERVAL '3 days 4 hours'; EXTRACT(YEAR FROM ts)
TRIM(a); TRIM(BOTH 'x' FROM a); OVERLAY(a PLACING 'x' FROM 2 FOR 3)
ts - INTERVAL 3 days 4 hours; 'it\\'s'; 'it''s'; r'a\\d'; "x"; 1L; 1.50BD; 2.5D; 1e3; 10S; X'1F'; DATE '2020-01-01'
TIMESTAMP_NTZ '2020-01-01 00:00:00'; TIME '1:2:3'; transform(a, x -> x.y + b); aggregate(a, 0, (x, y) -> x + y)
count(*); count(DISTINCT a, b); sum(a) FILTER (WHERE b > 1); first(a) IGNORE NULLS; any(a); some(a); struct(a AS x, *)
percentile_cont(0.5) WITHIN GROUP (ORDER BY a DESC NULLS LAST); lag(a) OVER (PARTITION BY b, c ORDER BY d, e DESC)
sum(a) OVER (ORDER BY c RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW); timestampadd(DAY, 1, ts)
"""
# what the parser does not know, what is no SELECT list alone, and what no view can have
UNREAD = re.compile(r">>>|X '|FROM (\(|[a-z])|from variant|SELECT current_\w+$")
# functions with a grammar of their own, which Spark has under another name too
OTHERWISE_NAMED = ("locate", "position", "substr", "substring", "trim")


def parsed(spark: SparkSession, sql: str) -> str:
    """What Spark's parser makes of a text, without the numbers and names that it gives itself."""
    state: Any = spark._jsparkSession.sessionState()  # type: ignore[attr-defined]
    plan = state.sqlParser().parsePlan(sql).toString().lower()
    return re.sub(r"#\d+|\bunresolvedalias\(|, none\)", "", plan)


def test_operators_and_literals(spark: SparkSession) -> None:
    different = [one for one in re.split(r";|\n", OPERATORS.strip()) if not same(spark, f"SELECT {one}")]
    assert not different


def _is_aggregate(spark: SparkSession, name: str | None) -> bool:
    """By its class: not all of them are in the group of aggregates."""
    java: Any = spark._jvm.java.lang  # type: ignore[union-attr]
    kind = "org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction"
    return name is not None and bool(java.Class.forName(kind).isAssignableFrom(java.Class.forName(name)))


def test_every_example_of_sparks_own_functions(spark: SparkSession) -> None:
    catalog: Any = spark._jsparkSession.sessionState().catalog()  # type: ignore[attr-defined]
    identifier: Any = spark._jvm.org.apache.spark.sql.catalyst.FunctionIdentifier  # type: ignore[union-attr]
    functions = [row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()]
    seen, aggregates, different = 0, set(), []
    for name in functions:
        if not name[0].isalpha() or name in OTHERWISE_NAMED:
            continue
        about = catalog.lookupFunctionInfo(identifier(name))
        if about.getGroup() == "agg_funcs" or _is_aggregate(spark, about.getClassName()):
            aggregates.add(name)
        for example in re.findall(r"> (SELECT [^;]*);$", about.getExamples(), re.MULTILINE):
            sql = example.partition(" FROM VALUES")[0]
            if UNREAD.search(sql):
                continue
            seen += 1
            if not same(spark, sql):
                different.append(sql)
    assert not different
    assert seen > 900
    # to Spark some functions of OVER are aggregates too
    assert aggregates - NUMBERED - PEERS - ORDER_DEPENDENT - {"grouping", "grouping_id", "measure"} <= AGGREGATES


def same(spark: SparkSession, sql: str) -> bool:
    """Whether Spark reads the same in a SELECT list and in what is made of it, if it can read it."""
    from pyspark.errors import ParseException

    try:
        expected = parsed(spark, sql)
    except ParseException:
        return True
    try:
        return parsed(spark, f"SELECT {', '.join(to_sql(one) for one in parse_view(sql)[1].selects)}") == expected
    except (ProjectError, ParseException):
        return False
