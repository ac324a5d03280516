from __future__ import annotations

import pytest

from headrace.sql.query import parse
from headrace.sql.streaming import output_refusals, refusals, state_of


@pytest.mark.parametrize(
    ("sql", "state"),
    [
        ("SELECT a, upper(b) AS c FROM t WHERE a > 1", ()),
        ("SELECT explode(xs) AS x FROM t", ()),
        ("SELECT a, x FROM t LATERAL VIEW explode(xs) e AS x", ()),
        ("SELECT t.a, e.x FROM t, LATERAL explode(xs) AS e(x)", ()),
        ("SELECT count(*) AS n FROM t", ("aggregate",)),
        ("SELECT a FROM t GROUP BY a", ("aggregate",)),
        ("SELECT n + 1 AS m FROM (SELECT max(a) AS n FROM t)", ("aggregate",)),
        ("SELECT a FROM t JOIN u USING (a)", ("join",)),
        ("SELECT DISTINCT a FROM t", ("distinct",)),
        ("SELECT a FROM t UNION SELECT a FROM u", ("distinct",)),
        ("SELECT a FROM t UNION ALL SELECT a FROM u", ()),
        ("SELECT DISTINCT t.a, count(*) AS n FROM t JOIN u USING (a) GROUP BY t.a", ("aggregate", "join", "distinct")),
    ],
)
def test_state_is_what_must_be_remembered(sql: str, state: tuple[str, ...]) -> None:
    assert state_of(parse(sql)) == state


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM t ORDER BY a",
        "SELECT a FROM (SELECT a FROM t ORDER BY a) WHERE a > 1",
        "WITH c AS (SELECT a FROM t ORDER BY a) SELECT a FROM c",
        "WITH c AS (SELECT a FROM t) SELECT a FROM c ORDER BY a",
        "SELECT * FROM t SORT BY a",
        "SELECT * FROM t CLUSTER BY a",
        "SELECT * FROM t LIMIT 3",
        "SELECT a FROM (SELECT * FROM t LIMIT 3)",
        "SELECT * FROM t LIMIT 3 OFFSET 1",
        "SELECT a FROM t UNION ALL SELECT a FROM u ORDER BY a",
        "SELECT a FROM t EXCEPT SELECT a FROM u",
        "SELECT a FROM t EXCEPT SELECT id FROM range(3)",
        "SELECT a FROM t INTERSECT SELECT a FROM u",
        "SELECT row_number() OVER (PARTITION BY a ORDER BY b) AS n FROM t",
        "SELECT sum(a) OVER w AS n FROM t WINDOW w AS (PARTITION BY b)",
        "SELECT a FROM t WHERE a > (SELECT max(a) FROM u)",
        "SELECT a FROM t WHERE a IN (SELECT a FROM u)",
        "SELECT a FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a)",
        "SELECT window(ts, '5 seconds') AS w, count(DISTINCT a) AS n FROM t GROUP BY 1",
        "SELECT window(ts, '5 seconds') AS w, sum(DISTINCT a) AS n FROM t GROUP BY 1",
        "SELECT t.a FROM t LEFT ANTI JOIN u ON t.a = u.a",
        "SELECT * FROM t TABLESAMPLE (10 PERCENT)",
    ],
)
def test_what_spark_cannot_answer_on_a_stream_is_refused(sql: str) -> None:
    found = refusals(parse(sql))
    assert found
    assert {error.code for error in found} == {"sql-not-streamable"}
    assert all(error.hint for error in found)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a, count(*) AS n FROM t GROUP BY a, window(ts, '5 seconds') HAVING n > 1",
        "SELECT t.a FROM t JOIN (SELECT id FROM range(9) ORDER BY id LIMIT 3) r ON t.a = r.id",
        "SELECT a FROM t DISTRIBUTE BY a",
        "SELECT DISTINCT a, ts FROM t",
        "SELECT a FROM t WHERE a IN (SELECT id FROM range(3))",
        "SELECT window(ts, '5 seconds') AS w, array_agg(a) AS n FROM t GROUP BY 1",
        "SELECT window(ts, '5 seconds') AS w, listagg(a) WITHIN GROUP (ORDER BY a) AS n FROM t GROUP BY 1",
        "SELECT t.a FROM t LEFT SEMI JOIN u ON t.a = u.a AND t.ts = u.ts",
        "SELECT session_window(ts, '5 seconds') AS w, count(*) AS n FROM t GROUP BY 1",
        "SELECT window(ts, '5 seconds') AS w, a, count(*) AS n FROM t GROUP BY ROLLUP (1, a)",
        "WITH c AS (SELECT * FROM t) SELECT a FROM c UNION ALL SELECT a FROM u",
        "SELECT (SELECT max(id) FROM range(3)) AS m, a FROM t",
    ],
)
def test_what_spark_can_answer_is_not_refused(sql: str) -> None:
    assert refusals(parse(sql)) == []
    assert output_refusals(parse(sql), "append", ["ts"]) == []


def test_a_refusal_has_the_line_of_what_is_refused() -> None:
    (order, limit) = refusals(parse("SELECT a\nFROM t\nORDER BY a\nLIMIT 3"))
    assert (order.line, limit.line) == (3, 4)


@pytest.mark.parametrize(
    ("sql", "event_columns"),
    [
        ("SELECT count(*) AS n FROM t", ["ts"]),
        ("SELECT a, count(*) AS n FROM t GROUP BY a", ["ts"]),
        ("SELECT a, count(*) AS n FROM t GROUP BY a", []),
        ("SELECT DISTINCT a FROM t", []),
        ("SELECT a FROM t UNION SELECT a FROM u", []),
        ("SELECT t.a FROM t LEFT JOIN u ON t.a = u.a", []),
    ],
)
def test_append_needs_event_time_to_know_what_is_final(sql: str, event_columns: list[str]) -> None:
    (error,) = output_refusals(parse(sql), "append", event_columns)
    assert error.code == "sql-needs-watermark"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT window(ts, '5 seconds') AS w, count(*) AS n FROM t GROUP BY w",
        "SELECT ts, count(*) AS n FROM t GROUP BY 1",
        "SELECT w, count(*) AS n FROM (SELECT window(ts, '5 seconds') AS w FROM t) GROUP BY w",
        "SELECT DISTINCT a, ts FROM t",
    ],
)
def test_append_with_event_time_is_left_to_spark(sql: str) -> None:
    assert output_refusals(parse(sql), "append", ["ts"]) == []


def test_update_cannot_take_back_rows() -> None:
    (join,) = output_refusals(parse("SELECT t.a FROM t LEFT JOIN u ON t.a = u.a"), "update", ["ts"])
    (session,) = output_refusals(
        parse("SELECT count(*) AS n FROM t GROUP BY session_window(ts, '1 s')"), "update", ["ts"]
    )
    assert join.code == session.code == "sql-not-streamable"
    assert output_refusals(parse("SELECT a, count(*) AS n FROM t GROUP BY a"), "update", []) == []
