"""Changes of a flow, and whether it can go on from its checkpoint after them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.plan.checkpoint_shape import shape_of
from headrace.plan.compare import ChangeVerdict, compare
from headrace.plan.planner import make_plan
from headrace.plan.settings import PARTITIONS, pins, refused_settings
from headrace.project.loader import load

STREAMS = """\
project: rides
streams:
  orders:
    source: {type: kafka, brokers: [localhost:9092], topic: orders}
    format:
      type: json
      columns: 'id bigint, service string, area string, amount double, tip double, ts timestamp, seen timestamp,
        driver struct<name: string, car: string>'
    event_time: ts
  payments:
    source: {type: kafka, brokers: [localhost:9092], topic: payments}
    format: {type: json, columns: 'order_id bigint, paid double, how string, at timestamp'}
    event_time: at
  events:
    source: {type: kafka, brokers: [localhost:9092], topic: events}
    format: json
  quick:
    source: {type: kafka, brokers: [localhost:9092], topic: quick}
    format: {type: json, columns: 'id bigint'}
    on_error: skip
  places:
    source: {type: files, path: places}
    format: {type: json, columns: 'area string, city string'}
"""
Compared = Callable[..., ChangeVerdict]


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    """The verdict over a flow `f` that was `before` and is `now`; each is SQL or keys of the flow with `sql`."""

    def described(sql: str, keys: str, streams: str, others: str) -> tuple[dict[str, Any], dict[str, str]]:
        sinks = "" if "sinks:" in keys else "    sinks: [noop]\n"
        lines = "".join(f"    {line.strip()}\n" for line in keys.splitlines() if line.strip())
        text = f"{streams}flows:\n{others}  f:\n    sql: >-\n      {sql}\n{sinks}{lines}"
        (tmp_path / "headrace.yaml").write_text(text)
        flow = make_plan(load(tmp_path, environment={})).flow("f")
        pinned = pins({PARTITIONS: str(flow.partitions), **flow.spec.spark}) if flow.state else {}
        return json.loads(json.dumps(shape_of(flow, flow.spec.spark))), pinned

    def verdict(
        before: str,
        now: str = "",
        keys: tuple[str, str] = ("", ""),
        streams: tuple[str, str] = (STREAMS, STREAMS),
        others: tuple[str, str] = ("", ""),
    ) -> ChangeVerdict:
        old, old_pins = described(before, keys[0], streams[0], others[0])
        new, new_pins = described(now or before, keys[1], streams[1], others[1])
        return compare(old, new, old_pins, new_pins)

    return verdict


WINDOW = "window(ts, '10 seconds')"
COUNT = (
    f"SELECT window.start AS since, service, count(*) AS n, sum(amount) AS total FROM orders GROUP BY {WINDOW}, service"
)
KEYS = "window(ts, '10 second'), service"
SESSION = "SELECT service, count(*) AS n, sum(amount) FROM orders GROUP BY session_window(ts, '10 seconds'), service"
ANY_TIME = "window(seen, '1 minute'), window(ts, '1 minute').start"
POLICY = "spark: {{spark.sql.streaming.multipleWatermarkPolicy: {}}}"
KAFKA = "sinks: [{type: kafka, brokers: [localhost:9092], topic: out}]"
RAW = "SELECT id FROM quick"
PROVIDER = "spark: {spark.sql.streaming.stateStore.providerClass: org.apache.spark.x.Other}"
JOIN = (
    "SELECT o.id, p.paid FROM orders AS o JOIN payments AS p "
    "ON o.id = p.order_id AND p.at BETWEEN o.ts AND o.ts + INTERVAL 1 MINUTE"
)
PLAIN = "SELECT id, amount FROM orders WHERE amount > 1"


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        # spelling is no change
        (COUNT, COUNT.replace("SELECT", "select  ").replace("service", "Service"), ""),
        (COUNT, COUNT.replace("'10 seconds'", "'10 SECOND'"), ""),
        (PLAIN, "SELECT id, amount /* as paid */ FROM orders WHERE (amount > 1)", ""),
        # what nothing is kept of
        (PLAIN, "SELECT id, amount FROM orders WHERE amount > 2", "conditions changed"),
        (PLAIN, "SELECT id, amount, area, upper(service) AS s FROM orders", "columns: area, s new"),
        (
            COUNT,
            COUNT.replace("GROUP BY", "WHERE amount > 5 GROUP BY"),
            "conditions changed from all rows to amount > 5",
        ),
        (
            COUNT,
            COUNT.replace("sum(amount) AS total", "sum(amount) / 100 AS euros"),
            "columns: euros new; total removed",
        ),
        (COUNT, COUNT + " HAVING count(*) > 1", "conditions changed"),
        (COUNT, f"SELECT since, total FROM (SELECT * FROM ({COUNT}) AS a) AS b WHERE n > 0", "conditions changed"),
        (COUNT, f"SELECT service, n AS rides, total FROM ({COUNT}) AS t", "columns:"),
        (
            COUNT,
            f"WITH o AS (SELECT * FROM orders) {COUNT.replace('FROM orders', 'FROM o')}",
            "but not its stateful part",
        ),
        (COUNT, COUNT.replace(f"GROUP BY {WINDOW}, service", f"GROUP BY {WINDOW}, 2"), "but not its stateful part"),
        (JOIN, JOIN.replace("o.id, p.paid", "p.paid, o.id AS order"), "columns"),
    ],
)
def test_safe(compared: Compared, before: str, now: str, words: str) -> None:
    verdict = compared(before, now)
    assert verdict.kind == "safe", verdict.reasons
    assert words in "; ".join(verdict.reasons)
    assert bool(verdict.reasons) == bool(words)


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (COUNT, COUNT + ", area", f"GROUP BY changed from {KEYS} to {KEYS}, area"),
        (COUNT, COUNT.replace("service, count", "area AS service, count").replace(", service", ", area"), "GROUP BY"),
        (COUNT, COUNT.replace(f"{WINDOW}, service", f"service, {WINDOW}"), "GROUP BY changed"),
        (COUNT, COUNT.replace("10 seconds", "5 seconds"), "GROUP BY changed"),
        (COUNT, COUNT.replace("'10 seconds'", "'10 seconds', '5 seconds'"), "GROUP BY changed"),
        (COUNT, SESSION, "GROUP BY"),
        (
            COUNT,
            COUNT.replace("sum(amount)", "max(amount)"),
            "aggregates changed from count(*), sum(amount) to count(*), max(amount)",
        ),
        (COUNT, COUNT.replace("sum(amount)", "sum(tip)"), "the aggregates changed"),
        (COUNT, COUNT.replace("sum(amount)", "sum(amount) FILTER (WHERE area = 'x')"), "the aggregates changed"),
        (
            COUNT,
            COUNT.replace("count(*) AS n, sum(amount) AS total", "sum(amount) AS total, count(*) AS n"),
            "the aggregates",
        ),
        (COUNT, COUNT.replace("sum(amount) AS total", "sum(amount) AS total, avg(tip) AS tip"), "the aggregates"),
        (COUNT, COUNT + " HAVING max(tip) > 1", "the aggregates"),
        (
            COUNT,
            f"SELECT since, n FROM ({COUNT}) AS t",
            "the aggregates changed from count(*), sum(amount) to count(*)",
        ),
        # the same words over something else
        (
            f"WITH o AS (SELECT upper(area) AS k, ts FROM orders) SELECT k, count(*) AS n FROM o GROUP BY {WINDOW}, k",
            f"WITH o AS (SELECT lower(area) AS k, ts FROM orders) SELECT k, count(*) AS n FROM o GROUP BY {WINDOW}, k",
            "GROUP BY changed",
        ),
        (PLAIN, COUNT, "the state of the flow changed from nothing to aggregate"),
        (COUNT, "SELECT service FROM orders", "the state of the flow changed from aggregate to nothing"),
        (COUNT, JOIN, "input payments (kafka: topic payments) is new"),
        ("SELECT DISTINCT id, ts FROM orders", "SELECT DISTINCT id, service, ts FROM orders", "DISTINCT changed"),
        ("SELECT DISTINCT service, area, ts FROM orders", "SELECT DISTINCT area, service, ts FROM orders", "DISTINCT"),
        (JOIN, JOIN.replace("JOIN", "LEFT JOIN"), "the kind of JOIN changed from inner to left"),
        (JOIN, JOIN.replace("o.id = p.order_id AND", "o.amount = p.paid AND"), "the condition of the JOIN changed"),
        (JOIN, JOIN.replace("1 MINUTE", "2 MINUTES"), "the condition of the JOIN changed"),
        (JOIN, JOIN.replace("o.id,", "o.id, o.area,"), "the stored columns of the left side of the JOIN changed"),
        (JOIN, JOIN.replace("p.paid", "p.how"), "right side"),
        (JOIN, JOIN + " WHERE o.area = 'x'", "conditions changed from none to o.area = 'x'"),
        (JOIN.replace("o.id,", "o.driver.name,"), JOIN.replace("o.id,", "o.driver.car,"), "left side"),
        (
            JOIN,
            "SELECT o.id, p.paid FROM payments AS p JOIN orders AS o "
            "ON o.id = p.order_id AND p.at BETWEEN o.ts AND o.ts + INTERVAL 1 MINUTE",
            "order of inputs changed (orders, payments, now payments, orders)",
        ),
        # Spark takes up a CTE before what uses it, so the inputs change places
        (
            "WITH p AS (SELECT order_id FROM payments) SELECT id FROM orders UNION ALL SELECT order_id FROM p",
            "SELECT id FROM orders UNION ALL SELECT order_id FROM (SELECT order_id FROM payments) AS p",
            "order of inputs changed",
        ),
        ("SELECT area FROM orders", "SELECT area FROM orders UNION ALL SELECT area FROM places", "input places"),
        ("SELECT id FROM orders UNION ALL SELECT order_id FROM payments", "SELECT id FROM orders", "no longer read"),
        (
            "WITH o AS (SELECT id FROM orders) SELECT id FROM o",
            "WITH o AS (SELECT id FROM orders) SELECT id FROM o UNION ALL SELECT id FROM o",
            "2 times",
        ),
        # what is not traced is taken as a whole
        (
            "SELECT o.id FROM orders o JOIN events e ON o.id = e.id JOIN events x ON amount = paid",
            "SELECT o.id, 1 AS one FROM orders o JOIN events e ON o.id = e.id JOIN events x ON amount = paid",
            "stateful part cannot be determined",
        ),
    ],
)
def test_needs_a_new_generation(compared: Compared, before: str, now: str, words: str) -> None:
    verdict = compared(before, now)
    assert verdict.kind == "new_generation", verdict.reasons
    assert words in "; ".join(verdict.reasons)


@pytest.mark.parametrize(
    ("sql", "before", "now", "kind", "words"),
    [
        (PLAIN, "", "partitions: 7", "safe", ""),
        (COUNT, "", "partitions: 7", "new_generation", "partitions changed from 2 to 7"),
        (COUNT, "", "spark: {spark.sql.shuffle.partitions: 9}", "new_generation", "partitions changed from 2 to 9"),
        (COUNT, "", "trigger: 7s\nmax_records: 5", "safe", "trigger changed from 1s to 7s"),
        (COUNT, "", "mode: batch", "safe", "mode changed from micro_batch to batch"),
        (RAW, KAFKA, f"{KAFKA}\nmode: realtime", "safe", "realtime: rows since the last finished batch are repeated"),
        (COUNT, "", "output: update", "new_generation", "output changed from append to update"),
        (PLAIN, "", "output: update", "safe", "output changed"),
        (PLAIN, "sinks: [console]", "sinks: [console, {type: lake, path: lake/f}]", "safe", "sink lake lake/f is new"),
        (
            PLAIN,
            "sinks: [{type: lake, path: a}, {type: lake, path: b}]",
            "sinks: [{type: lake, path: b}, {type: lake, path: a}]",
            "safe",
            "the order of the sinks changed",
        ),
        (COUNT, "sinks: [console, noop]", "sinks: [noop]", "safe", "sink console was removed"),
        (
            PLAIN,
            "sinks: [{type: endpoint, key: id}]",
            "sinks: [{type: endpoint, key: id, indexes: [[amount, id]]}]",
            "new_generation",
            "the indexes of endpoint f by id changed from none to (amount, id)",
        ),
        (
            PLAIN,
            "sinks: [{type: endpoint, key: id}]",
            "sinks: [{type: endpoint, key: [id], description: x}]",
            "safe",
            "",
        ),
        (COUNT, "", "spark: {spark.sql.session.timeZone: Asia/Tokyo}", "new_generation", "timeZone changed"),
        (PLAIN, "", "spark: {spark.sql.session.timeZone: Asia/Tokyo}", "safe", ""),
        (COUNT, "", "spark: {spark.sql.streaming.noDataMicroBatches.enabled: false}", "safe", ""),
        (COUNT, POLICY.format("min"), POLICY.format("max"), "refused", "multipleWatermarkPolicy is fixed"),
        (COUNT, "", PROVIDER, "refused", "was not set at its start"),
        (PLAIN, "", PROVIDER, "safe", ""),
    ],
)
def test_settings(compared: Compared, sql: str, before: str, now: str, kind: str, words: str) -> None:
    plain = sql if kind == "new_generation" or "output" not in now else PLAIN
    verdict = compared(plain, keys=(before, now))
    assert (verdict.kind, words in "; ".join(verdict.reasons)) == (kind, True), verdict


@pytest.mark.parametrize(
    ("sql", "before", "now", "kind", "words"),
    [
        (
            PLAIN,
            "topic: orders",
            "topic: bookings",
            "new_generation",
            "input orders changed from kafka: topic orders to kafka: topic bookings",
        ),
        (PLAIN, "topic: orders", "topic: [orders, more]", "new_generation", "topic more, orders"),
        (PLAIN, "topic: orders", "topic: orders, max_records_per_trigger: 5, start: latest", "safe", ""),
        (PLAIN, "[localhost:9092], topic: orders", "[localhost:9093, localhost:9092], topic: orders", "safe", ""),
        (
            COUNT,
            "event_time: ts",
            "event_time: {column: ts, watermark: 1m}",
            "safe",
            "the watermark of orders changed from 10s to 1m",
        ),
        (
            COUNT,
            "event_time: ts",
            "event_time: {column: ts, idle: 1m}",
            "new_generation",
            "input orders (heartbeats: while idle) is new",
        ),
        (PLAIN, "event_time: ts", "event_time: seen", "safe", ""),
        (
            COUNT.replace(WINDOW, ANY_TIME),
            "event_time: ts",
            "event_time: seen",
            "new_generation",
            "the event time of orders changed from ts to seen",
        ),
        (
            COUNT,
            "service string",
            "service int",
            "new_generation",
            "the type of orders.service changed from string to int",
        ),
        (COUNT, "area string", "area int", "safe", ""),
        (COUNT, "area string, amount", "new string, amount", "safe", ""),
        (JOIN, "id bigint, service string, area string", "service string, area string, id bigint", "safe", ""),
        (
            JOIN.replace("o.id,", "o.area, o.service, o.id,"),
            "service string, area string",
            "area string, service string",
            "new_generation",
            "left side",
        ),
        (COUNT.replace("service", "driver.name"), "car: string>", "car: string, age: int>", "safe", ""),
        ("SELECT area FROM places", "path: places", "path: places/*.json", "new_generation", "input places changed"),
        ("SELECT area FROM places", "path: places", "path: places, max_files_per_trigger: 3", "safe", ""),
    ],
)
def test_streams(compared: Compared, sql: str, before: str, now: str, kind: str, words: str) -> None:
    assert before in STREAMS
    verdict = compared(sql, streams=(STREAMS, STREAMS.replace(before, now)))
    assert (verdict.kind, words in "; ".join(verdict.reasons)) == (kind, True), verdict


def test_an_endpoint_with_other_columns_is_filled_anew(compared: Compared) -> None:
    keys = ("sinks: [endpoint]", "sinks: [endpoint]")
    verdict = compared("SELECT id FROM orders", "SELECT id, amount FROM orders", keys=keys)
    assert verdict.kind == "new_generation"
    assert "columns of endpoint f changed from id to id, amount" in verdict.reasons[0]
    assert compared("SELECT id FROM orders", "SELECT id FROM orders WHERE id > 'a'", keys=keys).kind == "safe"


def test_types_count_also_where_columns_are_not_traced(compared: Compared) -> None:
    sql = "SELECT service, count(*) AS n FROM orders GROUP BY window(ts, '1 hour'), ROLLUP(service)"
    streams = (STREAMS, STREAMS.replace("service string", "service int"))
    assert compared(sql).reasons == ()
    assert compared(sql, streams=streams).reasons == ("the type of orders.service changed from string to int",)


def test_flows_that_are_part_of_it(compared: Compared) -> None:
    inner = "  part:\n    sql: SELECT {} AS k, ts FROM orders {}\n"
    sql = "SELECT k, count(*) AS n FROM part GROUP BY window(ts, '1 minute'), k"
    old = inner.format("service", "")
    assert compared(sql, others=(old, inner.format("service", "WHERE amount > 1"))).kind == "safe"
    changed = compared(sql, others=(old, inner.format("area", "")))
    assert (changed.kind, changed.reasons[0].split(" changed")[0]) == ("new_generation", "GROUP BY")
    kept = inner.format("service", "") + "    event_time: ts\n    sinks: [{type: lake, path: lake/part}]\n"
    assert compared(sql, others=(old, kept)).kind == "new_generation"


def test_a_shape_nobody_knows_is_not_trusted() -> None:
    new = {"version": 1}
    assert compare({}, new, {}, {}).kind == "new_generation"


def test_settings_that_would_break_a_promise_are_named() -> None:
    assert list(refused_settings({"spark.sql.adaptive.enabled": "FALSE", "spark.sql.ansi.enabled": "true"})) == []
    (found,) = refused_settings({"spark.sql.streaming.offsetLog.formatVersion": "2"})
    assert found[:2] == ("spark.sql.streaming.offsetLog.formatVersion", "1")


def test_verdicts_have_words() -> None:
    kinds: list[Any] = ["first", "safe", "new_generation", "refused"]
    assert [ChangeVerdict(kind, ("x",)).words for kind in kinds] == [
        "first start",
        "safe",
        "needs a new generation",
        "refused",
    ]
    assert ChangeVerdict("safe").words == "unchanged"
