"""Views in the engine: from the log of a table to an endpoint, through restarts and batches that run again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headrace.core.endpoints import OLD, OP, Op
from headrace.core.errors import ProjectError, ProjectErrors
from headrace.engine.adhoc.query import AdHocSession
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.observe.table_compaction import TableCompactor
from headrace.engine.positions.lag import input_positions
from headrace.engine.positions.savepoints import Savepoints
from headrace.engine.positions.upgrade import detect_change, start_new_generation
from headrace.engine.state.state import StateDir
from headrace.log.folder import LogFolder
from headrace.log.tables import TableLog, table_log
from headrace.plan.explain import to_json
from headrace.plan.planner import make_plan
from headrace.project.loader import Project, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROJECT = """
project: shop
tables:
  orders: {source: {type: push, columns: "id bigint, customer bigint, amount decimal(10,2)", key: [id]}}
  customers: {source: {type: push, columns: "id bigint, region string", key: [id]}}
flows:
  revenue:
    sql: |
      SELECT region, sum(amount) AS total, count(*) AS orders
      FROM orders JOIN customers ON orders.customer = customers.id GROUP BY region
    sinks: [endpoint]
  large:
    sql: SELECT region, total FROM revenue WHERE orders > 1
    sinks: [{type: endpoint, name: large}]
