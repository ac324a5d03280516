"""One subscription to the changes of an endpoint, as its caller sees them: the source for SSE, WebSocket and gRPC.

Every change is given once and in order, or the subscriber is told which it missed. With a snapshot, the rows come
first: in pieces, each of one moment of the store, so that none is held open for a slow reader. Changes to rows that
were already given come between the pieces; changes to the others are in the pieces that follow.
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
from headrace.serve.access.access import Door
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
    """One thing to tell a subscriber."""

    type: ItemType
    token: str | None = None
    """Where to go on later; None: not from here."""
    row: bytes | None = None
    """The row as it is, as JSON."""
    old: bytes | None = None
    """The row as it was."""
    gap: tuple[str, str] | None = None
    """The last change that was given, and the last that was missed."""
    version: int | None = None
    """The endpoint's version that is served now."""

    def to_json(self) -> bytes:
        """As SSE and WebSocket have it."""
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
    """What a subscriber asks for."""

    filter: Any = None
    types: frozenset[str] = frozenset(TYPES)
    snapshot: bool = False
    after: str | None = None

    @staticmethod
    def of(filter: Any, types: Iterable[str], snapshot: bool, after: str | None) -> SubscriptionRequest:
        """Checked: types that there are, and a token that can be one."""
        given = frozenset(types)
        for name in sorted(given - set(TYPES)):
            raise RequestError(
                "bad-event-type", f"no event is a '{name[:40]}'", hint=did_you_mean(name, TYPES, "types")
            )
        if after and _TOKEN.fullmatch(after) is None:
            raise RequestError(
                "bad-resume-token",
                f"'{after[:40]}' is not the id of an event",
                hint="give the id of the last one taken",
            )
        return SubscriptionRequest(filter, given or frozenset(TYPES), snapshot, after or None)


