"""Live events at their source: every change once and in order, or the subscriber knows what it missed."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.serve.kit import FILMS, Served, film

from headrace.core.endpoints import OLD, OP, Endpoint, Op
from headrace.core.errors import RequestError
from headrace.core.schema import from_ddl
from headrace.project.serving import Access
from headrace.serve.access import subscription
from headrace.serve.access.access import AccessControl, EndpointAccess
from headrace.serve.access.feeds import Feeds
from headrace.serve.access.grants import Grant
from headrace.serve.access.stores import Stores
from headrace.serve.access.subscription import Subscription, SubscriptionItem, SubscriptionRequest
from headrace.serve.base.status import write_status
from headrace.serve.replica.pointers import Pointer, write_pointer
from headrace.store.endpoint.writer import StoreWriter

PAIRS = Endpoint("pairs", from_ddl("id int, n int"), key=("id",))
Change = tuple[Op, int | None, int, int | None]
"""Op, old key if it changes, key, value."""
Work = Callable[[Callable[..., AsyncIterator[list[SubscriptionItem]]], Feeds], Any]


class Bench:
    """Subscriptions to a served store."""

    def __init__(self, served: Served, name: str = "films", most: int = 10, grant: Grant | None = None) -> None:
        self.stores = Stores(served.settings())
        self.access = AccessControl.of(served.settings(), self.stores)
        self.name, self._most = name, most
        self.grant = grant or Grant("all", frozenset({"events"}))

    def run(self, work: Work) -> Any:
        async def main() -> Any:
            feeds = Feeds(self.stores, self._most)

            def subscribe(heartbeat: float = 15.0, **wanted: Any) -> AsyncIterator[list[SubscriptionItem]]:
                return Subscription(feeds, self.door, SubscriptionRequest(**wanted), heartbeat).items()

            try:
                async with asyncio.timeout(120):
                    return await work(subscribe, feeds)
            finally:
                feeds.stop()
                await asyncio.sleep(0)

        try:
            return asyncio.run(main())
        finally:
            self.stores.close()

    def door(self) -> EndpointAccess:
        return self.access.open(self.grant, self.name, "events")


async def take(items: AsyncIterator[list[SubscriptionItem]], count: int) -> list[SubscriptionItem]:
    found: list[SubscriptionItem] = []
    while len(found) < count:
        found += [item for item in await anext(items) if item.type != "heartbeat"]
    return found


def test_changes_in_order_and_on_from_a_token(served: Served) -> None:
    async def work(subscribe: Any, feeds: Feeds) -> None:
        live = subscribe()
        (begun,) = await anext(live)
        assert (begun.type, begun.token) == ("heartbeat", "v1-20")
        served.put(FILMS, [film(1, title="X"), film(50)])
        served.put(FILMS, [{"id": 50}], Op.DELETE)
        found = await take(live, 3)
        assert [(one.type, one.token) for one in found] == [
            ("update", "v1-21"),
            ("insert", "v1-22"),
            ("delete", "v1-23"),
        ]
        assert json.loads(found[0].row or b"")["title"] == "X"
        assert json.loads(found[0].old or b"")["title"] == "Film 1"
        assert (found[2].row, json.loads(found[2].old or b"")["id"]) == (None, 50)
        resumed = await take(subscribe(after="v1-21"), 2)
        assert resumed == found[1:]

    Bench(served).run(work)


def test_filter_and_types_look_at_both_sides_of_a_change(served: Served) -> None:
    async def work(subscribe: Any, feeds: Feeds) -> None:
        live = subscribe(filter={"year": 2000}, types=frozenset({"insert", "delete"}), after="v1-20")
        await anext(live)
        served.put(FILMS, [film(1, year=2000), film(1, year=2000, title="Y"), film(2)])
        served.put(FILMS, [film(1, year=2000, title="Z"), film(10), film(1, year=2001)])
        found = await take(live, 2)
        assert [one.type for one in found] == ["insert", "delete"]
        assert json.loads(found[1].old or b"")["title"] == "Z"

    Bench(served).run(work)


def test_a_grant_narrows_what_is_seen(served: Served) -> None:
    access = Access(fields=["id"], filter={"region": "EU"})
    grant = Grant("eu", frozenset({"events"}), {"films": access})

    async def work(subscribe: Any, feeds: Feeds) -> None:
        live = subscribe(snapshot=True)
        rows = await take(live, 15)
        assert [json.loads(one.row or b"null") for one in rows[:2]] == [{"id": 1}, {"id": 2}]
        served.put(FILMS, [film(1, title="hidden"), film(3, title="not ours"), film(2, region="US")])
        (gone,) = await take(live, 1)
        assert (gone.type, json.loads(gone.old or b"")) == ("delete", {"id": 2})

    Bench(served, grant=grant).run(work)


class Pairs:
    """A small endpoint with a ring of its own size."""

    def __init__(self, folder: Path, events: int) -> None:
        self.served = Served(folder)
        home = folder / "store" / "pairs"
        self.writer = StoreWriter.open(home / "v1-a", PAIRS, events=events)
        self.rows: dict[int, int] = {}
        self.planned: list[dict[str, Any]] = []
        write_pointer(home, Pointer(1, {1: "v1-a"}))
        write_status(folder / "store", {"pairs": {"state": "ready", "error": None}})

    def plan(self, operation: Change) -> None:
        """A change of the next batch."""
        op, old, key, value = operation
        self.planned.append({OP: int(op), OLD: None if old is None else {"id": old}, "id": key, "n": value})
        self.rows.pop(key if old is None else old, None)
        if value is not None:
            self.rows[key] = value

    def apply(self, *operations: Change) -> None:
        """One batch."""
        for operation in operations:
            self.plan(operation)
        batch = pa.RecordBatch.from_pylist(self.planned, PAIRS.changes)
        self.planned = []
        self.writer.apply(self.writer.position + 1, [batch])


@pytest.fixture
def pairs(tmp_path: Path) -> Iterator[Pairs]:
    found = Pairs(tmp_path, events=50)
    yield found
    found.writer.close()


def _told(known: dict[int, int], item: SubscriptionItem) -> None:
    """What a client does that keeps a copy: it may never be told of a row twice, nor of one it does not have."""
    row, old = (json.loads(one) if one else None for one in (item.row, item.old))
    match item.type:
        case "snapshot" | "insert":
            assert row["id"] not in known
            known[row["id"]] = row["n"]
        case "update":
            assert known.pop(old["id"]) == old["n"]
            assert row["id"] not in known
            known[row["id"]] = row["n"]
        case "delete":
            assert known.pop(old["id"]) == old["n"]
        case "gap":
            known.clear()


def _random_change(rng: random.Random, rows: dict[int, int]) -> Change:
    free = [key for key in range(40) if key not in rows]
    if rows and (rng.random() < 0.3 or not free):
        return Op.DELETE, None, rng.choice(list(rows)), None
    if rows and free and rng.random() < 0.4:
        return Op.UPDATE, rng.choice(list(rows)), rng.choice(free), rng.randrange(1000)
    return Op.UPSERT, None, rng.randrange(40), rng.randrange(1000)


@pytest.mark.service
@settings(max_examples=6, phases=[Phase.generate])
@given(seed=st.integers(0, 2**32), events=st.sampled_from([12, 1000]))
def test_a_copy_kept_from_events_is_the_store(tmp_path_factory: pytest.TempPathFactory, seed: int, events: int) -> None:
    """Rows are written between the pieces of the snapshot, and all along after it."""
    rng = random.Random(seed)
    pairs = Pairs(tmp_path_factory.mktemp("pairs"), events=events)

    def change() -> None:
        many = rng.choice([1, 3, 3, 20])
        for _ in range(many):
            pairs.plan(_random_change(rng, pairs.rows))
        pairs.apply()

    async def work(subscribe: Any, feeds: Feeds) -> dict[int, int]:
        known: dict[int, int] = {}
        live, changes = subscribe(snapshot=True, heartbeat=0.05), 12  # some changes have no effect to wait for
        while changes or 99 not in known:
            for item in await anext(live):
                _told(known, item)
            if changes:
                changes -= 1
                change() if changes else pairs.apply((Op.UPSERT, None, 99, 1))
        return known

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subscription, "_PIECE", 3)
        pairs.apply(*((Op.UPSERT, None, key, 0) for key in range(0, 40, 2)))
        assert Bench(pairs.served, "pairs").run(work) == pairs.rows
    pairs.writer.close()


@pytest.mark.service
def test_no_loss_and_no_double_under_a_busy_writer(pairs: Pairs) -> None:
    pairs.writer.close()
    big = Pairs(pairs.served.folder / "big", events=100_000)
    total = 3_000

    def write() -> None:
        for start in range(0, total, 250):
            big.apply(*((Op.UPSERT, None, number % 300, number) for number in range(start, start + 250)))

    async def one(subscribe: Any, snapshot: bool) -> dict[int, int]:
        known: dict[int, int] = {}
        last = 0
        async for items in subscribe(snapshot=snapshot, after=None if snapshot else "v1-0"):
            for item in items:
                _told(known, item)
                if item.token and item.type != "heartbeat":
                    assert int(item.token[3:]) >= last
                    last = int(item.token[3:])
            if last >= total:
                return known
        raise AssertionError("it ended")

    async def work(subscribe: Any, feeds: Feeds) -> list[dict[int, int]]:
        bench.door()  # a store is never opened in the process that is writing to it at that moment
        thread = threading.Thread(target=write)
        thread.start()
        found = await asyncio.gather(*(one(subscribe, snapshot) for snapshot in (True, False, True, False)))
        await asyncio.to_thread(thread.join)
        return found

    bench = Bench(big.served, "pairs")
    for known in bench.run(work):
        assert known == big.rows
    big.writer.close()


def test_who_comes_back_too_late_is_told(pairs: Pairs) -> None:
    pairs.apply(*((Op.UPSERT, None, 1, number) for number in range(200)))

    async def work(subscribe: Any, feeds: Feeds) -> None:
        gap, first, *_ = await take(subscribe(after="v1-10"), 2)
        assert gap.type == "gap"
        assert gap.gap is not None
        begin, missed = (int(one.removeprefix("v1-")) for one in gap.gap)
        assert (begin, gap.token) == (10, f"v1-{missed}")
        assert first.token == f"v1-{missed + 1}"
        with_rows = await take(subscribe(after="v1-10", snapshot=True), 3)
        assert [one.type for one in with_rows] == ["gap", "snapshot", "snapshot_end"]
        assert with_rows[0].token is None
        assert with_rows[2].token == "v1-200"

    Bench(pairs.served, "pairs").run(work)


@pytest.mark.service
def test_a_slow_reader_is_told_and_slows_nobody(tmp_path: Path) -> None:
    pairs = Pairs(tmp_path, events=1_000)

    async def work(subscribe: Any, feeds: Feeds) -> None:
        slow, quick = subscribe(after="v1-0"), subscribe(after="v1-0")
        await anext(slow)
        await anext(quick)
        for start in range(0, 6_000, 1_000):  # more than is kept in memory
            pairs.apply(*((Op.UPSERT, None, 1, number) for number in range(start, start + 1_000)))
            assert len(await take(quick, 1_000)) == 1_000
        gap, *rest = await take(slow, 1_001)
        assert gap.gap is not None
        assert gap.gap[0] == "v1-0"
        missed = int(gap.gap[1].removeprefix("v1-"))
        assert missed >= 1_000
        assert [one.token for one in rest[:3]] == [f"v1-{missed + number}" for number in (1, 2, 3)]

    Bench(pairs.served, "pairs").run(work)
    pairs.writer.close()


def test_a_slow_reader_catches_up_from_the_ring(pairs: Pairs) -> None:
    async def work(subscribe: Any, feeds: Feeds) -> None:
        slow = subscribe(after="v1-0")
        await anext(slow)
        pairs.apply(*((Op.UPSERT, None, 1, number) for number in range(30)))
        assert [one.token for one in await take(slow, 30)] == [f"v1-{number}" for number in range(1, 31)]

    Bench(pairs.served, "pairs").run(work)


def test_another_version_ends_it(served: Served) -> None:
    async def work(subscribe: Any, feeds: Feeds) -> None:
        live = subscribe()
        await anext(live)
        served.put(Endpoint("films", from_ddl("id bigint, stars int"), key=("id",), version=2), [{"id": 1, "stars": 3}])
        (told,) = await take(live, 1)
        assert (told.type, told.version) == ("version", 2)
        with pytest.raises(StopAsyncIteration):
            await anext(live)
        gap, row, _ = await take(subscribe(after="v1-20", snapshot=True), 3)
        assert gap.gap == ("v1-20", "v2-1")
        assert json.loads(row.row or b"") == {"id": 1, "stars": 3}

    Bench(served).run(work)


def test_heartbeats_say_where_it_is(served: Served) -> None:
    async def work(subscribe: Any, feeds: Feeds) -> None:
        live = subscribe(heartbeat=0.02, filter={"id": 5})
        await anext(live)
        served.put(FILMS, [film(6, title="not wanted")])
        async with asyncio.timeout(10):
            while (await anext(live))[0].token != "v1-21":
                pass

    Bench(served).run(work)


def test_it_ends_when_the_grant_does(served: Served) -> None:
    bench = Bench(served)

    async def work(subscribe: Any, feeds: Feeds) -> None:
        live = subscribe(heartbeat=0.01)
        await anext(live)
        bench.grant = Grant("none", frozenset())
        with pytest.raises(RequestError, match="events"):
            await take(live, 1)
        assert feeds.subscribers == 0

    bench.run(work)


def test_only_so_many_and_none_while_it_stops(served: Served) -> None:
    async def work(subscribe: Any, feeds: Feeds) -> None:
        live = subscribe()
        await anext(live)
        with pytest.raises(RequestError) as refused:
            await anext(subscribe())
        assert (refused.value.code, refused.value.status) == ("too-many-subscribers", 429)
        await live.aclose()
        again = subscribe()
        await anext(again)
        feeds.stop()
        with pytest.raises(RequestError) as refused:
            await anext(again)
        assert refused.value.code == "stopping"
        with pytest.raises(RequestError):
            await anext(subscribe())

    Bench(served, most=1).run(work)


@pytest.mark.parametrize("token", ["5", "v1", "v0-1", "v1-", "v1--1", "v1-1 ", "v1-99999999999999999999", "ü"])
def test_tokens_that_are_none(token: str) -> None:
    with pytest.raises(RequestError) as refused:
        SubscriptionRequest.of(None, [], False, token)
    assert refused.value.code == "bad-resume-token"


def test_types_that_are_none() -> None:
    with pytest.raises(RequestError) as refused:
        SubscriptionRequest.of(None, ["upsert"], False, None)
    assert refused.value.code == "bad-event-type"