"""


class Shop:
    """A project whose tables are written by hand."""

    def __init__(self, folder: Path, spark: SparkSession, text: str = PROJECT) -> None:
        (folder / "headrace.yaml").write_text(text)
        self.project: Project = load(folder)
        self.state = StateDir.of(self.project.context)
        self.starter = FlowStarter(self.project, self.state, spark, until_caught_up=True)

    @property
    def log(self) -> TableLog:
        return table_log(self.project.context, "push")

    def commit(self, **changes: list[tuple[Any, ...]]) -> None:
        """Weighted rows, the weight last."""
        plan = make_plan(self.project)
        shapes = {one.name: one.shape for flow in plan.flows for one in flow.tables() if one.shape is not None}
        tables = {}
        for name, rows in changes.items():
            names = shapes[name].weighted.names
            listed = [dict(zip(names, row, strict=True)) for row in rows]
            tables[name] = pa.Table.from_pylist(listed, schema=shapes[name].weighted)
        self.log.commit(tables, {"at": self.log.end()}, shapes, None, tuple(shapes))

    def run(self, *flows: str) -> None:
        for flow in make_plan(self.project, flows).flows:
            query = self.starter.start(flow)
            query.awaitTermination()
            assert query.exception() is None, query.exception()

    def segments(self, name: str) -> list[list[dict[str, Any]]]:
        """The changes of an endpoint, batch by batch."""
        log = LogFolder.of(self.project.context).open(name, 1)
        return [
            sorted((row for batch in log.changes(one) for row in batch.to_pylist()), key=lambda row: row["region"])
            for one in log.after(0)
        ]

    def served(self, name: str) -> dict[str, tuple[Any, ...]]:
        """What the endpoint holds after all its changes."""
        held: dict[str, tuple[Any, ...]] = {}
        for segment in self.segments(name):
            for row in segment:
                values = tuple(value for column, value in row.items() if column not in (OP, OLD, "region"))
                if row[OP] == Op.DELETE:
                    del held[row["region"]]
                else:
                    held[row["region"]] = values
        return held

    def revenue(self) -> dict[str, tuple[float, ...]]:
        return {name: tuple(map(float, row)) for name, row in self.served("revenue").items()}


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Shop:
    return Shop(tmp_path, spark)


CUSTOMERS = [(1, "EU", 1), (2, "EU", 1), (3, "US", 1)]


@pytest.mark.spark
def test_a_view_follows_its_tables(shop: Shop, spark: SparkSession) -> None:
    shop.commit(customers=CUSTOMERS, orders=[(10, 1, 5, 1), (11, 2, 7, 1), (12, 3, 1, 1)])
    shop.run()
    assert shop.revenue() == {
        "EU": (12, 2),
        "US": (1, 1),
    }
    assert set(shop.served("large")) == {"EU"}
    # an order moves to another customer, another is deleted, a customer moves
    shop.commit(orders=[(10, 1, 5, -1), (10, 3, 5, 1), (12, 3, 1, -1)])
    shop.commit(customers=[(2, "EU", -1), (2, "US", 1)])
    shop.run()
    assert shop.revenue() == {"US": (12, 2)}
    assert set(shop.served("large")) == {"US"}
    changes = shop.segments("revenue")[-1]
    assert {row["region"]: row[OP] for row in changes} == {"EU": Op.DELETE, "US": Op.UPDATE}
    batches = len(shop.segments("revenue"))
    shop.run()
    assert len(shop.segments("revenue")) == batches, "nothing new, nothing written"
    # tables can be asked as they stand
    answer = AdHocSession(spark, shop.project, shop.state, shop.project.root / "letters").run(
        "SELECT * FROM orders ORDER BY id"
    )
    assert [(row["id"], row["customer"]) for row in answer.to_pylist()] == [(10, 3), (11, 2)]


@pytest.mark.spark
def test_a_batch_that_was_cut_off_runs_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.commit(customers=CUSTOMERS, orders=[(10, 1, 5, 1)])
    shop.run("revenue")
    shop.commit(orders=[(11, 3, 7, 1)])
    flow = make_plan(shop.project, ("revenue",)).flow("revenue")

    def dies(*_arguments: Any) -> None:
        raise RuntimeError("the end")

    with monkeypatch.context() as patch:
        patch.setattr(type(flow.sinks[0].sink), "write_few", dies)
        query = shop.starter.start(flow)
        with pytest.raises(Exception, match="the end"):
            query.awaitTermination()
    shop.commit(orders=[(11, 3, 7, -1), (11, 1, 7, 1)])
    shop.run("revenue")
    assert shop.revenue() == {"EU": (12, 2)}


@pytest.mark.spark
def test_folded_tables_give_the_same(shop: Shop, spark: SparkSession) -> None:
    shop.commit(customers=CUSTOMERS, orders=[(number, 1, 1, 1) for number in range(100)])
    shop.run("revenue")
    for number in range(50):
        shop.commit(orders=[(number, 1, 1, -1)])
    shop.run("revenue")
    compactor = TableCompactor(spark, shop.state, shop.project, min_files=10)
    assert compactor.compact() == ["orders", "customers"]
    assert len(shop.log.state("orders", shop.log.end())) <= 2
    shop.commit(orders=[(99, 1, 1, -1), (99, 3, 1, 1)], customers=[(1, "EU", -1), (1, "US", 1)])
    shop.run("revenue")
    assert shop.revenue() == {"US": (50, 50)}
    assert shop.log.begin() == 1, "a batch that was under way may still read it"
    assert compactor.compact() == []
    assert shop.log.begin() == 52, "what nobody needs any more is gone"
    for number in range(12):
        shop.commit(orders=[(number + 200, 3, 1, 1)])
    shop.run("revenue")
    assert compactor.compact() == ["orders", "customers"]
    shop.commit(orders=[(99, 3, 1, -1)])
    shop.run("revenue")
    assert shop.revenue() == {"US": (61, 61)}


def test_plans_of_views(tmp_path: Path) -> None:
    (tmp_path / "headrace.yaml").write_text(PROJECT)
    plan = make_plan(load(tmp_path))
    revenue, large = plan.flow("revenue"), plan.flow("large")
    assert (revenue.view and revenue.view.key, large.view and large.view.key) == (("region",), ("region",))
    assert {one.name for one in large.tables()} == {"orders", "customers"}
    said = {flow["name"]: flow for flow in to_json(plan)["flows"]}
    assert said["revenue"]["view"] is True
    assert said["revenue"]["inputs"][0]["kind"] == "table"
    assert set(input_positions(revenue, load(tmp_path).context)) == {"orders", "customers"}
    assert replace(revenue, view=None).output_columns == ("region", "total", "orders")


@pytest.mark.parametrize(
    ("flow", "code"),
    [
        ("{sql: SELECT id FROM orders, sinks: [noop], mode: realtime}", "realtime-unsupported"),
        ("{sql: SELECT id FROM orders, sinks: [noop], after: [{type: now, column: at}]}", "view-steps"),
        ("{sql: SELECT o.id FROM orders o JOIN clicks c ON o.id = c.id, sinks: [noop]}", "view-mixed"),
        ("{sql: SELECT id FROM ordres, sinks: [noop]}", "unknown-input"),
        ("{sql: SELECT id FROM orders, sinks: [{type: files, path: out}]}", "sink-takes-no-changes"),
        ("{sql: 'SELECT id, rand() AS r FROM orders', sinks: [noop]}", "view-unsupported"),
        ("{sql: SELECT amount FROM orders, key: id, sinks: [noop]}", "unknown-column"),
    ],
)
def test_what_cannot_be_a_view(flow: str, code: str, tmp_path: Path) -> None:
    clicks = "streams: {clicks: {source: {type: generate, fields: {id: {integer: [1, 9]}}}}}"
    text = PROJECT.partition("flows:")[0] + clicks + f"\nflows: {{broken: {flow}}}\n"
    (tmp_path / "headrace.yaml").write_text(text)
    with pytest.raises(ProjectErrors) as errors:
        make_plan(load(tmp_path))
    assert code in {error.code for error in errors.value.errors}
    assert all(error.where is not None for error in errors.value.errors)


@pytest.mark.spark
def test_rows_without_a_key_have_an_identity(tmp_path: Path, spark: SparkSession) -> None:
    flows = """flows:
  amounts: {sql: SELECT amount FROM orders, sinks: [endpoint]}
  all: {sql: "SELECT count(*) AS orders, sum(amount) AS total FROM orders", sinks: [endpoint]}
