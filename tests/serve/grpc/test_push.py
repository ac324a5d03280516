"""Changes of tables over gRPC: the same semantics as over REST."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.serve.grpc.kit import Running, refusal
from tests.serve.kit import Served, api_key

from headrace.core.endpoints import Op
from headrace.log.inbox import Inbox
from headrace.tables.push import PushTable

pytestmark = pytest.mark.service

SERVICE = "headrace.v1.TableService"
ORDERS = PushTable(columns="id bigint, amount decimal(12,2), day date, tags array<string>", key=["id"])


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    keys = [api_key("reader", "r"), api_key("writer", "w", scopes=["write"], tables=["orders"])]
    settings = replace(Served(tmp_path).settings(auth={"keys": keys}), tables={"orders": ORDERS})
    found = Running(settings)
    yield found
    found.close()


def test_changes_are_taken_once_and_refused_with_their_place(running: Running, tmp_path: Path) -> None:
    client = running.client("w")
    assert SERVICE in client.services()

    def push(key: str = "", **row: Any) -> Any:
        change = {"op": "UPSERT", "row": row, "id": ""}
        return client.call(SERVICE, "Push", table="orders", changes=[change], idempotency_key=key)

    row = {
        "id": {"int_value": 2**62},
        "amount": {"decimal_value": {"text": "1.50"}},
        "day": {"date_value": {"year": 2026, "month": 1, "day": 31}},
        "tags": {"list_value": {"items": [{"string_value": "a"}, {"null_value": 0}]}},
    }
    first = push("k", **row)
    assert (first.accepted, first.position) == (1, 1)
    assert push("k", **row) == first
    unfit, denied = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED
    assert refusal(lambda: push(amount={"decimal_value": {"text": "1"}}))[:2] == (unfit, "bad-change")
    assert refusal(lambda: push("k", id={"int_value": 1}))[:2] == (unfit, "idempotency-key-reused")
    other = refusal(lambda: client.call(SERVICE, "Push", table="others", changes=[]))
    assert other == (denied, "table-forbidden", "it allows: orders")
    reader = running.client("r")
    assert refusal(lambda: reader.call(SERVICE, "Push", table="orders", changes=[]))[:2] == (denied, "wrong-scope")
    (found,) = [changes for _, changes in Inbox(tmp_path / "log", "orders", ORDERS.max_age).after(0)]
    ((op, json_row),) = found
    assert op is Op.UPSERT
    assert json.loads(json_row) == {"id": 2**62, "amount": "1.50", "day": "2026-01-31", "tags": ["a", None]}
