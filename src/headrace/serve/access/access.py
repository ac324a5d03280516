"""The one way to rows: whatever the surface, a caller comes through a door that shows what its grant allows.

A door is made of the store's own parts: a query is the caller's filter and the grant's, and what the grant hides is cut
out of the rows that are found. Columns that a caller may not see are for it as if they were not there.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from time import monotonic
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec
import pyarrow as pa

from headrace.core.endpoints import Endpoint, Op
from headrace.core.errors import RequestError, did_you_mean
from headrace.core.files.state_files import StatePath, write_if_absent
from headrace.project.serving import Access, Limits
from headrace.serve.access.grants import Grant
from headrace.serve.access.url_values import KeyReader
from headrace.store.endpoint.reader import ReadTransaction, ServedRow, StoreEvent, StoreReader
from headrace.store.lmdb.errors import StoreClosedError, StoreDamagedError
from headrace.store.query.filters import RowFilter, both, parse_filter
from headrace.store.query.query import ResultPage, StoreQuery, parse_query

if TYPE_CHECKING:
    from headrace.serve.base.settings import Settings

# what is no name of an endpoint never becomes part of a file's path
_NAME = re.compile(r"([a-z][a-z0-9_]{0,99})(?:@v([1-9][0-9]{0,8}))?")
_SEAL = ".seal"
_FRESH_SECONDS = 0.05
"""How long a door is opened again without a look at what is served."""
P = ParamSpec("P")
T = TypeVar("T")
_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Readers(Protocol):
    """Where doors find the stores: `serve.stores.Stores`."""

    def names(self) -> list[str]:
        """All endpoints."""

    def served(self, name: str) -> int | None:
        """The version that those get who name none; None: there is none that can answer."""

    def reader(self, name: str, version: int | None = None) -> StoreReader:
        """The store of an endpoint; a RequestError when there is none, or none that can answer now."""

    def view(self, name: str, version: int | None = None) -> AbstractContextManager[ReadTransaction]:
        """One moment of an endpoint's rows."""

    def damaged(self, name: str, reader: StoreReader, damage: StoreDamagedError) -> RequestError:
        """Have a store built anew; what to tell the caller meanwhile."""


class Doors:
    """The doors of one process to its stores."""

    def __init__(self, stores: Readers, limits: Limits, seal: Callable[[], bytes]) -> None:
        self._stores = stores
        self._limits = limits
        self._seal = seal

    @staticmethod
    def of(settings: Settings, stores: Readers) -> Doors:
        """Doors as a node's settings want them."""
        return Doors(stores, settings.spec.limits, lambda: shared_seal(settings.log))

    def names(self, grant: Grant) -> list[str]:
        """The endpoints that a caller may see."""
        return [name for name in sorted(self._stores.names()) if grant.may(name) is not None]

    def open(self, grant: Grant, name: str, scope: str = "read") -> Door:
        """The door to `films`, or to `films@v2`. A RequestError: not allowed (403), not there (404), not yet (503)."""
        if scope not in grant.scopes:
            grant.check(scope)
        kept: Door | None = grant.kept.get(name)
        if kept is not None and kept.stores is self._stores:
            now = monotonic()
            if now < kept.fresh_until:
                return kept
            if kept.version == self._wanted(kept):
                kept.renew(now + _FRESH_SECONDS)
                return kept
        bare, version = _split(name) or (name, None)
        access = grant.may(bare)
        if access is None:
            raise RequestError(
                "endpoint-forbidden",
                f"this token does not allow '{_short(bare)}'",
                status=403,
                hint=f"it allows: {', '.join(self.names(grant)) or 'no endpoint'}",
            )
        full = self._reader(grant, bare, version).endpoint
        door = Door(self._stores, full, access, self._limits, self._seal, asked=version)
        grant.kept[name] = door
        return door

    def _wanted(self, door: Door) -> int | None:
        """The version that would be opened now."""
        return self._stores.served(door.endpoint.name) if door.asked is None else door.asked

    def _reader(self, grant: Grant, name: str, version: int | None) -> StoreReader:
        if _NAME.fullmatch(name) and (version is not None or name in self._stores.names()):
            return self._stores.reader(name, version)
        # the names that a caller may not see are no hint for it
        hint = did_you_mean(_short(name), self.names(grant), "endpoints")
        raise RequestError("unknown-endpoint", f"there is no endpoint '{_short(name)}'", status=404, hint=hint)


