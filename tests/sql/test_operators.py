"""What a query keeps, told from its text; where that is not certain, the whole text."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.sql.operators import Inlined, Leaf, operators
from headrace.sql.query import parse

ORDERS = Leaf("orders", ("id", "service", "area", "amount", "ts", "driver"))
PAYMENTS = Leaf("payments", ("id", "paid", "at"))
EVENTS = Leaf("events")
INPUTS = {
    "orders": ORDERS,
    "payments": PAYMENTS,
    "events": EVENTS,
    "loud": Inlined(parse("SELECT upper(service) AS s, ts, amount FROM orders"), {"orders": ORDERS}),
}


def kept(sql: str) -> list[dict[str, Any]]:
    return operators(parse(sql), INPUTS).found


@pytest.mark.parametrize(
    ("sql", "keys", "aggregates"),
    [
        ("SELECT area, count(*), sum(amount) FROM orders GROUP BY area", ["area"], ["count(*)", "sum(amount)"]),
        ("SELECT s AS x, max(amount) AS m FROM loud GROUP BY x", ["upper(service)"], ["max(amount)"]),
        ("SELECT area AS service, count(*) AS n FROM orders GROUP BY service", ["service"], ["count(*)"]),
        ("SELECT o.driver.name AS d, first(id) FROM orders o GROUP BY 1", ["driver.name"], ["first(id)"]),
        ("SELECT sum(amount) + sum(amount) AS twice FROM orders", [], ["sum(amount)"]),
        ("SELECT own(id) AS x, count(*) AS n FROM orders GROUP BY id", ["id"], ["own(id)", "count(*)"]),
        ("SELECT a AS k, count(*) AS n FROM events GROUP BY k", ["a"], ["count(*)"]),
        ("WITH w AS (SELECT window(ts, '1 HOUR') AS h FROM orders) SELECT count(1) FROM w GROUP BY h",
         ["window(ts, '1 hour')"], ["count(1)"]),
    ],
)  # fmt: skip
def test_aggregates_by_position(sql: str, keys: list[str], aggregates: list[str]) -> None:
    assert kept(sql) == [{"operator": "aggregate", "keys": keys, "aggregates": aggregates}]


def test_joins_keep_what_is_used_after_them() -> None:
    sql = "SELECT o.area, o.driver.name FROM orders o JOIN payments p USING (id) JOIN orders x ON x.id = p.id"
    first, second, conditions = kept(sql)
    assert (first["on"], first["right"]) == (["both id"], ["payments.id"])
    assert first["left"] == ["orders.id", "orders.area", "orders.driver.name"]
    assert second["right"] == ["orders_2.id"]
    assert conditions == {"operator": "conditions", "all": []}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT k, count(*) AS n FROM orders LATERAL VIEW explode(driver) d AS k GROUP BY k",
        "SELECT service, count(*) AS n FROM orders GROUP BY ROLLUP(service)",
        "SELECT service, count(*) AS n FROM orders GROUP BY ALL",
        "SELECT service, count(*) AS n FROM orders GROUP BY 7",
        "SELECT b + 1 AS a, a + 1 AS b, count(*) AS n FROM events GROUP BY a",
        "SELECT id, count(*) AS n FROM orders JOIN payments ON true GROUP BY id",
        "SELECT o.nothing, count(*) AS n FROM (SELECT id FROM orders) AS o GROUP BY 1",
        "SELECT id FROM orders UNION SELECT id, paid FROM payments",
        "SELECT * EXCEPT (id) FROM orders o JOIN payments p ON o.id = p.id",
        "SELECT DISTINCT o.id FROM orders o JOIN other.place x ON o.id = x.id",
    ],
)
def test_what_is_not_certain_is_taken_as_a_whole(sql: str) -> None:
    assert [one["operator"] for one in kept(sql)] == ["query"]


def test_nothing_is_kept_without_state() -> None:
    assert kept("SELECT id FROM orders UNION ALL SELECT id FROM payments") == []
