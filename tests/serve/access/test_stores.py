"""Readers follow the applier's pointer, and never answer from a store that was found to be damaged."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.serve.nodekit import ORDERS, changes, order, rows_of, settings_in

from headrace.core.errors import RequestError
from headrace.serve.access import stores as module
from headrace.serve.access.stores import Stores
from headrace.serve.base.settings import Settings
from headrace.serve.replica.pointers import Pointer, reported_damage, write_pointer
from headrace.store.endpoint.writer import StoreWriter
from headrace.store.lmdb.errors import StoreDamagedError


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_in(tmp_path)


@pytest.fixture
def stores(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Stores:
    monkeypatch.setattr(module, "_CHECK_SECONDS", 0.0)
    return Stores(settings)


def made(settings: Settings, folder: str, state: str) -> None:
    """A store with one order."""
    writer = StoreWriter.open(settings.store / "orders" / folder, ORDERS)
    writer.apply(1, [changes([order(1, state)])])
    writer.close()


def pointed(settings: Settings, version: int, **folders: str) -> None:
    write_pointer(settings.store / "orders", Pointer(version, {int(key[1:]): one for key, one in folders.items()}))


def refusal(stores: Stores, name: str, version: int | None = None) -> tuple[str, int]:
    with pytest.raises(RequestError) as raised:
        stores.reader(name, version)
    return raised.value.code, raised.value.status


def test_an_endpoint_answers_as_soon_as_it_is_pointed_to(settings: Settings, stores: Stores) -> None:
    assert refusal(stores, "orders") == ("hydrating", 503)
    assert refusal(stores, "orderz") == ("unknown-endpoint", 404)
    assert stores.status() == {"orders": {"state": "hydrating", "error": None}}
    made(settings, "v1-a-1", "old")
    pointed(settings, 1, v1="v1-a-1")
    assert stores.names() == ["orders"]
    assert rows_of(stores)[1]["state"] == "old"


def test_another_store_is_taken_up_while_the_former_is_still_read(settings: Settings, stores: Stores) -> None:
    made(settings, "v1-a-1", "old")
    made(settings, "v1-a-2", "new")
    pointed(settings, 1, v1="v1-a-1")
    with stores.transaction("orders") as before:
        pointed(settings, 1, v1="v1-a-2")
        assert rows_of(stores)[1]["state"] == "new"
        assert b"old" in next(before.scan()).json


def test_each_version_can_be_asked_for(settings: Settings, stores: Stores) -> None:
    made(settings, "v1-a-1", "one")
    made(settings, "v2-b-1", "two")
    pointed(settings, 1, v1="v1-a-1", v2="v2-b-1")
    assert (stores.versions("orders"), stores.served("orders")) == ([1, 2], 1)
    assert rows_of(stores)[1]["state"] == "one"
    assert rows_of(stores, version=2)[1]["state"] == "two"
    assert refusal(stores, "orders", 3) == ("unknown-endpoint", 404)
    pointed(settings, 2, v2="v2-b-1")
    assert rows_of(stores)[1]["state"] == "two"


def test_a_damaged_store_is_shunned_and_reported(settings: Settings, stores: Stores) -> None:
    made(settings, "v1-a-1", "old")
    pointed(settings, 1, v1="v1-a-1")
    with pytest.raises(RequestError) as raised, stores.transaction("orders"):
        raise StoreDamagedError("row 1 is wrong")
    assert raised.value.code == "hydrating"
    assert reported_damage(settings.store / "orders" / "v1-a-1") == "row 1 is wrong"
    assert refusal(stores, "orders") == ("hydrating", 503)
    made(settings, "v1-a-2", "new")
    pointed(settings, 1, v1="v1-a-2")
    assert rows_of(stores)[1]["state"] == "new"


def test_a_store_that_cannot_be_opened_is_reported(settings: Settings, stores: Stores) -> None:
    folder = settings.store / "orders" / "v1-a-1"
    made(settings, folder.name, "old")
    (folder / "data.mdb").write_bytes(b"\0" * 8192)
    pointed(settings, 1, v1=folder.name)
    assert refusal(stores, "orders") == ("hydrating", 503)
    assert reported_damage(folder) is not None


def test_looking_for_the_pointer_costs_next_to_nothing(settings: Settings) -> None:
    made(settings, "v1-a-1", "old")
    pointed(settings, 1, v1="v1-a-1")
    stores = Stores(settings)
    stores.reader("orders")
    began = time.process_time()
    for _ in range(10_000):
        stores.reader("orders")
    assert (time.process_time() - began) / 10_000 < 20e-6
    stores.close()
