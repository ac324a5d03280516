"""Dagger's queries, unchanged, against rows worked out by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.testing.harness import ProjectHarness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PROJECT = r"""
project: dagger
defaults: {partitions: 1}
streams:
  bookings:
    source: {type: kafka, brokers: ["127.0.0.1:1"], topic: bookings}
    format:
      type: json
      columns: >
        id string, service string, price bigint, event_timestamp timestamp, ids array<bigint>,
        items array<struct<name: string, qty: int>>, tags map<string, string>, driver struct<name: string>
    event_time: {column: event_timestamp, watermark: 1s, max_future: null}
  payments:
    source: {type: kafka, brokers: ["127.0.0.1:1"], topic: payments}
    format: {type: json, columns: "booking string, method string, paid timestamp"}
    event_time: {column: paid, watermark: 1s, max_future: null}
flows:
  tumble:
    sql: |
      SELECT service, COUNT(1) AS orders, COUNT(DISTINCT id) AS ids, MAX(price) AS most,
        TUMBLE_START(rowtime, INTERVAL '60' SECOND) AS since,
        TUMBLE_END(rowtime, INTERVAL '60' SECOND(5)) AS window_timestamp
      FROM `bookings` WHERE price > 0
      GROUP BY TUMBLE (rowtime, INTERVAL '60' SECOND), service
      HAVING TUMBLE_END(rowtime, INTERVAL '1' MINUTE) > TIMESTAMP '2020-01-01 00:00:00'
  hop:
    sql: >
      SELECT b.window_end AS till, COUNT(*) AS n
      FROM TABLE(HOP(TABLE bookings, DESCRIPTOR(rowtime), INTERVAL '30' SECOND, INTERVAL '1' MINUTE)) AS b
      GROUP BY b.window_start, b.window_end
  session:
    sql: >
      SELECT id, SESSION_START(rowtime, INTERVAL '20' SECOND) AS since,
        SESSION_END(rowtime, INTERVAL '20' SECOND) AS till, COUNT(*) AS n
      FROM bookings GROUP BY SESSION(rowtime, INTERVAL '20' SECOND), id
  cascade:
    sql: |
      WITH minutes AS (
        SELECT service, TUMBLE_ROWTIME(rowtime, INTERVAL '1' MINUTE) AS rowtime, COUNT(*) AS n
        FROM bookings
        GROUP BY TUMBLE(rowtime, INTERVAL '1' MINUTE), service
      )
      SELECT TUMBLE_START(rowtime, INTERVAL '5' MINUTE) AS since, MAX(n) AS busiest, SUM(n) AS n
      FROM minutes GROUP BY TUMBLE(rowtime, INTERVAL '5' MINUTE)
  joined:
    sql: |
      SELECT b.id, p.method, b.rowtime
      FROM bookings b LEFT JOIN payments p ON b.id = p.booking
        AND p.rowtime BETWEEN b.rowtime AND b.rowtime + INTERVAL '1' MINUTE
  unnested:
    sql: |
      SELECT id, CAST(x AS VARCHAR) AS a, '' AS b FROM bookings CROSS JOIN UNNEST(ids) AS t (x)
      UNION ALL
      SELECT id, t.name AS a, CAST(t.qty AS VARCHAR) AS b FROM bookings, UNNEST(items) AS t(name, qty)
      UNION ALL
      SELECT id, k AS a, v AS b FROM bookings LEFT JOIN UNNEST(tags) AS m(k, v) ON TRUE
      UNION ALL
      SELECT id, 'lateral' AS a, CAST(y AS VARCHAR) AS b FROM bookings, LATERAL TABLE(explode(ids)) AS f(y)
  values_of_rows:
    dialect: dagger
    sql: |
      SELECT id AS `order.id`, driver.name AS `order.driver.name`, event_timestamp.seconds AS at,
        event_timestamp.nanos AS nanos, ids[1] AS first_id, ids[9] AS none, items[1].qty AS qty,
        price / 2 AS half, price / 2.0 AS exact, FLOOR(rowtime TO MINUTE) AS minute_of, '\d' AS pattern,
        CHAR_LENGTH(service) || '!' AS length, TIMESTAMPDIFF(SECOND, rowtime, event_timestamp) AS gap,
        TIMESTAMPADD(SECOND, 5, rowtime) AS later, service IS DISTINCT FROM 'RIDE' AS other,
        EXTRACT(MINUTE FROM rowtime) AS minute_no, CAST(ROW(id, price) AS ROW<a VARCHAR, b BIGINT>) AS pair
      FROM bookings WHERE id = 'a'
  nested_reader:
    sql: SELECT `order`.id, `order`.driver.name AS driver FROM values_of_rows
