"""Requests that have to be durable before they are answered, made so together.

While one commit is under way, what comes meanwhile waits for the next: many requests share one, and a single one waits
for nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from headrace.core.errors import RequestError
from headrace.log.inbox import Inbox, Pushed, RepeatedIdError

_LOG = logging.getLogger(__name__)
_TOGETHER, _TOGETHER_BYTES = 20_000, 32_000_000
"""Rows of one commit, and their bytes, more or less."""

_Waiting = tuple[Pushed, asyncio.Future[int]]


class Desk:
    """Takes requests for one inbox, in one process."""

    def __init__(self, name: str, inbox: Inbox) -> None:
        self.name = name
        self._inbox = inbox
        self._waiting: list[_Waiting] = []
        self._work: asyncio.Task[None] | None = None
        self.waiting_bytes = 0
        """Of the rows that are not durable yet."""

    async def take(self, pushed: Pushed) -> int:
        """The position at which it is, when it is durable."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((pushed, future))
        size = _size(pushed)
        self.waiting_bytes += size
        if self._work is None:
            self._work = asyncio.create_task(self._commit())
        try:
            position: int = await future
        finally:
            self.waiting_bytes -= size
        return position

    async def _commit(self) -> None:
        try:
            while self._waiting:
                await self._commit_some(self._next())
        finally:
            self._work = None

    def _next(self) -> list[_Waiting]:
        count = rows = size = 0
        for pushed, _ in self._waiting:
            count, rows, size = count + 1, rows + len(pushed.entries), size + _size(pushed)
            if rows >= _TOGETHER or size >= _TOGETHER_BYTES:
                break
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    async def _commit_some(self, taken: list[_Waiting]) -> None:
        found: Sequence[int | Exception]
        try:
            found = await asyncio.to_thread(self.add, [pushed for pushed, _ in taken])
        except OSError as error:
            _LOG.warning("what was sent to '%s' could not be made durable: %s", self.name, error)
            found = [unavailable() for _ in taken]
        except Exception as error:
            found = [error for _ in taken]
        for (_, future), outcome in zip(taken, found, strict=True):
            if future.done():  # the caller has gone
                continue
            if isinstance(outcome, int):
                future.set_result(outcome)
            else:
                future.set_exception(_reused() if isinstance(outcome, RepeatedIdError) else outcome)

    def add(self, requests: Sequence[Pushed]) -> Sequence[int | Exception]:
        """Make requests durable, in a thread of its own."""
        return self._inbox.add(requests)


def _size(pushed: Pushed) -> int:
    return sum(len(entry.row) for entry in pushed.entries)


def _reused() -> RequestError:
    return RequestError(
        "idempotency-key-reused",
        "this key, or the id of a change, came before with something else",
        status=422,
        hint="the same key is for the same request sent again; take a new one for another",
    )


def unavailable() -> RequestError:
    """Nothing can be made durable now."""
    return RequestError(
        "inbox-unavailable",
        "what was sent could not be made durable",
        status=503,
        hint="send it again with the same idempotency key; the log of the node says what failed",
    )
