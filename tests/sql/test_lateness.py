"""Which rows Spark would drop as too late, read from the SQL; where that is not certain, nothing is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.sql.lateness import LateRule, TimedInput, late_rules
from headrace.sql.query import parse

SECOND = 1_000_000
INPUTS = {
    "orders": TimedInput("ts", ("id", "status", "ts", "xs")),
    "bookings": TimedInput("bts", ("id", "service", "bts")),
    "plain": TimedInput(None, ("id", "ts")),
    "sampled": TimedInput("ts"),
}
TEN = LateRule(10 * SECOND, 10 * SECOND)
TIME = LateRule()

CERTAIN = {
    "tumbling": ("SELECT window.start, count(*) FROM orders GROUP BY window(ts, '10 seconds'), status", TEN),
    "sliding": (
        "SELECT count(*) FROM orders GROUP BY window(ts, '1 minute', '20 seconds')",
        LateRule(60 * SECOND, 20 * SECOND),
    ),
    "offset": (
        "SELECT count(*) FROM orders GROUP BY window(ts, '1 hour', '1 hour', '15 minutes')",
        LateRule(3600 * SECOND, 3600 * SECOND, 900 * SECOND),
    ),
    "compound": (
        "SELECT count(*) FROM orders GROUP BY window(ts, 'INTERVAL 1 minute 30 seconds')",
        LateRule(90 * SECOND, 90 * SECOND),
    ),
    "session": ("SELECT id FROM orders GROUP BY session_window(ts, '5 minutes'), id", LateRule(300 * SECOND)),
    "ordinal": ("SELECT window(ts, '10 seconds') AS w, count(*) FROM orders GROUP BY 1", TEN),
    "alias": ("SELECT window(ts, '10 seconds') AS w, count(*) FROM orders GROUP BY w", TEN),
    "all": ("SELECT window(ts, '10 seconds') AS w, status, count(*) AS n FROM orders GROUP BY ALL", TEN),
    "qualified": ("SELECT count(*) FROM orders AS o GROUP BY window(o.ts, '10 seconds')", TEN),
    "case": ("SELECT count(*) FROM ORDERS GROUP BY WINDOW(TS, '10 SECONDS')", TEN),
    "brackets": ("SELECT count(*) FROM orders GROUP BY (window((ts), '10 seconds'))", TEN),
    "where": ("SELECT count(*) FROM orders WHERE length(status) > 3 GROUP BY window(ts, '10 seconds')", TEN),
    "subquery": ("SELECT count(*) FROM (SELECT id, ts AS t FROM orders) GROUP BY window(t, '10 seconds')", TEN),
    "cte": ("WITH o AS (SELECT * FROM orders) SELECT count(*) FROM o GROUP BY window(ts, '10 seconds')", TEN),
    "window_below": (
        "SELECT w, count(*) FROM (SELECT window(ts, '10 seconds') AS w FROM orders) GROUP BY w",
        TEN,
    ),
    "above": ("SELECT n + 1 FROM (SELECT count(*) AS n FROM orders GROUP BY window(ts, '10 seconds'))", TEN),
    "exploded": ("SELECT count(*) FROM orders LATERAL VIEW explode(xs) e AS x GROUP BY window(ts, '10 seconds')", TEN),
    "static_join": (
        "SELECT count(*) FROM orders o JOIN (VALUES ('a')) AS v(s) ON o.status = v.s "
        "GROUP BY window(o.ts, '10 seconds')",
        TEN,
    ),
    "time_key": ("SELECT ts, count(*) FROM orders GROUP BY ts", TIME),
    "distinct": ("SELECT DISTINCT id, ts FROM orders", TIME),
    "distinct_alias": ("SELECT DISTINCT id, ts AS seen FROM orders", TIME),
    "distinct_star": ("SELECT DISTINCT * FROM orders", TIME),
}


@pytest.mark.parametrize(("sql", "rule"), CERTAIN.values(), ids=CERTAIN)
def test_the_rule_of_one_input(sql: str, rule: LateRule) -> None:
    assert late_rules(parse(sql), INPUTS) == {"orders": rule}


SEVERAL = {
    "union_all": (
        "SELECT count(*) FROM (SELECT id, ts FROM orders UNION ALL SELECT id, bts FROM bookings) "
        "GROUP BY window(ts, '10 seconds')",
        {"orders": TEN, "bookings": TEN},
    ),
    "union": (
        "SELECT id, ts FROM orders UNION SELECT id, bts FROM bookings",
        {"orders": TIME, "bookings": TIME},
    ),
    "interval_join": (
        "SELECT o.id FROM orders o JOIN bookings b ON o.id = b.id AND b.bts BETWEEN o.ts AND o.ts + INTERVAL 5 MINUTES",
        {"orders": TIME, "bookings": TIME},
    ),
    "one_side_timed": (
        "SELECT o.id FROM orders o JOIN bookings b ON o.id = b.id AND o.ts > b.service",
        {"orders": TIME},
    ),
    "beside_a_stateless_branch": (
        "SELECT count(*) FROM orders GROUP BY window(ts, '10 seconds') UNION ALL SELECT id FROM bookings",
        {"orders": TEN},
    ),
}


@pytest.mark.parametrize(("sql", "rules"), SEVERAL.values(), ids=SEVERAL)
def test_the_rules_of_several_inputs(sql: str, rules: dict[str, LateRule]) -> None:
    assert late_rules(parse(sql), INPUTS) == rules


UNCERTAIN = {
    "stateless": "SELECT id FROM orders",
    "no_time_in_keys": "SELECT status, count(*) FROM orders GROUP BY status",
    "no_keys": "SELECT count(*) FROM orders",
    "truncated_time": "SELECT date_trunc('hour', ts) AS h, count(*) FROM orders GROUP BY h",
    "cast_time": "SELECT count(*) FROM orders GROUP BY window(cast(ts AS timestamp), '10 seconds')",
    "other_column": "SELECT count(*) FROM plain GROUP BY window(ts, '10 seconds')",
    "month": "SELECT count(*) FROM orders GROUP BY window(ts, '1 month')",
    "computed_gap": "SELECT id FROM orders GROUP BY session_window(ts, CASE WHEN id = 1 THEN '1 minute' END), id",
    "length_from_interval": "SELECT count(*) FROM orders GROUP BY window(ts, INTERVAL 10 SECONDS)",
    "slide_larger": "SELECT count(*) FROM orders GROUP BY window(ts, '10 seconds', '20 seconds')",
    "two_windows": "SELECT count(*) FROM orders GROUP BY window(ts, '10 seconds'), ts",
    "two_operators": "SELECT count(*) FROM (SELECT DISTINCT id, ts FROM orders) GROUP BY window(ts, '10 seconds')",
    "distinct_aggregate": "SELECT DISTINCT window.end, count(*) FROM orders GROUP BY window(ts, '10 seconds')",
    "read_twice": "SELECT count(*) FROM orders GROUP BY window(ts, '10 seconds') UNION ALL SELECT id FROM orders",
    "cte_read_twice": "WITH o AS (SELECT * FROM orders) SELECT count(*) FROM o GROUP BY window(ts, '10 seconds') "
    "UNION ALL SELECT id FROM o",
    "self_join": "SELECT a.id FROM orders a JOIN orders b ON a.id = b.id AND a.ts = b.ts",
    "join_and_aggregate": "SELECT count(*) FROM orders o JOIN bookings b ON o.id = b.id AND o.ts = b.bts "
    "GROUP BY window(o.ts, '10 seconds')",
    "branches_disagree": "SELECT count(*) FROM (SELECT id, ts FROM orders UNION ALL SELECT id, id FROM bookings) "
    "GROUP BY window(ts, '10 seconds')",
    "rollup": "SELECT count(*) FROM orders GROUP BY ROLLUP (ts, id)",
    "limited": "SELECT count(*) FROM (SELECT ts FROM orders LIMIT 5) GROUP BY window(ts, '10 seconds')",
    "in_subquery": "SELECT count(*) FROM orders WHERE id IN (SELECT id FROM bookings) "
    "GROUP BY window(ts, '10 seconds')",
    "pivot": "SELECT * FROM (SELECT ts, status FROM orders) PIVOT (count(*) FOR status IN ('a'))",
    "pipe": "FROM orders |> AGGREGATE count(*) GROUP BY window(ts, '10 seconds')",
    "named_columns": "WITH o(a, ts, b) AS (SELECT id, status, ts FROM orders) SELECT count(*) FROM o GROUP BY ts",
    # the input has, or may have, a column of the alias's name, which is then what the groups are made of
    "alias_is_column": "SELECT window(ts, '10 seconds') AS status, count(*) FROM orders GROUP BY status",
    "alias_may_be_column": "SELECT window(ts, '10 seconds') AS w, count(*) FROM sampled GROUP BY w",
    "static_join_left": "SELECT o.id FROM (VALUES (1)) AS v(n) JOIN orders o ON o.id = v.n AND o.ts IS NOT NULL",
}


@pytest.mark.parametrize("sql", UNCERTAIN.values(), ids=UNCERTAIN)
def test_no_rule_where_it_is_not_certain(sql: str) -> None:
    assert late_rules(parse(sql), INPUTS) == {}


def test_flows_that_are_part_of_the_query_are_looked_into() -> None:
    inner = parse("SELECT id, ts AS at FROM orders WHERE status = 'new'")
    outer = parse("SELECT count(*) FROM recent GROUP BY window(at, '10 seconds')")
    assert late_rules(outer, INPUTS, {"recent": inner}) == {"orders": TEN}
    counted = parse("SELECT window.end AS till, count(*) AS n FROM orders GROUP BY window(ts, '10 seconds')")
    assert late_rules(parse("SELECT n FROM recent WHERE n > 1"), INPUTS, {"recent": counted}) == {"orders": TEN}
    assert late_rules(parse("SELECT sum(n) FROM recent GROUP BY till"), INPUTS, {"recent": counted}) == {}


TIMES = st.integers(-(10**15), 2 * 10**15)


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(-(10**9), 10**9), TIMES, TIMES)
def test_the_bound_is_the_same_as_the_end_of_the_last_window(
    slide: int, longer: int, offset: int, time: int, watermark: int
) -> None:
    rule = LateRule(slide + longer, slide, offset)
    for near in (time, rule.bound(watermark), rule.bound(watermark) - 1):
        assert (near < rule.bound(watermark)) == (rule.end(near) <= watermark)
    assert rule.end(time) - rule.size <= time < rule.end(time) - rule.size + slide


@given(TIMES, TIMES)
def test_a_bare_time_is_late_when_it_is_not_after_the_watermark(time: int, watermark: int) -> None:
    assert (time < TIME.bound(watermark)) == (time <= watermark)
    session = LateRule(300 * SECOND)
    assert (time < session.bound(watermark)) == (time + 300 * SECOND <= watermark)
