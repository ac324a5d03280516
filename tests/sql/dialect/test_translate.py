"""Dagger's SQL as text: what Spark gets for it, what is left alone and what is refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sql.cases import QUERIES, SCHEMAS

from headrace.core.schema import from_ddl
from headrace.sql.dialect.dotted import check_dotted
from headrace.sql.dialect.translate import DialectInput, translate
from headrace.sql.input_reads import input_reads
from headrace.sql.lateness import LateRule, TimedInput, late_rules
from headrace.sql.query import Query, SqlError, parse
from headrace.sql.streaming import output_refusals, refusals

BOOKING = from_ddl(
    "order_number string, service_type string, event_timestamp timestamp, qty int, n bigint, price double, "
    "items array<struct<name: string, qty: int>>, tags map<string, string>, ids array<bigint>, "
    "driver struct<name: string, at: timestamp>, lat double, lon double"
)
INPUTS = {
    "booking": DialectInput(BOOKING, "event_timestamp"),
    "payment": DialectInput(from_ddl("order_number string, ts timestamp"), "ts"),
    "odd": DialectInput(from_ddl("rowtime timestamp, x int"), "x"),
    "renamed": DialectInput(from_ddl("x int, t timestamp"), "t", "rt"),
    "timeless": DialectInput(from_ddl("x int")),
    "sampled": DialectInput(None, "ts"),
}
MINUTE = "window(`event_timestamp`, '1 minutes')"


def spark_sql(sql: str, *, dagger: bool = False) -> str:
    return " ".join(translate(parse(sql), INPUTS, dagger=dagger).sql.split())


CASES = {
    "tumble": (
        "SELECT TUMBLE_START(rowtime, INTERVAL '60' SECOND) s, TUMBLE_END(rowtime, INTERVAL '60' SECOND) e "
        "FROM booking GROUP BY TUMBLE(rowtime, INTERVAL '60' SECOND), service_type",
        f"SELECT {MINUTE}.start s, {MINUTE}.end e FROM booking GROUP BY {MINUTE}, service_type",
    ),
    "lower case, precision, other spelling of the length": (
        "select tumble_end(rowtime, interval '1' minute) e from booking group by tumble(rowtime, interval '60' "
        "second(5))",
        f"select {MINUTE}.end e from booking group by {MINUTE}",
    ),
    "hop": (
        "SELECT HOP_START(rowtime, INTERVAL '10' SECOND, INTERVAL '1' HOUR) s FROM booking "
        "GROUP BY HOP(rowtime, INTERVAL '10' SECOND, INTERVAL '1' HOUR)",
        "SELECT window(`event_timestamp`, '1 hours', '10 seconds').start s FROM booking "
        "GROUP BY window(`event_timestamp`, '1 hours', '10 seconds')",
    ),
    "session": (
        "SELECT SESSION_END(rowtime, INTERVAL '90' SECOND) e FROM booking GROUP BY SESSION(rowtime, INTERVAL '90' "
        "SECOND)",
        "SELECT session_window(`event_timestamp`, '90 seconds').end e FROM booking "
        "GROUP BY session_window(`event_timestamp`, '90 seconds')",
    ),
    "no name": (
        "SELECT TUMBLE_START(rowtime, INTERVAL '1:30' MINUTE TO SECOND) FROM booking "
        "GROUP BY TUMBLE(rowtime, INTERVAL '1:30' MINUTE TO SECOND)",
        "SELECT window(`event_timestamp`, '90 seconds').start AS tumble_start FROM booking "
        "GROUP BY window(`event_timestamp`, '90 seconds')",
    ),
    "time of a window": (
        "SELECT TUMBLE_ROWTIME(rowtime, INTERVAL '1' MINUTE) AS rt, count(*) FROM booking "
        "GROUP BY TUMBLE(rowtime, INTERVAL '1' MINUTE)",
        "SELECT window_time(`rt`) AS `rt`, `EXPR$1` FROM (SELECT "
        f"{MINUTE} AS rt, count(*) AS `EXPR$1` FROM booking GROUP BY {MINUTE})",
    ),
    "time of a window as a value": (
        "SELECT CAST(TUMBLE_ROWTIME(rowtime, INTERVAL '1' MINUTE) AS VARCHAR) AS t FROM booking "
        "GROUP BY TUMBLE(rowtime, INTERVAL '1' MINUTE)",
        f"SELECT CAST(({MINUTE}.end - INTERVAL '0.001' SECOND) AS STRING) AS t FROM booking GROUP BY {MINUTE}",
    ),
    "window table": (
        "SELECT window_start, w.window_end AS e FROM TABLE(TUMBLE(TABLE booking, DESCRIPTOR(rowtime), INTERVAL '1' "
        "MINUTE)) AS w GROUP BY window_start, window_end, qty",
        f"SELECT {MINUTE}.start AS window_start, {MINUTE}.end AS e FROM booking AS w GROUP BY {MINUTE}, qty",
    ),
    "having": (
        "SELECT count(*) c FROM booking GROUP BY TUMBLE(rowtime, INTERVAL '1' MINUTE) "
        "HAVING TUMBLE_END(rowtime, INTERVAL '1' MINUTE) > now() AND count(*) > 1",
        f"SELECT count(*) c FROM booking GROUP BY {MINUTE} HAVING window.end > now() AND count(*) > 1",
    ),
    "distinct values of a window": (
        "SELECT COUNT(DISTINCT driver.name) n FROM booking GROUP BY TUMBLE(rowtime, INTERVAL '1' MINUTE)",
        f"SELECT CAST(size(collect_set( driver.name)) AS BIGINT) n FROM booking GROUP BY {MINUTE}",
    ),
    "rowtime": (
        "SELECT rowtime, b.ROWTIME t FROM booking b WHERE rowtime > TIMESTAMP '2026-01-01 00:00:00'",
        "SELECT `event_timestamp` AS `rowtime`, b.`event_timestamp` t FROM booking b "
        "WHERE `event_timestamp` > TIMESTAMP '2026-01-01 00:00:00'",
    ),
    "rowtime under another name": ("SELECT rt, x FROM renamed", "SELECT `t` AS `rt`, x FROM renamed"),
    "rowtime of a subquery": (
        "SELECT rowtime FROM (SELECT * FROM booking) UNION ALL SELECT rowtime FROM (SELECT rowtime, qty FROM booking)",
        "SELECT `event_timestamp` AS `rowtime` FROM (SELECT * FROM booking) "
        "UNION ALL SELECT rowtime FROM (SELECT `event_timestamp` AS `rowtime`, qty FROM booking)",
    ),
    "rowtime of a cte": (
        "WITH b AS (SELECT * FROM booking) SELECT b.rowtime FROM b",
        "WITH b AS (SELECT * FROM booking) SELECT b.`event_timestamp` AS `rowtime` FROM b",
    ),
    "interval join": (
        "SELECT b.n FROM booking b JOIN payment p ON b.order_number = p.order_number "
        "AND p.rowtime BETWEEN b.rowtime - INTERVAL '1' HOUR AND b.rowtime + INTERVAL '1' HOUR",
        "SELECT b.n FROM booking b JOIN payment p ON b.order_number = p.order_number AND p.`ts` BETWEEN "
        "b.`event_timestamp` - INTERVAL '1' HOUR AND b.`event_timestamp` + INTERVAL '1' HOUR",
    ),
    "array": (
        "SELECT x FROM booking CROSS JOIN UNNEST(ids) AS t(x) WHERE x > 1",
        "SELECT x FROM booking LATERAL VIEW explode(ids) t AS x WHERE x > 1",
    ),
    "rows": (
        "SELECT t.name FROM booking AS b, UNNEST(b.items) AS t(`name`, qty)",
        "SELECT t.name FROM booking AS b LATERAL VIEW inline(b.items) t AS `name`, qty",
    ),
    "rows without names": (
        "SELECT t.name FROM booking, UNNEST(items) t",
        "SELECT t.name FROM booking LATERAL VIEW inline(items) t",
    ),
    "map": (
        "SELECT k FROM booking LEFT JOIN UNNEST(tags) AS t(k, v) ON TRUE",
        "SELECT k FROM booking LATERAL VIEW OUTER explode(tags) t AS k, v",
    ),
    "two of them": (
        "SELECT x, k FROM booking, UNNEST(ids) AS t(x), UNNEST(tags) AS m(k, v)",
        "SELECT x, k FROM booking LATERAL VIEW explode(ids) t AS x LATERAL VIEW explode(tags) m AS k, v",
    ),
    "table function": (
        "SELECT a FROM booking, LATERAL TABLE(OutlierMad(ids, 'x')) AS T(a, b) WHERE a",
        "SELECT a FROM booking LATERAL VIEW OutlierMad(ids, 'x') T AS a, b WHERE a",
    ),
    "table function, outer": (
        "SELECT a FROM booking LEFT JOIN LATERAL TABLE(f(n)) T(a) ON TRUE",
        "SELECT a FROM booking LATERAL VIEW OUTER f(n) T AS a",
    ),
    "table function alone": (
        "SELECT a FROM LATERAL TABLE(f('x')) AS T(a) UNION ALL SELECT a FROM TABLE(f('y')) AS T(a)",
        "SELECT a FROM f('x') AS T(a) UNION ALL SELECT a FROM f('y') AS T(a)",
    ),
    "seconds of a timestamp": (
        "SELECT event_timestamp.seconds, b.driver.at.nanos AS n, driver.name FROM booking b",
        "SELECT unix_seconds(event_timestamp) AS seconds, CAST(pmod(unix_micros(b.driver.at), 1000000) * 1000 AS INT) "
        "AS n, driver.name FROM booking b",
    ),
    "types": (
        "SELECT CAST(n AS VARCHAR) a, CAST(ROW(1, 'b') AS ROW<a INT, b VARCHAR>) b, "
        "CAST(n AS ROW(a ARRAY<VARCHAR>)) c, CAST(n AS TIMESTAMP(3)) d, "
        "CAST(n AS VARBINARY(9)) e, CAST(n AS VARCHAR(5)) f FROM booking",
        "SELECT CAST(n AS STRING) a, CAST(struct(1, 'b') AS STRUCT<a INT, b STRING>) b, "
        "CAST(n AS STRUCT<a ARRAY<STRING>>) c, CAST(n AS TIMESTAMP) d, CAST(n AS BINARY) e, CAST(n AS VARCHAR(5)) f "
        "FROM booking",
    ),
    "floor": (
        "SELECT FLOOR(rowtime TO HOUR) h FROM booking",
        "SELECT date_trunc('HOUR', `event_timestamp` ) h FROM booking",
    ),
}


@pytest.mark.parametrize(("dagger", "spark"), CASES.values(), ids=CASES)
def test_what_spark_gets(dagger: str, spark: str) -> None:
    assert spark_sql(dagger) == spark


def test_with_the_dialect_of_dagger_what_both_understand_means_what_dagger_means() -> None:
    sql = (
        "SELECT ids[1], items[n + 1].name, f(ids)[2], n / qty, SUM(qty) / COUNT(*), price / qty, ARRAY[1, 2], "
        "MAP['a', 1], '\\d', SHA256(service_type), TO_TIMESTAMP_LTZ(n, 3), SPLIT(a, ''), split(a, b, 3) FROM booking"
    )
    assert spark_sql(sql) == sql
    assert spark_sql(sql, dagger=True) == (
        "SELECT try_element_at(ids, 1), try_element_at(items, n + 1).name, try_element_at(f(ids), 2), n DIV qty, "
        "SUM(qty) DIV COUNT(*), price / qty, ARRAY(1, 2), MAP('a', 1), '\\\\d', sha2(service_type, 256), "
        "timestamp_millis(n), Split(a, ''), split(a, b, 3) FROM booking"
    )


@pytest.mark.parametrize("sql", QUERIES.values(), ids=QUERIES)
def test_native_queries_are_not_touched(sql: str) -> None:
    query = parse(sql)
    inputs = {name: DialectInput(schema, "ts" if name == "orders" else "bts") for name, schema in SCHEMAS.items()}
    assert translate(query, inputs) is query
    assert query.sql == query.text == sql


def test_a_real_column_of_that_name_stays() -> None:
    assert spark_sql("SELECT rowtime FROM odd") == "SELECT rowtime FROM odd"
    assert spark_sql("SELECT driver.rowtime FROM booking") == "SELECT driver.rowtime FROM booking"


GROUPED = "FROM booking GROUP BY TUMBLE(rowtime, INTERVAL '1' MINUTE)"
REFUSED = {
    "no event time": ("SELECT rowtime FROM timeless", "dagger-rowtime", "event_time:"),
    "whose": ("SELECT rowtime FROM booking b, payment p", "dagger-rowtime", "b.rowtime or p.rowtime"),
    "outside": ("SELECT TUMBLE(rowtime, INTERVAL '1' MINUTE) FROM booking", "dagger-window", "GROUP BY"),
    "in where": (f"SELECT 1 FROM booking WHERE TUMBLE(rowtime, INTERVAL '1' DAY) {GROUPED[13:]}", "dagger-window", ""),
    "no group": ("SELECT TUMBLE_END(rowtime, INTERVAL '1' DAY) FROM booking", "dagger-window", "GROUP BY TUMBLE("),
    "another": (f"SELECT TUMBLE_END(rowtime, INTERVAL '9' DAY) {GROUPED}", "dagger-window", "'9' DAY"),
    "other kind": (f"SELECT SESSION_END(rowtime, INTERVAL '1' MINUTE) {GROUPED}", "dagger-window", "SESSION("),
    "two": (f"SELECT 1 {GROUPED}, SESSION(rowtime, INTERVAL '1' DAY)", "dagger-window", "one window"),
    "month": ("SELECT 1 FROM booking GROUP BY TUMBLE(rowtime, INTERVAL '1' MONTH)", "dagger-window", "SECOND"),
    "a number": ("SELECT 1 FROM booking GROUP BY TUMBLE(rowtime, 60)", "dagger-window", "INTERVAL"),
    "one length": ("SELECT 1 FROM booking GROUP BY HOP(rowtime, INTERVAL '1' DAY)", "dagger-window", "slide"),
    "clock": (f"SELECT TUMBLE_PROCTIME(rowtime, INTERVAL '1' MINUTE) {GROUPED}", "dagger-window", "TUMBLE_ROWTIME"),
    "cumulate": (
        "SELECT window_end FROM TABLE(CUMULATE(TABLE booking, DESCRIPTOR(rowtime), INTERVAL '1' MINUTE, INTERVAL '1' "
        "DAY)) GROUP BY window_end",
        "dagger-window",
        "TUMBLE and HOP",
    ),
    "join after unnest": (
        "SELECT x FROM booking CROSS JOIN UNNEST(ids) AS t(x) JOIN payment p ON p.order_number = x",
        "dagger-unnest-before-join",
        "joins",
    ),
    "join after a table function": (
        "SELECT x FROM booking, LATERAL TABLE(f(n)) AS t(x), payment p",
        "dagger-unnest-before-join",
        "joins",
    ),
}


@pytest.mark.parametrize(("sql", "code", "words"), REFUSED.values(), ids=REFUSED)
def test_refused_with_a_hint(sql: str, code: str, words: str) -> None:
    with pytest.raises(SqlError) as refused:
        translate(parse(sql), INPUTS)
    assert refused.value.code == code
    assert words in f"{refused.value.message} {refused.value.hint}"


LINES = """SELECT service_type,
  TUMBLE_ROWTIME(rowtime,
    INTERVAL '1' MINUTE) AS at,
  COUNT(*) AS n
