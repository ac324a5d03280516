"""Applies a token's row filter and hidden columns to every read: `EndpointAccess` is the only way to the rows.

REST, gRPC, SQL and live events all read through it. The row filter of the token (`restriction`) is joined to the
caller's filter before the store runs the query (`_restricted`, `scan`, `event`), and hidden columns are cut from each
row (`_cut`). A hidden column does not exist for the caller: not in filters, orders, errors or schemas.
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
from headrace.store.endpoint.reader import ReadTransaction, StoreEvent, StoreReader
from headrace.store.lmdb.errors import StoreClosedError, StoreDamagedError
from headrace.store.query.filters import RowFilter, both, parse_filter
from headrace.store.query.query import ResultPage, StoreQuery, parse_query
from headrace.store.rows.served_row import ServedRow

if TYPE_CHECKING:
    from headrace.serve.base.settings import Settings

# only a valid endpoint name may become part of a file path
_NAME = re.compile(r"([a-z][a-z0-9_]{0,99})(?:@v([1-9][0-9]{0,8}))?")
_SEAL = ".seal"
_FRESH_SECONDS = 0.05
"""How long an EndpointAccess is reused without checking which version is served."""
P = ParamSpec("P")
T = TypeVar("T")
_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Readers(Protocol):
    """Provides the stores: `serve.access.stores.Stores` implements it."""

    def names(self) -> list[str]:
        """All endpoints."""

    def served(self, name: str) -> int | None:
        """The version served by default; None: no version can answer."""

    def reader(self, name: str, version: int | None = None) -> StoreReader:
        """The store of an endpoint; RequestError when it does not exist or cannot answer now."""

    def transaction(self, name: str, version: int | None = None) -> AbstractContextManager[ReadTransaction]:
        """A read transaction of the store of an endpoint."""

    def damaged(self, name: str, reader: StoreReader, damage: StoreDamagedError) -> RequestError:
        """Report a damaged store so that it is rebuilt; returns the error for the caller."""


class AccessControl:
    """Opens endpoints for callers, in one process."""

    def __init__(self, stores: Readers, limits: Limits, seal: Callable[[], bytes]) -> None:
        self._stores = stores
        self._limits = limits
        self._seal = seal

    @staticmethod
    def of(settings: Settings, stores: Readers) -> AccessControl:
        return AccessControl(stores, settings.spec.limits, lambda: shared_seal(settings.log))

    def names(self, grant: Grant) -> list[str]:
        """The endpoints that a caller may see."""
        return [name for name in sorted(self._stores.names()) if grant.may(name) is not None]

    def open(self, grant: Grant, name: str, scope: str = "read") -> EndpointAccess:
        """Open `films`, or `films@v2`. RequestError: not allowed (403), unknown (404), not ready (503)."""
        if scope not in grant.scopes:
            grant.check(scope)
        cached: EndpointAccess | None = grant.cache.get(name)
        if cached is not None and cached.stores is self._stores:
            now = monotonic()
            if now < cached.fresh_until:
                return cached
            if cached.version == self._current_version(cached):
                cached.renew(now + _FRESH_SECONDS)
                return cached
        bare, version = _split(name) or (name, None)
        allowed = grant.may(bare)
        if allowed is None:
            raise RequestError(
                "endpoint-forbidden",
                f"this token does not allow '{_short(bare)}'",
                status=403,
                hint=f"it allows: {', '.join(self.names(grant)) or 'no endpoint'}",
            )
        full = self._reader(grant, bare, version).endpoint
        opened = EndpointAccess(self._stores, full, allowed, self._limits, self._seal, requested_version=version)
        grant.cache[name] = opened
        return opened

    def _current_version(self, opened: EndpointAccess) -> int | None:
        """The version that `open` would open now."""
        requested = opened.requested_version
        return self._stores.served(opened.endpoint.name) if requested is None else requested

    def _reader(self, grant: Grant, name: str, version: int | None) -> StoreReader:
        if _NAME.fullmatch(name) and (version is not None or name in self._stores.names()):
            return self._stores.reader(name, version)
        # hints do not name endpoints that the caller may not see
        hint = did_you_mean(_short(name), self.names(grant), "endpoints")
        raise RequestError("unknown-endpoint", f"unknown endpoint '{_short(name)}'", status=404, hint=hint)


class EndpointAccess:
    """One version of an endpoint as one caller may see it: row filter applied, hidden columns removed."""

    def __init__(
        self,
        stores: Readers,
        full: Endpoint,
        allowed: Access,
        limits: Limits,
        seal: Callable[[], bytes],
        *,
        requested_version: int | None = None,
    ) -> None:
        self.version = full.version
        self.requested_version = requested_version
        """The version, if the caller named one."""
        self.fresh_until = 0.0
        """When to check again whether this version is still served."""
        self.endpoint = _narrowed(full, allowed.fields)
        self.restriction = _restriction(allowed, full)
        """The row filter of the token."""
        self.whole = self.endpoint is full and self.restriction is None
        """Whether nothing is hidden: rows are returned as they are stored."""
        self.stores = stores
        self._columns = None if self.endpoint is full else list(self.endpoint.columns.names)
        self.header = (b"x-headrace-version", b"v%d" % full.version)
        """The response header with the version that answered."""
        self._limits = limits
        self._hides_key = self.endpoint.key != full.key
        self._seal = seal
        self._reader: StoreReader | None = None
        self._tag = f'"v{full.version}-%d{"" if self._columns is None else _mark(self._columns)}"'.encode()

    def renew(self, until: float) -> None:
        """Confirm that this version is still served; its store is looked up again."""
        self.fresh_until = until
        self._reader = None

    def etag(self, version: int) -> bytes:
        """Identifies one state of a row as this caller sees it."""
        return self._tag % version

    @contextmanager
    def transaction(self) -> Iterator[ReadTransaction]:
        with ExitStack() as stack:
            try:
                transaction = stack.enter_context(self.stores.transaction(self.endpoint.name, self.version))
            except StoreClosedError:  # another copy has just replaced it
                transaction = stack.enter_context(self.stores.transaction(self.endpoint.name, self.version))
            yield transaction

    def get(self, key: Sequence[Any]) -> ServedRow | None:
        """The row with this key, one value per key column; None when no such row is visible."""
        if not self.endpoint.key:
            raise self._no_key()
        row = self._read(StoreReader.get, key)
        if row is None or self.whole:
            return row
        visible = self.visible(row.json)
        return None if visible is None else row._replace(json=visible)

    def query(self, document: Any, bound: int | None = None) -> ResultPage:
        """A page of rows. `bound` limits the rows that are read without being part of the result."""
        # a cursor holds the position of the last row, which may contain values of hidden columns
        seal = None if self._columns is None else self._sealed
        query = self._restricted(parse_query(document, self.endpoint, page=self._limits.page, seal=seal))
        page = self._read(StoreReader.find, query, self._within(bound))
        if self._columns is None:
            return page
        # the query includes the row filter; only columns remain to be cut
        return ResultPage([row._replace(json=self._cut(row.json)) for row in page.rows], page.next)

    def count(self, document: Any, bound: int | None = None) -> int:
        """The number of rows of a query."""
        query = self._restricted(parse_query(document, self.endpoint, page=None, default=None))
        return self._read(StoreReader.count, query, self._within(bound))

    def filter(self, document: Any) -> RowFilter | None:
        """Parse a caller's filter, over the columns that the caller may see."""
        return None if document is None else parse_filter(document, self.endpoint)

    def scan(self, transaction: ReadTransaction, filter: RowFilter | None = None) -> Iterator[ServedRow]:
        """All visible rows that match a filter, in key order."""
        condition = both(self.restriction, filter)
        for row in transaction.scan():
            if condition is None or condition.matches(msgspec.json.decode(row.json)):
                yield row._replace(json=self._cut(row.json))

    def visible(self, json: bytes) -> bytes | None:
        """A stored row as the caller sees it; None: the row filter excludes it."""
        return self._visible_json(json, self.restriction)

    def event(self, event: StoreEvent, filter: RowFilter | None = None) -> StoreEvent | None:
        """A change as the caller sees it: leaving the row filter is a delete, entering it an insert."""
        condition = both(self.restriction, filter)
        new = None if event.new is None else self._visible_json(event.new, condition)
        old = None if event.old is None else self._visible_json(event.old, condition)
        if new == old:  # invisible before and after, or only hidden columns changed
            return None
        op = Op.INSERT if old is None else Op.DELETE if new is None else Op.UPDATE
        return StoreEvent(version=event.version, op=op, key=b"" if self._hides_key else event.key, new=new, old=old)

    @cached_property
    def keys(self) -> KeyReader:
        """Reads keys from URLs."""
        if not self.endpoint.key:
            raise self._no_key()
        return KeyReader(self.endpoint)

    def key_of(self, json: bytes) -> dict[str, Any] | None:
        """The key of a row that the caller sees; None: the endpoint has no key, or it is hidden."""
        if not self.endpoint.key:
            return None
        row = msgspec.json.decode(json)
        return {name: row[name] for name in self.endpoint.key}

    def _no_key(self) -> RequestError:
        return RequestError(
            "no-key",
            f"rows of '{self.endpoint.name}' cannot be read by key",
            status=422,
            hint=f"use POST /{self.endpoint.name}/query with a $filter",
        )

    def _read(self, read: Callable[Concatenate[StoreReader, P], T], *args: P.args, **named: P.kwargs) -> T:
        """Read from the store, without `transaction`: this is the hot path."""
        try:
            return self._read_once(read, *args, **named)
        except StoreClosedError:  # another copy has just replaced it
            return self._read_once(read, *args, **named)

    def _read_once(self, read: Callable[Concatenate[StoreReader, P], T], *args: P.args, **named: P.kwargs) -> T:
        reader = self._reader
        if reader is None:
            reader = self._reader = self.stores.reader(self.endpoint.name, self.version)
        try:
            return read(reader, *args, **named)
        except StoreClosedError:
            self._reader = None
            raise
        except StoreDamagedError as damage:
            self._reader = None
            raise self.stores.damaged(self.endpoint.name, reader, damage) from damage

    def _visible_json(self, json: bytes, condition: RowFilter | None) -> bytes | None:
        if condition is not None and not condition.matches(msgspec.json.decode(json)):
            return None
        return self._cut(json)

    def _cut(self, json: bytes) -> bytes:
        """The row without hidden columns; the others unchanged, byte by byte."""
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
    """The secret that encrypts cursors, shared by all nodes that read these logs."""
    write_if_absent(log / _SEAL, secrets.token_bytes(32))
    return (log / _SEAL).read_bytes()


