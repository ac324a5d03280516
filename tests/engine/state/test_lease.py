"""The lock of a state folder on an object store, tried on the client's own store in memory."""

from __future__ import annotations

import json
import time

import pytest
from obstore.store import MemoryStore

from headrace.core.errors import ProjectError
from headrace.core.files import objects
from headrace.core.files.object_store import ObjectStore
from headrace.core.files.objects import ObjectPath
from headrace.engine.spark.failures import fault_of
from headrace.engine.state.lease import Lease, Owner, owner_of
from headrace.engine.state.state import StateDir


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> ObjectPath:
    store = MemoryStore()
    monkeypatch.setattr(objects, "_client_of", lambda _store, _bucket: store)
    return ObjectPath.of("s3://bucket/state", ObjectStore())


def claim(file: ObjectPath, **changes: object) -> None:
    """Let the lock say something else, as if another had written it."""
    file.put(json.dumps({**json.loads(file.read_bytes()), **changes}).encode())


def elsewhere(file: ObjectPath, seconds: float) -> None:
    """Let another machine hold the lock for that long."""
    claim(file, id="other", host="far", machine="far/1", pid=77, until=time.time() + seconds)


def await_problem(lease: Lease) -> ProjectError:
    deadline = time.monotonic() + 5
    while (found := lease.problem()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found is not None
    return found


def test_a_second_engine_is_refused_until_the_first_lets_go(root: ObjectPath) -> None:
    state = StateDir(root)
    with state.lock():
        holder = state.holder()
        assert holder is not None
        assert holder.host is None
        with pytest.raises(ProjectError) as refused, StateDir(root).lock():
            pass
        assert refused.value.code == "state-in-use"
        assert f"pid {holder.pid}" in refused.value.message
        assert state.fence.problem() is None
    assert state.holder() is None
    with StateDir(root).lock():
        pass


def test_a_lock_of_another_machine_is_taken_over_only_when_it_is_over(root: ObjectPath) -> None:
    state, file = StateDir(root), root / "engine.lock"
    first = Lease(file)
    assert first.take() is None
    elsewhere(file, 60)
    assert state.holder() == Owner(77, "far")
    with pytest.raises(ProjectError, match="pid 77 on far") as refused, state.lock():
        pass
    assert refused.value.code == "state-in-use"
    elsewhere(file, -60)
    assert state.holder() is None
    with state.lock():
        assert state.holder() is not None
    first.release()


def test_the_lock_of_a_killed_process_of_this_machine_is_free_at_once(root: ObjectPath) -> None:
    file = root / "engine.lock"
    first = Lease(file)
    assert first.take() is None
    claim(file, id="killed", born=1.0)  # its process id belongs to another process now
    assert owner_of(file) is None
    second = Lease(file)
    assert second.take() is None
    second.release()
    first.release()


def test_it_is_renewed_while_it_is_held(root: ObjectPath) -> None:
    lease = Lease(root / "lock", seconds=0.3)
    assert lease.take() is None
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        assert lease.problem() is None
        time.sleep(0.02)
    lease.release()
    assert not (root / "lock").exists()


def test_a_holder_that_was_taken_over_stops_for_good_and_leaves_the_lock(root: ObjectPath) -> None:
    lease = Lease(root / "lock", seconds=0.3)
    assert lease.take() is None
    elsewhere(root / "lock", 60)
    deadline = time.monotonic() + 5
    while (found := await_problem(lease)).code != "state-taken" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found.code == "state-taken"
    assert "pid 77 on far" in found.message
    assert fault_of(found, has_run=True) == "own"
    lease.release()
    assert owner_of(root / "lock") == Owner(77, "far")


def test_a_store_that_is_away_stops_the_holder_in_time_and_it_goes_on_later(
    root: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease(root / "lock", seconds=0.3)
    assert lease.take() is None
    put = ObjectPath.put

    def away(*_given: object, **_options: object) -> str:
        raise OSError(5, "away")

    monkeypatch.setattr(ObjectPath, "put", away)
    found = await_problem(lease)
    assert found.code == "state-unreachable"
    assert fault_of(found, has_run=True) == "outside"
    monkeypatch.setattr(ObjectPath, "put", put)
    deadline = time.monotonic() + 5
    while lease.problem() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lease.problem() is None
    lease.release()


def test_a_store_that_knows_no_conditions_is_refused(root: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    put = ObjectPath.put
    monkeypatch.setattr(ObjectPath, "put", lambda path, content, **_conditions: put(path, content))
    with pytest.raises(ProjectError) as refused, StateDir(root).lock():
        pass
    assert refused.value.code == "state-store-unfit"
    assert not (root / "engine.lock").exists()


def test_a_fence_lets_no_batch_through_when_the_lock_is_lost(root: ObjectPath) -> None:
    state = StateDir(root)
    with state.lock():
        state.fence.check()
        (lease,) = state.fence._leases
        lease._taken_by = Owner(77, "far")
        with pytest.raises(ProjectError, match="taken over"):
            state.fence.check()
    assert state.fence.problem() is None
