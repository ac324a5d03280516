"""Group commit: requests that must be durable before they are answered share one commit.

While a commit runs, new requests wait for the next one: many requests share a commit, and a single request waits for
no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from headrace.core.errors import RequestError
from headrace.log.inbox import Inbox, Pushed, RepeatedIdError

_LOG = logging.getLogger(__name__)
_TOGETHER, _TOGETHER_BYTES = 20_000, 32_000_000
"""The approximate limits of one commit: rows and bytes."""

_Waiting = tuple[Pushed, asyncio.Future[int]]


class GroupCommit:
    """Commits requests to one inbox, in one process."""

    def __init__(self, name: str, inbox: Inbox) -> None:
        self.name = name
        self._inbox = inbox
        self._waiting: list[_Waiting] = []
        self._work: asyncio.Task[None] | None = None
        self.waiting_bytes = 0
        """Bytes of rows that are not durable yet."""

    async def commit(self, pushed: Pushed) -> int:
        """Wait until the request is durable; returns its position."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((pushed, future))
        size = _size(pushed)
        self.waiting_bytes += size
        if self._work is None:
            self._work = asyncio.create_task(self._commit_all())
        try:
            position: int = await future
        finally:
            self.waiting_bytes -= size
        return position

    async def _commit_all(self) -> None:
        try:
            while self._waiting:
                await self._commit_group(self._next_group())
        finally:
            self._work = None

    def _next_group(self) -> list[_Waiting]:
        count = rows = size = 0
        for pushed, _ in self._waiting:
            count, rows, size = count + 1, rows + len(pushed.entries), size + _size(pushed)
            if rows >= _TOGETHER or size >= _TOGETHER_BYTES:
                break
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    async def _commit_group(self, group: list[_Waiting]) -> None:
        outcomes: Sequence[int | Exception]
        try:
            outcomes = await asyncio.to_thread(self.add, [pushed for pushed, _ in group])
        except OSError as error:
            _LOG.warning("requests to '%s' could not be made durable: %s", self.name, error)
            outcomes = [unavailable() for _ in group]
        except Exception as error:
            outcomes = [error for _ in group]
        for (_, future), outcome in zip(group, outcomes, strict=True):
            if future.done():  # the caller has disconnected
                continue
            if isinstance(outcome, int):
                future.set_result(outcome)
            else:
                future.set_exception(_reused() if isinstance(outcome, RepeatedIdError) else outcome)

    def add(self, requests: Sequence[Pushed]) -> Sequence[int | Exception]:
        """Make requests durable; runs in a thread."""
        return self._inbox.add(requests)


def _size(pushed: Pushed) -> int:
    return sum(len(entry.row) for entry in pushed.entries)


def _reused() -> RequestError:
    return RequestError(
        "idempotency-key-reused",
        "the idempotency key, or the id of a change, was used before with different content",
        status=422,
        hint="use the same key only to repeat the same request; use a new key for another request",
    )


def unavailable() -> RequestError:
    return RequestError(
        "inbox-unavailable",
        "the request could not be made durable",
        status=503,
        hint="repeat it with the same idempotency key; the log of the node has the cause",
    )