FROM booking
GROUP BY TUMBLE(rowtime, INTERVAL
  '1' MINUTE), service_type
LIMIT 5"""


def test_errors_point_to_the_text_of_the_user() -> None:
    query = translate(parse(LINES), INPUTS)
    assert query.text == LINES
    assert query.sql.count("\n") == LINES.count("\n")
    [refusal] = refusals(query)
    assert LINES.splitlines()[refusal.line - 1] == "LIMIT 5"
    assert refusal.offset is not None
    assert LINES[refusal.offset :].startswith("5")
    with pytest.raises(SqlError) as syntax:
        parse("SELECT CAST(a AS VARCHAR) AS b\nFROM t WHERE WHERE")
    assert syntax.value.line == 2


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT a AS `driver.name`, b AS driver FROM t", "'driver.name' is a part of 'driver'"),
        ("SELECT a AS `driver.name`, b AS `driver.name.first` FROM t", "'driver.name.first' is a part of"),
        ("SELECT a AS `driver.name`, b AS `driver.name` FROM t", "two columns"),
        ("SELECT a AS `driver.` FROM t", "empty part"),
    ],
)
def test_dotted_columns_that_do_not_fit_together(sql: str, words: str) -> None:
    with pytest.raises(SqlError) as refused:
        check_dotted(parse(sql))
    assert refused.value.code == "dotted-column"
    assert words in refused.value.message
    check_dotted(parse("SELECT a AS `driver.name`, b AS `driver.id`, c AS drivers FROM t"))


def parts_of(query: Query) -> tuple[object, ...]:
    schemas = {"booking": BOOKING}
    timed = {"booking": TimedInput("event_timestamp", BOOKING.names)}
    found = input_reads(query, schemas, {"booking": "event_timestamp"})["booking"]
    return found.columns, found.filters, late_rules(query, timed), output_refusals(query, "append", ["event_timestamp"])


def test_a_tumbling_count_is_planned_like_one_with_a_spark_window() -> None:
    count = "SELECT service_type, COUNT(*) AS n FROM booking WHERE qty = 1 GROUP BY {}, service_type"
    dagger = translate(parse(count.format("TUMBLE(rowtime, INTERVAL '30' SECOND)")), INPUTS)
    spark = parse(count.format("window(event_timestamp, '30 seconds')"))
    assert parts_of(dagger) == parts_of(spark)
    columns, filters, late, refused = parts_of(dagger)
    assert columns == ("service_type", "event_timestamp", "qty")
    assert [str(one) for one in filters] == ["qty = 1"]  # type: ignore[attr-defined]
    assert late == {"booking": LateRule(30_000_000, 30_000_000)}
    assert refused == []


@settings(deadline=None)
@given(
    st.integers(1, 10_000),
    st.sampled_from(["SECOND", "MINUTE", "HOUR", "DAY", "seconds", "Minute"]),
    st.integers(1, 50),
    st.sampled_from([" ", "\n", "  \n\t"]),
)
def test_lengths_and_lines_are_kept(size: int, unit: str, times: int, gap: str) -> None:
    length = f"INTERVAL{gap}'{size * times}'{gap}{unit}"
    slide = f"INTERVAL '{size}' {unit}(5)"
    item = f"HOP_START(rowtime,{gap}{slide}, {length}) s"
    sql = f"SELECT{gap}{item} FROM booking GROUP BY{gap}HOP(rowtime, {slide},{length})"
    query = translate(parse(sql), INPUTS)
    micros = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}[unit[0].lower()] * size
    timed = {"booking": TimedInput("event_timestamp", BOOKING.names)}
    assert late_rules(query, timed) == {"booking": LateRule(micros * times, micros)}
    assert [query.sql[: m.start()].count("\n") for m in re.finditer("window", query.sql)] == [
        sql[: m.start()].count("\n") for m in re.finditer("HOP", sql)
    ]
    table = next(iter(query.inputs))
    assert sql[query.place(table.this.meta["start"]) :].startswith("booking")
