"""Where live events come from: one look at a store's newest change for all who subscribe to it in this process.

Nothing waits in queues: what happened stands in the store's ring of past changes, and each subscriber reads it at its
own pace. The newest changes are kept decoded, so that those who keep up cost the store nothing.
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
_LOOK_SECONDS = 0.025
_AT_ONCE = 1_000
_KEPT = 4_000


class Feeds:
    """The feeds of one process, and how many subscribers they have in all."""

    def __init__(self, stores: Stores, most: int) -> None:
        self._stores = stores
        self._most = most
        self._feeds: dict[tuple[str, int | None], Feed] = {}
        self.stopping = False
        self.subscribers = 0

    @contextmanager
    def join(self, name: str, asked: int | None) -> Iterator[Feed]:
        """The feed of an endpoint, in the version that is served unless one is named, for one more subscriber."""
        if self.stopping:
            raise stopped()
        if self.subscribers >= self._most:
            raise RequestError(
                "too-many-subscribers",
                f"this process has {self._most} live subscriptions already",
                status=429,
                hint="end some, ask again for another process, or raise 'serve.limits.subscribers'",
            )
        feed = self._feed(name, asked)
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
        """All subscriptions end now, and none begins."""
        self.stopping = True
        for feed in list(self._feeds.values()):
            feed.end()

    def _feed(self, name: str, asked: int | None) -> Feed:
        feed = self._feeds.get((name, asked))
        if feed is None or feed.over:
            feed = self._feeds[name, asked] = Feed(self._stores, name, asked)
        return feed


class Feed:
    """The changes of one version of one endpoint, as they come."""

    def __init__(self, stores: Stores, name: str, asked: int | None) -> None:
        self._stores, self._name, self._asked = stores, name, asked
        with self.view() as view:
            self.endpoint = view.endpoint
            self.version = view.version
        self.moved_to: int | None = None
        """The version of the endpoint that is served instead of this one."""
        self.subscribers = 0
        self._recent: list[StoreEvent] = []
        loop = asyncio.get_running_loop()
        self._next: asyncio.Future[None] = loop.create_future()
        self._task: asyncio.Task[None] = loop.create_task(self._follow())

    @property
    def over(self) -> bool:
        """Whether nothing will come from it any more."""
        return self._task.done() or self._task.cancelling() > 0

    @contextmanager
    def view(self) -> Iterator[ReadTransaction]:
        """One moment of the store."""
        with self._stores.view(self._name, self._asked) as view:
            yield view

    def after(self, version: int, limit: int = _AT_ONCE) -> StoreEvents:
        """The changes after one: from those that are kept here, else from the store."""
        if version >= self.version:
            return StoreEvents(0, [])
        if self._recent and self._recent[0].version <= version + 1:
            begin = version + 1 - self._recent[0].version
            return StoreEvents(self._recent[0].version, list(islice(self._recent, begin, begin + limit)))
        with self.view() as view:
            if view.endpoint.version != self.endpoint.version:  # the next look will notice, and say so
                return StoreEvents(0, [])
            return view.events(version, limit)

    async def news(self, seconds: float) -> None:
        """Wait for the next change, but not longer than this."""
        await asyncio.wait([self._next], timeout=seconds)

    def end(self) -> None:
        """Look no more."""
        self._task.cancel()
        self._wake()

    async def _follow(self) -> None:
        while self.moved_to is None:
            try:
                more = self._look()
            except RequestError as error:  # the store is being built anew; subscribers wait with us
                more = False
                if error.status != 503:
                    _LOG.info("no changes of '%s' for now: %s", self._name, error.message)
            except Exception:
                more = False
                _LOG.exception("the changes of '%s' cannot be read for now", self._name)
            await asyncio.sleep(0 if more else _LOOK_SECONDS)

    def _look(self) -> bool:
        """Take in what is new; whether there is more."""
        with self.view() as view:
            if view.endpoint.version != self.endpoint.version:
                self.moved_to = view.endpoint.version
                self._wake()
                return False
            newest = view.version
            if newest <= self.version:
                return False
            found = view.events(self.version, _AT_ONCE)
        events = found.events
        contiguous = bool(events) and events[0].version == self.version + 1
        self._recent = [*(self._recent if contiguous else ()), *events][-_KEPT:]
        self.version = events[-1].version if events else newest
        self._wake()
        return self.version < newest

    def _wake(self) -> None:
        waiting, self._next = self._next, self._next.get_loop().create_future()
        if not waiting.done():
            waiting.set_result(None)


def stopped() -> RequestError:
    """The process is about to end."""
    return RequestError("stopping", "this node is stopping", status=503, hint="go on from the last event elsewhere")


def unavailable(error: RequestError) -> bool:
    """Whether it is worth waiting for the error to go away."""
    return error.status == 503 and error.code != "stopping"
