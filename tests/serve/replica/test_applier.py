"""The applier: every log ends up in a store, whatever was there before, and readers see only what is right."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.serve.nodekit import ORDERS, changes, commit, defined, order, recomputed, rows_of, settings_in, until

from headrace.core.endpoints import Conflicts, Endpoint, Op
from headrace.core.errors import ProjectError, RequestError
from headrace.core.schema import from_ddl
from headrace.log.folder import LogFolder
from headrace.serve.access.stores import Stores
from headrace.serve.base.settings import Settings
from headrace.serve.base.status import read_status
from headrace.serve.replica.applier import Applier
from headrace.serve.replica.corruption_flag import flag_reason, set_flag
from headrace.serve.replica.follower import LogFollower
from headrace.serve.replica.pointers import read_pointer, report_damage
from headrace.serve.replica.snapshots import request_snapshot


@contextmanager
def applying(settings: Settings) -> Iterator[Stores]:
    """An applier in threads of this process, and stores to read from."""
    stopping = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            Applier(settings).run(stopping)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    stores = Stores(settings)
    try:
        yield stores
    finally:
        stores.close()
        stopping.set()
        thread.join(20)
        assert not thread.is_alive()
        assert failed == []


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_in(tmp_path)


def said(settings: Settings, name: str = "orders") -> dict[str, Any]:
    return read_status(settings.store).endpoints.get(name, {})


def at(settings: Settings, position: int) -> Callable[[], bool]:
    return lambda: said(settings).get("position") == position and said(settings)["state"] == "ready"


def test_a_log_is_followed_while_it_grows(settings: Settings) -> None:
    with applying(settings) as stores:
        with pytest.raises(RequestError) as raised:
            stores.reader("orders")
        assert raised.value.code == "hydrating"
        log = defined(settings)
        commit(log, 0, changes([order(1), order(2)]))
        until(at(settings, 1))
        commit(log, 1, changes([order(1, "paid", 7)]), changes([order(2)], Op.DELETE))
        until(at(settings, 2))
        assert rows_of(stores) == recomputed(log) == {1: order(1, "paid", 7)}
        status = said(settings)
    assert (status["state"], status["version"], status["rows"], status["changes"]) == ("ready", 1, 1, 4)
    assert status["lag"] == {"segments": 0, "seconds": 0.0}
    assert status["error"] is None


def test_ready_is_said_only_of_what_readers_find(settings: Settings) -> None:
    log = defined(settings)
    commit(log, 0, changes([order(1)]))
    told: list[str] = []

    def tell() -> None:
        told.append(follower.state)
        if len(told) == 1:
            raise OSError(errno.ENOSPC, "no space left on device")

    follower = LogFollower(settings, ORDERS, log, None, tell)
    follower.start()
    try:
        until(lambda: follower.state == "ready")
    finally:
        follower.close()
    assert told == ["hydrating", "failed"], "what could not be told is told again, and ready only then"


def test_it_goes_on_where_it_was(settings: Settings) -> None:
    log = defined(settings)
    commit(log, 0, changes([order(1)]))
    with applying(settings):
        until(at(settings, 1))
    folder = read_pointer(settings.store / "orders").folder(None)
    commit(log, 1, changes([order(2)]))
    with applying(settings) as stores:
        assert stores.served("orders") == 1, "what is there is served at once"
        until(at(settings, 2))
        assert rows_of(stores) == recomputed(log)
    assert read_pointer(settings.store / "orders").folder(None) == folder


def test_a_store_has_one_applier(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.serve.replica.applier.STOP_SECONDS", 0.1)
    with applying(settings):
        until(lambda: read_status(settings.store).as_of)
        with pytest.raises(ProjectError) as raised:
            Applier(settings).run(threading.Event())
    assert raised.value.code == "store-in-use"


def test_a_new_version_is_built_beside_and_served_when_the_alias_moves(settings: Settings) -> None:
    wider = replace(ORDERS, columns=from_ddl("id bigint, state string, amount int, note string"))
    commit(defined(settings), 0, changes([order(1)]))
    with applying(settings) as stores:
        until(at(settings, 1))
        second = defined(settings, wider)
        commit(second, 0, changes([{**order(1), "note": "wide"}], endpoint=wider))
        until(lambda: stores.versions("orders") == [1, 2])
        assert "note" not in rows_of(stores)[1]
        assert rows_of(stores, version=2)[1]["note"] == "wide"
        LogFolder(settings.log).serve("orders", 2)
        until(lambda: stores.served("orders") == 2)
        assert rows_of(stores)[1]["note"] == "wide"
        LogFolder(settings.log).drop("orders", 1)
        until(lambda: stores.versions("orders") == [2])
        until(lambda: not list((settings.store / "orders").glob("v1-*")))
        assert rows_of(stores)[1]["note"] == "wide"


def test_the_old_version_is_served_until_the_new_one_has_caught_up(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    wider = replace(ORDERS, columns=from_ddl("id bigint, state string, amount int, note string"))
    commit(defined(settings), 0, changes([order(1)]))
    second = defined(settings, wider)
    commit(second, 0, changes([{**order(1), "note": "wide"}], endpoint=wider))
    part = next((settings.log / "orders" / "v2" / "parts").iterdir())
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    LogFolder(settings.log).serve("orders", 2)
    monkeypatch.setattr("headrace.serve.replica.follower._TRY_AGAIN_SECONDS", 0.05)
    with applying(settings) as stores:
        until(lambda: said(settings).get("versions", {}).get("2", {}).get("state") == "failed")
        until(lambda: stores.versions("orders") == [1])
        assert said(settings)["versions"]["2"]["error"]["code"] == "log-damaged"
        assert stores.served("orders") is None, "version 1 was never served here"
        part.write_bytes(whole)
        until(lambda: stores.served("orders") == 2)
        assert rows_of(stores)[1]["note"] == "wide"


def test_policies_change_within_a_version(settings: Settings) -> None:
    log = defined(settings)
    commit(log, 0, changes([order(1)]))
    with applying(settings) as stores:
        until(at(settings, 1))
        log = defined(settings, replace(ORDERS, conflicts=Conflicts(on_insert="error")))
        until(lambda: _policy(stores) == "error")
        commit(log, 1, changes([order(1, "again")], Op.INSERT))
        until(at(settings, 2))
        assert rows_of(stores) == {1: order(1)}
        until(lambda: said(settings)["refused"] == 1)


def _policy(stores: Stores) -> str:
    fresh = Stores(stores._settings)
    with ExitStack() as stack:
        stack.callback(fresh.close)
        return fresh.reader("orders").endpoint.conflicts.on_insert


def test_a_damaged_segment_is_waited_for_and_never_skipped(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.serve.replica.follower._TRY_AGAIN_SECONDS", 0.05)
    log = defined(settings)
    for number in range(3):
        commit(log, number, changes([order(number)]))
    part = sorted((settings.log / "orders" / "v1" / "parts").iterdir(), key=lambda one: one.stat().st_mtime_ns)[1]
    whole = part.read_bytes()
    part.write_bytes(whole[:100] + b"\0\0\0" + whole[103:])
    with applying(settings) as stores:
        until(lambda: (said(settings).get("error") or {}).get("code") == "log-damaged")
        assert said(settings)["position"] == 1
        part.write_bytes(whole)
        until(at(settings, 3))
        assert said(settings)["error"] is None
        assert rows_of(stores) == recomputed(log)


def test_a_log_that_was_begun_anew_is_not_taken_for_the_former(settings: Settings) -> None:
    for number in range(3):
        commit(defined(settings), number, changes([order(number)]))
    with applying(settings):
        until(at(settings, 3))
    settings.log.rename(settings.log.with_name("gone"))
    commit(defined(settings), 0, changes([order(9)]))
    with applying(settings) as stores:
        until(at(settings, 1))
        assert rows_of(stores) == {9: order(9)}
        settings.log.rename(settings.log.with_name("gone too"))
        for number in range(2):
            commit(defined(settings), number, changes([order(10 + number)]))
        until(at(settings, 2))
        assert rows_of(stores) == {10: order(10), 11: order(11)}


def test_a_log_that_cannot_be_seen_takes_nothing_with_it(settings: Settings) -> None:
    commit(defined(settings), 0, changes([order(1)]))
    with applying(settings) as stores:
        until(at(settings, 1))
        away = settings.log.rename(settings.log.with_name("away"))
        before = read_status(settings.store).as_of
        until(lambda: read_status(settings.store).as_of != before)
        until(lambda: said(settings)["state"] == "ready")
        assert rows_of(stores) == {1: order(1)}
        away.rename(settings.log)
        commit(LogFolder(settings.log).open("orders", 1), 1, changes([order(2)]))
        until(at(settings, 2))


def test_a_reported_store_is_built_anew(settings: Settings) -> None:
    log = defined(settings)
    commit(log, 0, changes([order(1)]))
    with applying(settings) as stores:
        until(at(settings, 1))
        before = stores.reader("orders").folder
        report_damage(before, "a test says so")
        until(lambda: read_pointer(settings.store / "orders").folder(None) not in (None, before.name))
        until(at(settings, 1))
        assert rows_of(stores) == recomputed(log)
        assert (settings.store / "orders" / "aside" / "data.mdb").exists()
        assert not before.exists()


@pytest.mark.service
def test_after_a_crash_every_store_is_checked(settings: Settings) -> None:
    log = defined(settings)
    commit(log, 0, changes([order(number) for number in range(2000)]))
    with applying(settings):
        until(at(settings, 1))
    folder = settings.store / "orders" / str(read_pointer(settings.store / "orders").folder(None))
    data = bytearray((folder / "data.mdb").read_bytes())
    spot = data.index(b'"id":77,"state"')
    data[spot + 5] = ord("9")
    (folder / "data.mdb").write_bytes(data)
    set_flag(settings.store, "a test says so")
    with applying(settings) as stores:
        until(lambda: read_pointer(folder.parent).folder(None) not in (None, folder.name))
        assert rows_of(stores) == recomputed(log)
    assert flag_reason(settings.store) is None


@pytest.mark.service
def test_a_node_with_an_empty_disk_begins_with_the_snapshot(tmp_path: Path) -> None:
    first = settings_in(tmp_path, snapshots={"keep": 1})
    log = defined(first)
    for number in range(5):
        commit(log, number, changes([order(number)]))
    with applying(first) as stores:
        until(at(first, 5))
        assert request_snapshot(first.store, "orders", 1, 30) == 5
        until(lambda: log.begin() == 6)
        commit(log, 5, changes([order(0, "paid")]))
        until(at(first, 6))
        second = replace(first, store=tmp_path / "second")
        with applying(second) as others:
            until(at(second, 6))
            assert rows_of(others) == rows_of(stores)
            assert said(second)["changes"] == said(first)["changes"]


@pytest.mark.service
def test_a_node_that_lags_behind_the_cut_goes_on_from_a_snapshot(tmp_path: Path) -> None:
    first = settings_in(tmp_path, snapshots={"keep": 1})
    second = replace(first, store=tmp_path / "second")
    log = defined(first)
    commit(log, 0, changes([order(0)]))
    with applying(second):
        until(at(second, 1))
    with applying(first) as stores:
        commit(log, 1, changes([order(1)]))
        until(at(first, 2))
        assert request_snapshot(first.store, "orders", 1, 30) == 2
        with applying(second) as others:
            until(at(second, 2))
            assert rows_of(others) == rows_of(stores) == {0: order(0), 1: order(1)}
    assert len(list((second.store / "orders").glob("v1-*"))) == 1


def test_a_log_that_was_cut_off_without_a_snapshot_is_told(settings: Settings, tmp_path: Path) -> None:
    log = defined(settings)
    for number in range(3):
        commit(log, number, changes([order(number)]))
    log.cut(2)
    with applying(settings) as stores:
        until(lambda: said(settings).get("state") == "failed")
        assert said(settings)["error"]["code"] == "log-cut"
        with pytest.raises(RequestError) as raised:
            rows_of(stores)
        assert raised.value.code == "hydrating"


@pytest.mark.service
def test_snapshots_are_made_when_they_are_due_and_pruned(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, snapshots={"every": "100ms", "keep": 1})
    log = defined(settings)
    with applying(settings):
        for number in range(2):
            commit(log, number, changes([order(number)]))
            until(lambda number=number: said(settings).get("snapshot") == number + 1)
        until(lambda: log.begin() == 3)


def test_many_endpoints_are_followed_at_once(settings: Settings) -> None:
    names = [f"orders_{number}" for number in range(8)]
    logs = {name: defined(settings, replace(ORDERS, name=name)) for name in names}
    for name, log in logs.items():
        commit(log, 0, changes([order(1, name)]))
    with applying(settings) as stores:
        until(lambda: sum(one["state"] == "ready" for one in stores.status().values()) == 8)
        for name in names:
            assert rows_of(stores, name) == {1: order(1, name)}
        assert set(stores.names()) == {*names, "orders"}


def test_the_status_is_json_for_everybody(settings: Settings) -> None:
    endpoint: Endpoint = replace(ORDERS, name="orders")
    commit(defined(settings, endpoint), 0, changes([order(1)]))
    with applying(settings):
        until(at(settings, 1))
    document = json.loads((settings.store / "status.json").read_text())
    assert document["endpoints"]["orders"]["alias"] == 1
    assert read_status(settings.store).to_json()["endpoints"]["orders"]["versions"]["1"]["rows"] == 1