def _split(name: str) -> tuple[str, int | None] | None:
    """The name and the requested version of an endpoint; None: not a valid name."""
    match = _NAME.fullmatch(name)
    return None if match is None else (match[1], int(match[2]) if match[2] else None)


def _narrowed(endpoint: Endpoint, fields: Sequence[str] | None) -> Endpoint:
    if fields is None or set(endpoint.columns.names) <= set(fields):
        return endpoint
    visible = {name for name in endpoint.columns.names if name in fields}
    return replace(
        endpoint,
        columns=pa.schema([field for field in endpoint.columns if field.name in visible]),
        key=endpoint.key if visible.issuperset(endpoint.key) else (),
        indexes=tuple(columns for columns in endpoint.indexes if visible.issuperset(columns)),
        text=tuple(column for column in endpoint.text if column in visible),
    )


def _restriction(allowed: Access, endpoint: Endpoint) -> RowFilter | None:
    if allowed.filter is None:
        return None
    try:
        return parse_filter(allowed.filter, endpoint)
    except RequestError:
        # never serve without the filter; its mistake concerns the issuer of the token, not the caller
        raise RequestError(
            "bad-restriction",
            f"the row filter of this token does not match the columns of '{endpoint.name}'",
            status=403,
            hint="get a new token; `headrace token show` prints what is wrong with this one",
        ) from None


def _mark(columns: Sequence[str]) -> str:
    return f"-{hashlib.blake2b(chr(10).join(columns).encode(), digest_size=4).hexdigest()}"


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:60]}…"
