"""One subscription to the changes of an endpoint, with the caller's row filter: the source of SSE, WebSocket and gRPC.

Every change is delivered once and in order, or the subscriber gets a gap. With a snapshot, the rows come first, in
pieces of one read transaction each, so that no transaction stays open for a slow reader. Between the pieces come the
changes of rows that were already delivered; the following pieces contain the changes of the others.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

import msgspec

from headrace.core.endpoints import Op
from headrace.core.errors import RequestError, did_you_mean
from headrace.serve.access.access import EndpointAccess
from headrace.serve.access.feeds import Feed, Feeds, stopped, unavailable
from headrace.store.endpoint.reader import ReadTransaction, StoreEvent, StoreReader
from headrace.store.query.filters import RowFilter
from headrace.store.rows.row_json import typed

HEARTBEAT_SECONDS = 15.0
TYPES = ("insert", "update", "delete")
_OPS: dict[Op, Literal["insert", "update", "delete"]] = {Op.INSERT: "insert", Op.UPDATE: "update", Op.DELETE: "delete"}
_PIECE = 500
_RETRY_SECONDS = 0.05
_TOKEN = re.compile(r"v([1-9][0-9]{0,8})-([0-9]{1,19})")

ItemType = Literal["insert", "update", "delete", "snapshot", "snapshot_end", "gap", "heartbeat", "version"]


@dataclass(frozen=True, slots=True)
class SubscriptionItem:
    """One item for a subscriber."""

    type: ItemType
    token: str | None = None
    """Where to resume; None: the subscriber cannot resume here."""
    row: bytes | None = None
    """The new row, as JSON."""
    old: bytes | None = None
    """The old row, as JSON."""
    gap: tuple[str, str] | None = None
    """The last change that was delivered, and the last that was missed."""
    version: int | None = None
    """The version of the endpoint that is served now."""

    def to_json(self) -> bytes:
        """The form for SSE and WebSocket."""
        parts = [b'{"type":"%s"' % self.type.encode()]
        if self.token is not None:
            parts.append(b'"id":"%s"' % self.token.encode())
        if self.row is not None or self.old is not None:
            parts.append(b'"row":' + (self.row or b"null"))
        if self.old is not None:
            parts.append(b'"old":' + self.old)
        if self.gap is not None:
            parts.append(b'"from":"%s","to":"%s"' % (self.gap[0].encode(), self.gap[1].encode()))
        if self.version is not None:
            parts.append(b'"version":%d' % self.version)
        return b",".join(parts) + b"}"


@dataclass(frozen=True)
class SubscriptionRequest:
    """What a subscriber requests."""

    filter: Any = None
    types: frozenset[str] = frozenset(TYPES)
    snapshot: bool = False
    after: str | None = None

    @staticmethod
    def of(filter: Any, types: Iterable[str], snapshot: bool, after: str | None) -> SubscriptionRequest:
        """Validate the types and the resume token."""
        requested = frozenset(types)
        for name in sorted(requested - set(TYPES)):
            raise RequestError(
                "bad-event-type", f"unknown event type '{name[:40]}'", hint=did_you_mean(name, TYPES, "types")
            )
        if after and _TOKEN.fullmatch(after) is None:
            raise RequestError(
                "bad-resume-token",
                f"'{after[:40]}' is not the id of an event",
                hint="pass the id of the last event received",
            )
        return SubscriptionRequest(filter, requested or frozenset(TYPES), snapshot, after or None)


class Subscription:
    """Yields the items of one subscriber. `reopen` opens the endpoint again: access can be revoked meanwhile."""

    def __init__(
        self,
        feeds: Feeds,
        reopen: Callable[[], EndpointAccess],
        request: SubscriptionRequest,
        heartbeat: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._feeds, self._reopen, self._request, self._heartbeat = feeds, reopen, request, heartbeat
        self.access = reopen()
        self._filter: RowFilter | None = self.access.filter(request.filter)
        self._due = 0.0
        self._feed: Feed

    async def items(self) -> AsyncGenerator[list[SubscriptionItem], None]:
        """Batches of items, until the endpoint's version changes. RequestError: why the subscription ended early."""
        endpoint = self.access.endpoint
        with self._feeds.join(endpoint.name, self.access.requested_version) as self._feed:
            position, missed = self._begin()
            if missed is not None:
                yield [missed]
            if position is None:
                async for items, at in self._snapshot():
                    yield items
                    position = at
            else:
                yield [SubscriptionItem("heartbeat", self._token(position))]
            self._due = time.monotonic() + self._heartbeat
            async for items in self._changes(position or 0):
                yield items

    def _begin(self) -> tuple[int | None, SubscriptionItem | None]:
        """Where to begin, None with a snapshot; and a gap, if the token is of another version."""
        request, feed = self._request, self._feed
        fresh = None if request.snapshot else feed.version
        token = None if request.after is None else _TOKEN.fullmatch(request.after)
        if token is None:
            return fresh, None
        if int(token[1]) == feed.endpoint.version:
            return int(token[2]), None
        return fresh, SubscriptionItem("gap", None, gap=(str(request.after), self._token(feed.version)))

    async def _changes(self, position: int) -> AsyncIterator[list[SubscriptionItem]]:
        feed = self._feed
        while feed.moved_to is None:
            self._check_stopping()
            try:
                batch = feed.after(position)
            except RequestError as error:
                if not unavailable(error):
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if batch.first_kept > position + 1:
                missed = batch.first_kept - 1
                gap = (self._token(position), self._token(missed))
                position = missed
                yield [SubscriptionItem("gap", None if self._request.snapshot else self._token(missed), gap=gap)]
                if self._request.snapshot:
                    async for items, at in self._snapshot():
                        yield items
                        position = at
                continue
            items = self._visible_items(batch.events)
            if batch.events:
                position = batch.events[-1].version
            if items:
                yield items
            elif batch.events:  # many changes without items must not block the event loop
                await asyncio.sleep(0)
            if time.monotonic() >= self._due:
                self._beat()
                yield [SubscriptionItem("heartbeat", self._token(position))]
            if not batch.events:
                await feed.news(max(0.0, self._due - time.monotonic()))
        yield [SubscriptionItem("version", version=feed.moved_to)]

    def _check_stopping(self) -> None:
        if self._feeds.stopping:
            raise stopped()

    def _beat(self) -> None:
        """Schedule the next heartbeat and check whether the caller still has access."""
        self._due = time.monotonic() + self._heartbeat
        try:
            self._reopen()
        except RequestError as error:
            if error.status in (401, 403, 404):
                raise

    def _visible_items(self, events: Sequence[StoreEvent], *, numbered: bool = True) -> list[SubscriptionItem]:
        items = []
        for event in events:
            visible = self.access.event(event, self._filter)
            if visible is not None and _OPS[visible.op] in self._request.types:
                token = self._token(visible.version) if numbered else None
                items.append(SubscriptionItem(_OPS[visible.op], token, visible.new, visible.old))
        return items

    async def _snapshot(self) -> AsyncIterator[tuple[list[SubscriptionItem], int]]:
        """All rows, and the changes meanwhile of rows already delivered; each with the version of the store."""
        last: bytes | None = None
        at: int | None = None
        while True:
            self._check_stopping()
            piece = self._next_piece(last, at)
            if self._feed.moved_to is not None:
                return
            if piece is None:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if piece.first_kept > piece.since + 1:  # the ring has already dropped changes: restart the snapshot
                yield (
                    [SubscriptionItem("gap", None, gap=(self._token(piece.since), self._token(piece.first_kept - 1)))],
                    piece.at,
                )
                last = at = None
                continue
            items = self._visible_items(piece.changes, numbered=False)
            rows = (StoreEvent(row.version, Op.INSERT, row.key, row.json, None) for row in piece.rows)
            visible = (self.access.event(row, self._filter) for row in rows)
            items += [SubscriptionItem("snapshot", None, row.new) for row in visible if row is not None]
            last, at = piece.last, piece.at
            if piece.over:
                yield [*items, SubscriptionItem("snapshot_end", self._token(at))], at
                return
            yield items, at
            await asyncio.sleep(0)

    def _next_piece(self, last: bytes | None, at: int | None) -> _Piece | None:
        """None: the store is being rebuilt, or has not caught up with the previous piece."""
        try:
            with self._feed.transaction() as transaction:
                if transaction.endpoint.version != self._feed.endpoint.version:
                    self._feed.moved_to = transaction.endpoint.version
                    return None
                return _piece(transaction, last, at) if at is None or at <= transaction.version else None
        except RequestError as error:
            if unavailable(error):
                return None
            raise

    def _token(self, position: int) -> str:
        return f"v{self._feed.endpoint.version}-{position}"