class Door:
    """What one caller may see of one version of an endpoint."""

    def __init__(
        self,
        stores: Readers,
        full: Endpoint,
        access: Access,
        limits: Limits,
        seal: Callable[[], bytes],
        *,
        asked: int | None = None,
    ) -> None:
        self.version = full.version
        self.asked = asked
        """The version, if it was asked for by number."""
        self.fresh_until = 0.0
        """When it must be looked whether this is still the version that is served."""
        self.endpoint = _narrowed(full, access.fields)
        self.restriction = _restriction(access, full)
        self.whole = self.endpoint is full and self.restriction is None
        """Nothing is hidden: rows pass as they are stored."""
        self.stores = stores
        self._columns = None if self.endpoint is full else list(self.endpoint.columns.names)
        self.header = (b"x-headrace-version", b"v%d" % full.version)
        """Tells callers which version answered."""
        self._limits = limits
        self._hides_key = self.endpoint.key != full.key
        self._seal = seal
        self._reader: StoreReader | None = None
        self._tag = f'"v{full.version}-%d{"" if self._columns is None else _mark(self._columns)}"'.encode()

    def renew(self, until: float) -> None:
        """This is the version that is served; its store is to be looked up anew."""
        self.fresh_until = until
        self._reader = None

    def etag(self, version: int) -> bytes:
        """What tells one state of a row from all others, as this caller sees it."""
        return self._tag % version

    @contextmanager
    def view(self) -> Iterator[ReadTransaction]:
        """One moment of the store, for `scan`."""
        with ExitStack() as stack:
            try:
                view = stack.enter_context(self.stores.view(self.endpoint.name, self.version))
            except StoreClosedError:  # another copy has just taken its place
                view = stack.enter_context(self.stores.view(self.endpoint.name, self.version))
            yield view

    def get(self, key: Sequence[Any]) -> ServedRow | None:
        """The row of a key: a value for each of the endpoint's key columns."""
        if not self.endpoint.key:
            raise self._no_key()
        row = self._asked(StoreReader.get, key)
        if row is None or self.whole:
            return row
        shown = self.shown(row.json)
        return None if shown is None else row._replace(json=shown)

    def query(self, document: Any, bound: int | None = None) -> ResultPage:
        """A page of rows. With a `bound` no more rows than that are looked at, other than those of the answer."""
        # a cursor tells where a page ended, which may be by columns that are hidden
        seal = None if self._columns is None else self._sealed
        query = self._restricted(parse_query(document, self.endpoint, page=self._limits.page, seal=seal))
        page = self._asked(StoreReader.find, query, self._within(bound))
        if self._columns is None:
            return page
        # the query had the restriction in it; what is left is to cut out columns
        return ResultPage([row._replace(json=self._cut(row.json)) for row in page.rows], page.next)

    def count(self, document: Any, bound: int | None = None) -> int:
        """How many rows a query finds."""
        query = self._restricted(parse_query(document, self.endpoint, page=None, default=None))
        return self._asked(StoreReader.count, query, self._within(bound))

    def filter(self, document: Any) -> RowFilter | None:
        """A caller's own filter, over the columns it sees."""
        return None if document is None else parse_filter(document, self.endpoint)

    def scan(self, view: ReadTransaction, filter: RowFilter | None = None) -> Iterator[ServedRow]:
        """All rows in sight that meet a filter, in the order of the key."""
        wanted = both(self.restriction, filter)
        for row in view.scan():
            if wanted is None or wanted.matches(msgspec.json.decode(row.json)):
                yield row._replace(json=self._cut(row.json))

    def shown(self, json: bytes) -> bytes | None:
        """A stored row as the caller sees it; None: it does not."""
        return self._seen(json, self.restriction)

    def event(self, event: StoreEvent, filter: RowFilter | None = None) -> StoreEvent | None:
        """A change as it looks from here: a row that moves out of sight is deleted, one that moves in is new."""
        wanted = both(self.restriction, filter)
        new = None if event.new is None else self._seen(event.new, wanted)
        old = None if event.old is None else self._seen(event.old, wanted)
        if new == old:  # out of sight before and after, or all that changed is hidden
            return None
        op = Op.INSERT if old is None else Op.DELETE if new is None else Op.UPDATE
        return StoreEvent(version=event.version, op=op, key=b"" if self._hides_key else event.key, new=new, old=old)

    @cached_property
    def keys(self) -> KeyReader:
        """What reads keys from addresses."""
        if not self.endpoint.key:
            raise self._no_key()
        return KeyReader(self.endpoint)

    def key_of(self, json: bytes) -> dict[str, Any] | None:
        """The key in a row that was shown; None: the caller does not see it, or there is none."""
        if not self.endpoint.key:
            return None
        row = msgspec.json.decode(json)
        return {name: row[name] for name in self.endpoint.key}

    def _no_key(self) -> RequestError:
        return RequestError(
            "no-key",
            f"rows of '{self.endpoint.name}' cannot be asked for by key",
            status=422,
            hint=f"POST /{self.endpoint.name}/query with a $filter finds rows",
        )

    def _asked(self, ask: Callable[Concatenate[StoreReader, P], T], *given: P.args, **named: P.kwargs) -> T:
        """What the store says. Not by `view`: this is the path that must be fast."""
        try:
            return self._once(ask, *given, **named)
        except StoreClosedError:  # another copy has just taken its place
            return self._once(ask, *given, **named)

    def _once(self, ask: Callable[Concatenate[StoreReader, P], T], *given: P.args, **named: P.kwargs) -> T:
        reader = self._reader
        if reader is None:
            reader = self._reader = self.stores.reader(self.endpoint.name, self.version)
        try:
            return ask(reader, *given, **named)
        except StoreClosedError:
            self._reader = None
            raise
        except StoreDamagedError as damage:
            self._reader = None
            raise self.stores.damaged(self.endpoint.name, reader, damage) from damage

    def _seen(self, json: bytes, wanted: RowFilter | None) -> bytes | None:
        if wanted is not None and not wanted.matches(msgspec.json.decode(json)):
            return None
        return self._cut(json)

    def _cut(self, json: bytes) -> bytes:
        """Without the columns that are hidden; the others byte by byte as they are."""
        if self._columns is None:
            return json
        values = _RAW.decode(json)
        parts = [msgspec.json.encode(name) + b":" + bytes(values[name]) for name in self._columns]
        return b"{" + b",".join(parts) + b"}"

    def _within(self, bound: int | None) -> int:
        return self._limits.scan if bound is None else min(bound, self._limits.scan)

    def _restricted(self, query: StoreQuery) -> StoreQuery:
        return query if self.restriction is None else replace(query, filter=both(self.restriction, query.filter))

    @cached_property
    def _sealed(self) -> bytes:
        return self._seal()


