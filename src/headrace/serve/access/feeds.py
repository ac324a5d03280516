"""Reads new changes of a store once for all subscribers in this process. `subscription` applies the row filter.

There are no queues: the store keeps a ring of past changes, and each subscriber reads it at its own pace. The newest
changes are cached, so that subscribers that keep up cost the store nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from headrace.core.errors import RequestError
from headrace.serve.access.stores import Stores
from headrace.store.endpoint.reader import ReadTransaction, StoreEvent, StoreEvents

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.025
_AT_ONCE = 1_000
_CACHED = 4_000


class Feeds:
    """The feeds of one process, with a limit on all their subscribers."""

    def __init__(self, stores: Stores, most: int) -> None:
        self._stores = stores
        self._most = most
        self._feeds: dict[tuple[str, int | None], Feed] = {}
        self.stopping = False
        self.subscribers = 0

    @contextmanager
    def join(self, name: str, requested_version: int | None) -> Iterator[Feed]:
        """Subscribe to the feed of an endpoint: of the requested version, or else of the served one."""
        if self.stopping:
            raise stopped()
        if self.subscribers >= self._most:
            raise RequestError(
                "too-many-subscribers",
                f"this process already has {self._most} live subscriptions",
                status=429,
                hint="end some, retry to reach another process, or raise 'serve.limits.subscribers'",
            )
        feed = self._feed(name, requested_version)
        self.subscribers += 1
        feed.subscribers += 1
        try:
            yield feed
        finally:
            self.subscribers -= 1
            feed.subscribers -= 1
            if not feed.subscribers:
                feed.end()

    def stop(self) -> None:
        """End all subscriptions and accept no new ones."""
        self.stopping = True
        for feed in list(self._feeds.values()):
            feed.end()

    def _feed(self, name: str, requested_version: int | None) -> Feed:
        feed = self._feeds.get((name, requested_version))
        if feed is None or feed.over:
            feed = self._feeds[name, requested_version] = Feed(self._stores, name, requested_version)
        return feed


class Feed:
    """The changes of one version of one endpoint, as they happen."""

    def __init__(self, stores: Stores, name: str, requested_version: int | None) -> None:
        self._stores, self._name, self._requested_version = stores, name, requested_version
        with self.transaction() as transaction:
            self.endpoint = transaction.endpoint
            self.version = transaction.version
        self.moved_to: int | None = None
        """The version of the endpoint that replaced this one."""
        self.subscribers = 0
        self._recent: list[StoreEvent] = []
        loop = asyncio.get_running_loop()
        self._next: asyncio.Future[None] = loop.create_future()
        self._task: asyncio.Task[None] = loop.create_task(self._follow())

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._task.done() or self._task.cancelling() > 0

    @contextmanager
    def transaction(self) -> Iterator[ReadTransaction]:
        with self._stores.transaction(self._name, self._requested_version) as transaction:
            yield transaction

    def after(self, version: int, limit: int = _AT_ONCE) -> StoreEvents:
        """The changes after a version: from the cache, or else from the store."""
        if version >= self.version:
            return StoreEvents(0, [])
        if self._recent and self._recent[0].version <= version + 1:
            begin = version + 1 - self._recent[0].version
            return StoreEvents(self._recent[0].version, list(islice(self._recent, begin, begin + limit)))
        with self.transaction() as transaction:
            if transaction.endpoint.version != self.endpoint.version:  # the next poll detects it and ends the feed
                return StoreEvents(0, [])
            return transaction.events(version, limit)

    async def news(self, seconds: float) -> None:
        """Wait for the next change, but at most this long."""
        await asyncio.wait([self._next], timeout=seconds)

    def end(self) -> None:
        self._task.cancel()
        self._wake()

    async def _follow(self) -> None:
        while self.moved_to is None:
            try:
                more = self._poll()
            except RequestError as error:  # the store is being rebuilt; subscribers wait for it
                more = False
                if error.status != 503:
                    _LOG.info("changes of '%s' are not available: %s", self._name, error.message)
            except Exception:
                more = False
                _LOG.exception("the changes of '%s' cannot be read", self._name)
            await asyncio.sleep(0 if more else _POLL_SECONDS)

    def _poll(self) -> bool:
        """Read new changes; returns whether there are more."""
        with self.transaction() as transaction:
            if transaction.endpoint.version != self.endpoint.version:
                self.moved_to = transaction.endpoint.version
                self._wake()
                return False
            newest = transaction.version
            if newest <= self.version:
                return False
            new = transaction.events(self.version, _AT_ONCE)
        events = new.events
        contiguous = bool(events) and events[0].version == self.version + 1
        self._recent = [*(self._recent if contiguous else ()), *events][-_CACHED:]
        self.version = events[-1].version if events else newest
        self._wake()
        return self.version < newest

    def _wake(self) -> None:
        waiting, self._next = self._next, self._next.get_loop().create_future()
        if not waiting.done():
            waiting.set_result(None)


def stopped() -> RequestError:
    return RequestError("stopping", "this node is stopping", status=503, hint="resume from the last event elsewhere")


def unavailable(error: RequestError) -> bool:
    """Whether the error is temporary, so that a retry makes sense."""
    return error.status == 503 and error.code != "stopping"