@dataclass(frozen=True)
class _Piece:
    """Some rows of a snapshot, and the changes since the last piece of rows already delivered."""

    since: int
    first_kept: int
    changes: list[StoreEvent]
    rows: list[Any]
    last: bytes | None
    at: int
    over: bool


def _piece(transaction: ReadTransaction, last: bytes | None, at: int | None) -> _Piece:
    now = transaction.version
    since = now if at is None else at
    batch = transaction.events(since, _PIECE) if since < now else None
    events = [] if batch is None else batch.events
    first_kept = 0 if batch is None else batch.first_kept
    changes = [] if last is None else list(_up_to(transaction.reader, events, last))
    reached = events[-1].version if events else now
    if reached < now or first_kept > since + 1:  # read rows only when all changes before them are known
        return _Piece(since, first_kept, changes, [], last, reached, False)
    rows = list(islice(transaction.scan(last), _PIECE))
    return _Piece(since, first_kept, changes, rows, rows[-1].key if rows else last, now, len(rows) < _PIECE)


def _up_to(reader: StoreReader, events: Iterable[StoreEvent], last: bytes) -> Iterable[StoreEvent]:
    """The part of the changes that concerns rows up to a key: a row may move across it."""
    for event in events:
        new = event.new is not None and event.key <= last
        old = event.old is not None and _old_key(reader, event) <= last
        if new and old == (event.old is not None):
            yield event
        elif new:
            yield replace(event, op=Op.INSERT, old=None)
        elif old:
            yield replace(event, op=Op.DELETE, new=None)


def _old_key(reader: StoreReader, event: StoreEvent) -> bytes:
    """The row key before a change."""
    if event.op is not Op.UPDATE or event.old is None or event.new is None:
        return event.key
    endpoint = reader.endpoint
    old, new = msgspec.json.decode(event.old), msgspec.json.decode(event.new)
    if all(old[name] == new[name] for name in endpoint.key):
        return event.key
    return reader.keys.row_key([typed(endpoint.columns.field(name).type)(old[name]) for name in endpoint.key])