class Subscription:
    """Gives the items of one subscriber. `again` opens its door anew: what it may see can end while it listens."""

    def __init__(
        self, feeds: Feeds, again: Callable[[], Door], wanted: SubscriptionRequest, heartbeat: float = HEARTBEAT_SECONDS
    ) -> None:
        self._feeds, self._again, self._wanted, self._heartbeat = feeds, again, wanted, heartbeat
        self.door = again()
        self._filter: RowFilter | None = self.door.filter(wanted.filter)
        self._due = 0.0
        self._feed: Feed

    async def items(self) -> AsyncGenerator[list[SubscriptionItem], None]:
        """What happens, some at a time, until the endpoint's version changes. A RequestError: why it ended before."""
        endpoint = self.door.endpoint
        with self._feeds.join(endpoint.name, self.door.asked) as self._feed:
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
        """Where to begin, None with a snapshot; and what was missed, if the token is of another version."""
        wanted, feed = self._wanted, self._feed
        fresh = None if wanted.snapshot else feed.version
        token = None if wanted.after is None else _TOKEN.fullmatch(wanted.after)
        if token is None:
            return fresh, None
        if int(token[1]) == feed.endpoint.version:
            return int(token[2]), None
        return fresh, SubscriptionItem("gap", None, gap=(str(wanted.after), self._token(feed.version)))

    async def _changes(self, position: int) -> AsyncIterator[list[SubscriptionItem]]:
        feed = self._feed
        while feed.moved_to is None:
            self._check_end()
            try:
                found = feed.after(position)
            except RequestError as error:
                if not unavailable(error):
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if found.first_kept > position + 1:
                missed = found.first_kept - 1
                gap = (self._token(position), self._token(missed))
                position = missed
                yield [SubscriptionItem("gap", None if self._wanted.snapshot else self._token(missed), gap=gap)]
                if self._wanted.snapshot:
                    async for items, at in self._snapshot():
                        yield items
                        position = at
                continue
            items = self._shown(found.events)
            if found.events:
                position = found.events[-1].version
            if items:
                yield items
            elif found.events:  # nothing to tell of many changes must not keep others waiting
                await asyncio.sleep(0)
            if time.monotonic() >= self._due:
                self._beat()
                yield [SubscriptionItem("heartbeat", self._token(position))]
            if not found.events:
                await feed.news(max(0.0, self._due - time.monotonic()))
        yield [SubscriptionItem("version", version=feed.moved_to)]

    def _check_end(self) -> None:
        if self._feeds.stopping:
            raise stopped()

    def _beat(self) -> None:
        """A heartbeat is due later; and what the caller may see is looked at again."""
        self._due = time.monotonic() + self._heartbeat
        try:
            self._again()
        except RequestError as error:
            if error.status in (401, 403, 404):
                raise

    def _shown(self, events: Sequence[StoreEvent], *, numbered: bool = True) -> list[SubscriptionItem]:
        items = []
        for event in events:
            seen = self.door.event(event, self._filter)
            if seen is not None and _OPS[seen.op] in self._wanted.types:
                token = self._token(seen.version) if numbered else None
                items.append(SubscriptionItem(_OPS[seen.op], token, seen.new, seen.old))
        return items

    async def _snapshot(self) -> AsyncIterator[tuple[list[SubscriptionItem], int]]:
        """All rows, with the changes that come meanwhile to those given before; each time the version this is as of."""
        last: bytes | None = None
        at: int | None = None
        while True:
            self._check_end()
            piece = self._next_piece(last, at)
            if self._feed.moved_to is not None:
                return
            if piece is None:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if piece.first_kept > piece.since + 1:  # too slow even for the ring: begin again
                yield (
                    [SubscriptionItem("gap", None, gap=(self._token(piece.since), self._token(piece.first_kept - 1)))],
                    piece.at,
                )
                last = at = None
                continue
            items = self._shown(piece.changes, numbered=False)
            rows = (StoreEvent(row.version, Op.INSERT, row.key, row.json, None) for row in piece.rows)
            seen = (self.door.event(row, self._filter) for row in rows)
            items += [SubscriptionItem("snapshot", None, row.new) for row in seen if row is not None]
            last, at = piece.last, piece.at
            if piece.over:
                yield [*items, SubscriptionItem("snapshot_end", self._token(at))], at
                return
            yield items, at
            await asyncio.sleep(0)

    def _next_piece(self, last: bytes | None, at: int | None) -> _Piece | None:
        """None: the store is being built anew, or is not yet where it was."""
        try:
            with self._feed.view() as view:
                if view.endpoint.version != self._feed.endpoint.version:
                    self._feed.moved_to = view.endpoint.version
                    return None
                return _piece(view, last, at) if at is None or at <= view.version else None
        except RequestError as error:
            if unavailable(error):
                return None
            raise

    def _token(self, position: int) -> str:
        return f"v{self._feed.endpoint.version}-{position}"


@dataclass(frozen=True)
class _Piece:
    """Some rows of a snapshot, and the changes since the last piece to rows that were given."""

    since: int
    first_kept: int
    changes: list[StoreEvent]
    rows: list[Any]
    last: bytes | None
    at: int
    over: bool


def _piece(view: ReadTransaction, last: bytes | None, at: int | None) -> _Piece:
    now = view.version
    since = now if at is None else at
    found = view.events(since, _PIECE) if since < now else None
    events = [] if found is None else found.events
    first_kept = 0 if found is None else found.first_kept
    changes = [] if last is None else list(_given(view.reader, events, last))
    reached = events[-1].version if events else now
    if reached < now or first_kept > since + 1:  # rows are read where all changes before are known
        return _Piece(since, first_kept, changes, [], last, reached, False)
    rows = list(islice(view.scan(last), _PIECE))
    return _Piece(since, first_kept, changes, rows, rows[-1].key if rows else last, now, len(rows) < _PIECE)


def _given(reader: StoreReader, events: Iterable[StoreEvent], last: bytes) -> Iterable[StoreEvent]:
    """The part of changes that is about rows up to a key: a row may move across it."""
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