"""
START = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def booking(id: str, second: float, service: str = "RIDE", price: int = 5) -> dict[str, Any]:
    return {
        "id": id,
        "service": service,
        "price": price,
        "event_timestamp": at(second).isoformat(),
        "ids": [7, 8] if id == "a" else [],
        "items": [{"name": "tea", "qty": 2}] if id == "a" else [],
        "tags": {"k": "v"} if id == "a" else {},
        "driver": {"name": "ann"},
    }


BOOKINGS = [
    booking("a", 1.5),
    booking("b", 10, price=9),
    booking("b", 15),
    booking("c", 59, service="FOOD"),
    booking("d", 61),
    booking("e", 62, price=0),
]
PAYMENTS = [
    {"booking": "a", "method": "cash", "paid": at(30).isoformat()},
    {"booking": "b", "method": "card", "paid": at(200).isoformat()},
]
FAR = 3000
STATELESS = {"unnested", "values_of_rows", "nested_reader"}


@pytest.fixture(scope="module")
def harness(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("dagger")
    (folder / "headrace.yaml").write_text(PROJECT)
    with ProjectHarness(Path(folder), spark) as project:
        project.feed("bookings", BOOKINGS)
        for flow in STATELESS:  # more batches would show nothing more of them
            project.run(flow)
        project.restart()
        project.feed("payments", PAYMENTS)
        # a row far ahead closes every window, and the next two come too late
        project.feed("bookings", [booking("z", FAR)])
        project.feed("payments", [{"booking": "z", "method": "cash", "paid": at(FAR).isoformat()}])
        project.feed("bookings", [booking("late", 5), booking("late", 6)])
        for flow in project.project.spec.flows.keys() - STATELESS:
            project.run(flow)
            project.restart()  # a flow that has nothing left to do still takes its share of the machine
        yield project


def rows(harness: ProjectHarness, flow: str, *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[c] for c in columns) for row in harness.rows(flow)), key=repr)


def test_a_tumbling_count(harness: ProjectHarness) -> None:
    assert rows(harness, "tumble", "service", "orders", "ids", "most", "since", "window_timestamp") == [
        ("FOOD", 1, 1, 5, at(0), at(60)),
        ("RIDE", 1, 1, 5, at(60), at(120)),
        ("RIDE", 3, 2, 9, at(0), at(60)),
    ]
    assert len(harness.late_rows("tumble")) == 2


def test_a_table_of_hopping_windows(harness: ProjectHarness) -> None:
    found = {row["till"]: row["n"] for row in harness.rows("hop")}
    assert found == {at(30): 3, at(60): 4, at(90): 3, at(120): 2}


def test_sessions(harness: ProjectHarness) -> None:
    assert rows(harness, "session", "id", "since", "till", "n") == [
        ("a", at(1.5), at(21.5), 1),
        ("b", at(10), at(35), 2),
        ("c", at(59), at(79), 1),
        ("d", at(61), at(81), 1),
        ("e", at(62), at(82), 1),
    ]


def test_a_window_over_the_time_of_windows(harness: ProjectHarness) -> None:
    assert rows(harness, "cascade", "since", "busiest", "n") == [(at(0), 3, 6)]


def test_an_interval_join(harness: ProjectHarness) -> None:
    found = rows(harness, "joined", "id", "method", "rowtime")
    assert ("a", "cash", at(1.5)) in found
    assert [one for one in found if one[0] == "b"] == [("b", None, at(10)), ("b", None, at(15))]


def test_unnest_and_lateral_table(harness: ProjectHarness) -> None:
    found = rows(harness, "unnested", "id", "a", "b")
    assert [one[1:] for one in found if one[0] == "a"] == [
        ("7", ""),
        ("8", ""),
        ("k", "v"),
        ("lateral", "7"),
        ("lateral", "8"),
        ("tea", "2"),
    ]
    assert ("b", None, None) in found


def test_values_mean_what_they_mean_to_dagger(harness: ProjectHarness) -> None:
    [row] = harness.rows("values_of_rows")
    assert row.pop("pair") == {"a": "a", "b": 5}
    assert float(row.pop("exact")) == 2.5
    assert row == {
        "order.id": "a",
        "order.driver.name": "ann",
        "at": int(at(1).timestamp()),
        "nanos": 500_000_000,
        "first_id": 7,
        "none": None,
        "qty": 2,
        "half": 2,
        "minute_of": at(0),
        "pattern": "\\d",
        "length": "4!",
        "gap": 0,
        "later": at(6.5),
        "other": False,
        "minute_no": 0,
    }


def test_dotted_columns_are_fields_to_a_flow_that_reads_them(harness: ProjectHarness) -> None:
    assert harness.rows("nested_reader") == [{"id": "a", "driver": "ann"}]
