"""What tests of a serve node share: an endpoint, its changes, and a node's settings in a folder."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

from headrace.core.endpoints import OLD, OP, Endpoint, Op
from headrace.core.schema import from_ddl
from headrace.log.log import Log, Mark
from headrace.project.serving import ServeSpec
from headrace.serve.access.stores import Stores
from headrace.serve.base.settings import Settings

ORDERS = Endpoint(
    "orders",
    from_ddl("id bigint, state string, amount int"),
    key=("id",),
    indexes=(("state",), ("amount", "state")),
    text=("state",),
)

Rows = dict[int, dict[str, Any]]


def settings_in(folder: Path, **values: Any) -> Settings:
    """The settings of a node that keeps all it has in one folder."""
    spec = ServeSpec.model_validate(values)
    return Settings("shop", folder, spec, folder / "log", folder / "store", folder / "snapshots", endpoints=("orders",))


def changes(rows: Iterable[Mapping[str, Any]], op: Op = Op.UPSERT, endpoint: Endpoint = ORDERS) -> pa.RecordBatch:
    """A batch that does the same to all these rows."""
    return pa.RecordBatch.from_pylist([{OP: int(op), OLD: None, **row} for row in rows], schema=endpoint.changes)


def order(number: int, state: str = "new", amount: int = 1) -> dict[str, Any]:
    return {"id": number, "state": state, "amount": amount}


def commit(log: Log, batch: int, *batches: pa.RecordBatch) -> None:
    """One segment."""
    assert log.commit(Mark("orders/endpoint", "g1", batch), batches) is not None


def defined(settings: Settings, endpoint: Endpoint = ORDERS) -> Log:
    """The log of an endpoint."""
    return settings.logs.define(endpoint)


def rows_of(stores: Stores, name: str = "orders", version: int | None = None) -> Rows:
    """All that is served, by key."""
    with stores.transaction(name, version) as view:
        found = [json.loads(row.json) for row in view.scan()]
    return {row["id"]: row for row in found}


def recomputed(log: Log) -> Rows:
    """What the log says, told by a dict."""
    found: Rows = {}
    for segment in log.after(0, 1_000_000):
        for batch in log.changes(segment):
            for row in batch.to_pylist():
                op, key = row.pop(OP), row["id"]
                row.pop(OLD)
                if op == Op.DELETE:
                    found.pop(key, None)
                else:
                    found[key] = row
    return found


def client(timeout: float = 60.0) -> httpx.Client:
    """Who asks again and again, each time by a new connection: a new client would read all certificates each time."""
    return httpx.Client(timeout=timeout, headers={"Connection": "close"})


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for something that must come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


PROJECT = """
project: shop
streams:
  orders_in:
    source: {type: generate, rate: 10, fields: {id: {integer: [1, 100]}, state: {choice: [new, paid]}}}
    format: {type: json, columns: "id bigint, state string, amount int"}
flows:
  orders:
    sql: SELECT id, state, amount FROM orders_in
    sinks:
      - {type: endpoint, key: id, indexes: [state, [amount, state]], text: [state]}
serve: {port: 0, grpc_port: null, workers: 1}
"""