"""
    shop = Shop(tmp_path, spark, PROJECT.partition("flows:")[0] + flows)
    shop.commit(orders=[(1, 1, 5, 1), (2, 1, 5, 1), (3, 1, 7, 1)])
    shop.run()

    def held(name: str) -> dict[str, Any]:
        log, found = LogFolder.of(shop.project.context).open(name, 1), {}
        for row in (row for one in log.after(0) for batch in log.changes(one) for row in batch.to_pylist()):
            if row[OP] == Op.DELETE:
                del found[row["_id"]]
            else:
                found[row["_id"]] = {k: float(v) for k, v in row.items() if k not in (OP, OLD, "_id")}
        return found

    before = held("amounts")
    assert sorted(row["amount"] for row in before.values()) == [5, 5, 7]
    shop.commit(orders=[(1, 1, 5, -1), (3, 1, 7, -1), (3, 1, 8, 1)])
    shop.run()
    assert sorted(row["amount"] for row in held("amounts").values()) == [5, 8]
    assert len(before.keys() & held("amounts").keys()) == 1, "what stays has the same identity"
    assert held("all") == {"1": {"orders": 2.0, "total": 13.0}}


@pytest.mark.spark
def test_a_changed_view_begins_anew_beside_what_is_served(tmp_path: Path, spark: SparkSession) -> None:
    shop = Shop(tmp_path, spark)
    shop.commit(customers=CUSTOMERS, orders=[(10, 1, 5, 1), (11, 3, 7, 1)])
    shop.run("revenue")
    # written otherwise, it keeps the same
    same = Shop(tmp_path, spark, PROJECT.replace("orders.customer = customers.id", "customers.id=orders.customer"))
    flow = make_plan(same.project, ("revenue",)).flow("revenue")
    assert detect_change(same.project, same.state, flow).verdict.kind == "safe"
    more = Shop(tmp_path, spark, PROJECT.replace("sinks: [endpoint]", "sinks: [endpoint, console]"))
    verdict = detect_change(more.project, more.state, make_plan(more.project, ("revenue",)).flow("revenue")).verdict
    assert (verdict.kind, verdict.reasons) == ("new_generation", ("console is new and must hold the whole view",))
    other = Shop(tmp_path, spark, PROJECT.replace("sum(amount)", "max(amount)"))
    flow = make_plan(other.project, ("revenue",)).flow("revenue")
    change = detect_change(other.project, other.state, flow)
    assert change.verdict.kind == "new_generation"
    with pytest.raises(ProjectError) as refused:
        other.starter.start(flow)
    assert refused.value.code == "needs-new-generation"
    start_new_generation(other.project, other.state, change)
    other.commit(orders=[(12, 1, 1, 1)])
    other.run("revenue")
    log = LogFolder.of(other.project.context).open("revenue", 2)
    rows = [row for one in log.after(0) for batch in log.changes(one) for row in batch.to_pylist()]
    assert {row["region"]: (float(row["total"]), row["orders"]) for row in rows} == {"EU": (5.0, 2), "US": (7.0, 1)}
    with pytest.raises(ProjectError) as refused:
        Savepoints(other.state, "revenue").create(flow, other.project.context)
    assert refused.value.code == "savepoint-of-view"