def shared_seal(log: StatePath) -> bytes:
    """The secret that hides keys in cursors, the same on all nodes that read these logs."""
    write_if_absent(log / _SEAL, secrets.token_bytes(32))
    return (log / _SEAL).read_bytes()


def _split(name: str) -> tuple[str, int | None] | None:
    """The name of an endpoint and the version that is asked for; None: no endpoint can have that name."""
    found = _NAME.fullmatch(name)
    return None if found is None else (found[1], int(found[2]) if found[2] else None)


def _narrowed(endpoint: Endpoint, fields: Sequence[str] | None) -> Endpoint:
    if fields is None or set(endpoint.columns.names) <= set(fields):
        return endpoint
    seen = {name for name in endpoint.columns.names if name in fields}
    return replace(
        endpoint,
        columns=pa.schema([field for field in endpoint.columns if field.name in seen]),
        key=endpoint.key if seen.issuperset(endpoint.key) else (),
        indexes=tuple(columns for columns in endpoint.indexes if seen.issuperset(columns)),
        text=tuple(column for column in endpoint.text if column in seen),
    )


def _restriction(access: Access, endpoint: Endpoint) -> RowFilter | None:
    if access.filter is None:
        return None
    try:
        return parse_filter(access.filter, endpoint)
    except RequestError:
        # never served without it; what is wrong is for whoever made the token, not for who shows it
        raise RequestError(
            "bad-restriction",
            f"the row filter of this token does not fit '{endpoint.name}'",
            status=403,
            hint="ask for a new token; `headrace token show` tells what is wrong with this one",
        ) from None


def _mark(columns: Sequence[str]) -> str:
    return f"-{hashlib.blake2b(chr(10).join(columns).encode(), digest_size=4).hexdigest()}"


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:60]}…"
