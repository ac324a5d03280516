"""The examples over tables: what is served is what the database itself says."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from deltalake import DeltaTable
from tests.system.conftest import produce
from tests.system.test_examples import EXAMPLES, copied

from headrace.capture.worker import CaptureWorker
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.state.state import StateDir
from headrace.log.folder import LogFolder
from headrace.log.tablestatus import tables_folder
from headrace.plan.planner import make_plan
from headrace.project.loader import Project, load
from headrace.project.tables import groups
from headrace.testing.services import Postgres
from headrace.testing.tables import kept_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.testing.services import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.service]

PAID = "FROM shop.orders JOIN shop.customers USING (customer_id) WHERE status = 'paid'"
REVENUE = f"SELECT region, count(DISTINCT customer_id), count(*), sum(amount) {PAID} GROUP BY region"
BEST = (
    "SELECT region, place, customer_id FROM (SELECT region, customer_id, row_number() OVER "
    f"(PARTITION BY region ORDER BY sum(amount) DESC, customer_id) AS place {PAID} GROUP BY region, customer_id) r "
    "WHERE place <= 3"
)
IDLE = (
    "SELECT customer_id FROM shop.customers c WHERE NOT EXISTS "
    "(SELECT 1 FROM shop.orders o WHERE o.customer_id = c.customer_id AND status = 'paid')"
)


class Running:
    """A project whose tables are followed, and whose views are run when a test wants it."""

    def __init__(self, project: Project, spark: SparkSession) -> None:
        self.project = project
        self._starter = FlowStarter(project, StateDir.of(project.context), spark, until_caught_up=True)
        folder = tables_folder(project.context)
        self.followers = [
            CaptureWorker(group, tables, project.context, folder)
            for group, tables in groups(project.spec.tables).items()
        ]

    @property
    def changes(self) -> int:
        """How many were taken in since the beginning."""
        return sum(one.progress.changes for one in self.followers)

    @property
    def counts(self) -> dict[str, int]:
        """How many rows each table has."""
        return {name: count for one in self.followers for name, count in one.progress.counts.items()}

    def run(self, ready: Callable[[], bool]) -> None:
        """Take in what a test waits for, then let the views follow."""
        deadline = time.monotonic() + 120
        while not ready():
            assert time.monotonic() < deadline, [one.document() for one in self.followers]
            time.sleep(0.05)
        for flow in make_plan(self.project).flows:
            query = self._starter.start(flow)
            query.awaitTermination()

    def rows(self, name: str, key: list[str]) -> list[dict[str, Any]]:
        """What an endpoint has."""
        log = LogFolder.of(self.project.context).open(name, 1)
        told = [row for one in log.after(0, 1000) for batch in log.changes(one) for row in batch.to_pylist()]
        return kept_rows(told, key)


@contextmanager
def running(
    name: str, folder: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, **given: str
) -> Iterator[Running]:
    for variable, value in given.items():
        monkeypatch.setenv(variable, value)
    found = Running(load(copied(name, folder)), spark)
    for one in found.followers:
        one.start()
    try:
        yield found
    finally:
        for one in found.followers:
            one.stop()
        assert all(one.join(30) for one in found.followers)


def test_orders_in_postgres(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    with Postgres() as server, psycopg.connect(server.env["POSTGRES_URL"], autocommit=True) as shop:
        shop.execute((EXAMPLES / "orders" / "data" / "shop.sql").read_text())
        url = server.env["POSTGRES_URL"]
        with running("orders", tmp_path, spark, monkeypatch, POSTGRES_URL=url) as project:
            check(project, shop)
            # rows are inserted first and deleted last, so their numbers tell that all of it has come
            shop.execute((EXAMPLES / "orders" / "data" / "changes.sql").read_text())
            check(project, shop)


def check(project: Running, shop: psycopg.Connection[Any]) -> None:
    counted = shop.execute(
        "SELECT (SELECT count(*) FROM shop.customers), (SELECT count(*) FROM shop.orders)"
    ).fetchone()
    assert counted is not None
    project.run(lambda: (project.counts.get("customers"), project.counts.get("orders")) == counted)
    assert revenue_of(project) == set(shop.execute(REVENUE).fetchall())
    best = {(r["region"], r["place"], r["customer_id"]) for r in project.rows("best_customers", ["region", "place"])}
    assert best == set(shop.execute(BEST).fetchall())
    idle = {row[0] for row in shop.execute(IDLE)}
    assert {row["customer_id"] for row in project.rows("idle_customers", ["customer_id"])} == idle
    lake = DeltaTable(project.project.root / "lake" / "idle_customers").to_pyarrow_table(columns=["customer_id"])
    assert set(lake["customer_id"].to_pylist()) == idle


def test_orders_in_debezium_topics(
    tmp_path: Path, spark: SparkSession, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = f"shop{uuid.uuid4().hex[:8]}"
    for table in ("customers", "orders"):
        kafka.create_topic(f"{topics}.{table}", 1)
    customers = {
        number: {"customer_id": number, "name": f"c{number}", "region": "NS"[number % 2]} for number in range(20)
    }
    orders = {
        number: {"order_id": number, "customer_id": number % 20, "amount": f"{number}.50", "status": "paid"}
        for number in range(300)
    }

    def tell(table: str, key: str, *events: dict[str, Any]) -> None:
        keys = [json.dumps({key: (one["after"] or one["before"])[key]}).encode() for one in events]
        produce(kafka, f"{topics}.{table}", [json.dumps(one).encode() for one in events], lambda n: keys[n])

    def truth() -> set[tuple[Any, ...]]:
        found: dict[str, list[Any]] = {}
        for order in orders.values():
            region = customers[order["customer_id"]]["region"]
            if order["status"] == "paid":
                found.setdefault(region, []).append((order["customer_id"], Decimal(order["amount"])))
        return {(r, len({c for c, _ in some}), len(some), sum(a for _, a in some)) for r, some in found.items()}

    tell("customers", "customer_id", *({"op": "r", "before": None, "after": row} for row in customers.values()))
    tell("orders", "order_id", *({"op": "r", "before": None, "after": row} for row in orders.values()))
    given = {"KAFKA_BROKERS": kafka.address, "SHOP_TOPICS": topics}
    with running("orders-debezium", tmp_path, spark, monkeypatch, **given) as project:
        project.run(lambda: project.changes >= 320)
        assert revenue_of(project) == truth()
        moved = {**customers[3], "region": "N"}
        tell("customers", "customer_id", {"op": "u", "before": customers[3], "after": moved})
        gone = orders.pop(7)
        opened = {**orders[8], "status": "open"}
        tell(
            "orders",
            "order_id",
            {"op": "d", "before": gone, "after": None},
            {"op": "u", "before": None, "after": opened},
        )
        customers[3], orders[8] = moved, opened
        project.run(lambda: project.changes >= 320 + 5)
        assert revenue_of(project) == truth()


def revenue_of(project: Running) -> set[tuple[Any, ...]]:
    rows = project.rows("revenue", ["region"])
    return {(row["region"], row["customers"], row["orders"], row["revenue"]) for row in rows}
