"""The methods of the common and the typed services. Rows come from `EndpointAccess`, which applies the row filter."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import cached_property, partial
from typing import Any

import msgspec
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from headrace.core.encoding.descriptors import build_pool
from headrace.core.errors import RequestError
from headrace.core.schema import ddl_type
from headrace.serve.access.access import AccessControl, EndpointAccess
from headrace.serve.access.auth import Callers, token_of
from headrace.serve.access.feeds import Feeds
from headrace.serve.access.grants import Grant
from headrace.serve.access.stores import Stores
from headrace.serve.access.subscription import Subscription, SubscriptionItem, SubscriptionRequest
from headrace.serve.base.meters import Meters
from headrace.serve.base.settings import Settings
from headrace.serve.grpc.calls import Caller, Method, Style
from headrace.serve.grpc.typed import PACKAGE, Typed, common_files, service_name
from headrace.serve.grpc.values import GenericRows, key_of, read
from headrace.serve.ingest.pushing import TableIngest
from headrace.store.rows.served_row import ServedRow

COMMON_SERVICE = "headrace.v1.CommonService"
TABLE_SERVICE = "headrace.v1.TableService"
_TYPED = re.compile(
    rf"/{re.escape(PACKAGE)}\.([a-z][a-z0-9_]{{0,99}})\.[A-Za-z0-9_]{{1,110}}/(Get|Query|Count|OnEvent)"
)
_STYLES = {"Get": Style.QUICK, "Query": Style.SLOW, "Count": Style.SLOW, "OnEvent": Style.STREAM}
_EVENT_TYPES = ("", "insert", "update", "delete", "snapshot", "snapshot_end", "gap", "heartbeat", "version")
_NUMBERS = {name: number for number, name in enumerate(_EVENT_TYPES)}
_OPS = ("", "insert", "update", "upsert", "delete")
_CACHED = 64


class Services:
    """All methods of endpoints. The typed service of an endpoint follows the served version."""

    def __init__(self, settings: Settings, stores: Stores, callers: Callers, meters: Meters) -> None:
        self.stores, self.callers = stores, callers
        self.access = AccessControl.of(settings, stores)
        self.feeds = Feeds(stores, settings.spec.limits.subscribers)
        self._tables = TableIngest(settings)
        self._meters = meters
        self._typed: dict[tuple[str, int], Typed] = {}
        self._generic: dict[tuple[str, int], GenericRows] = {}
        self._typed_calls: dict[str, Callable[..., Any]] = {
            "Get": self._typed_get,
            "Query": self._typed_query,
            "Count": self._typed_count,
            "OnEvent": self._typed_on_event,
        }
        self._methods = {f"/{COMMON_SERVICE}/{name}": method for name, method in self._common().items()}
        self._methods[f"/{TABLE_SERVICE}/Push"] = Method(Style.LATER, self._push)

    def find(self, path: str) -> Method | None:
        known = self._methods.get(path)
        if known is not None:
            return known
        match = _TYPED.fullmatch(path)
        if match is None or not path.startswith(f"/{service_name(match[1])}/"):
            return None
        method = self._method(match[2], "typed", self._typed_calls[match[2]], match[1])
        if match[1] in self.stores.names():
            self._methods[path] = method
        return method

    def grant(self, caller: Caller) -> Grant:
        metadata = caller.metadata
        return self.callers.grant(token_of(metadata.get("authorization"), metadata.get("x-api-key")), caller.address)

    def typed(self, access: EndpointAccess) -> Typed:
        """The typed service of an endpoint, with all its columns."""
        name = access.endpoint.name
        service = self._typed.get((name, access.version))
        if service is None:
            full = self.stores.reader(name, access.version).endpoint
            if len(self._typed) >= _CACHED:
                self._typed.clear()
            service = self._typed[name, access.version] = Typed(full)
        return service

    # --- the common service

    def _common(self) -> dict[str, Method]:
        return {
            "GetEndpoints": self._method("GetEndpoints", "common", self._endpoints, style=Style.SLOW),
            "GetFields": self._method("GetFields", "common", self._fields, style=Style.QUICK),
            "Get": self._method("Get", "common", self._get),
            "Query": self._method("Query", "common", self._query),
            "Count": self._method("Count", "common", self._count),
            "OnEvent": self._method("OnEvent", "common", self._on_event),
        }

    def _method(
        self, name: str, kind: str, call: Callable[..., Any], endpoint: str | None = None, style: Style | None = None
    ) -> Method:
        style = style or _STYLES[name]
        bound = call if endpoint is None else partial(call, endpoint)
        if style is Style.STREAM:
            return Method(style, bound)
        return Method(style, self._counted(f"{kind} {name}", bound))

    def _counted(
        self, route: str, call: Callable[[Caller, bytes], tuple[str, bytes]]
    ) -> Callable[[Caller, bytes], bytes]:
        """Count the calls of a method, which returns the endpoint's name and the reply."""
        count, clock = self._meters.count, time.perf_counter

        def counted(caller: Caller, message: bytes) -> bytes:
            began = clock()
            try:
                name, reply = call(caller, message)
            except RequestError as error:
                count("grpc", route, "", error.status, clock() - began)
                raise
            count("grpc", route, name, 200, clock() - began)
            return reply

        return counted

    @cached_property
    def _messages(self) -> Callable[[str], type[Message]]:
        pool = build_pool(common_files())
        known = {
            name: GetMessageClass(descriptor)
            for name, descriptor in pool.FindFileByName("headrace/v1/common.proto").message_types_by_name.items()
        }
        return known.__getitem__

    def _request(self, kind: str, message: bytes) -> Any:
        return parsed(self._messages(kind), message)

    def _open(self, caller: Caller, name: str, scope: str = "read") -> EndpointAccess:
        """Open an endpoint; a caller can name a version in its metadata."""
        version = caller.metadata.get("x-headrace-version")
        versioned = name if version is None or "@" in name else f"{name}@v{version.removeprefix('v')}"
        return self.access.open(self.grant(caller), versioned, scope)

    def _rows(self, access: EndpointAccess) -> GenericRows:
        name = access.endpoint.name
        rows = self._generic.get((name, access.version))
        if rows is None:
            if len(self._generic) >= _CACHED:
                self._generic.clear()
            columns = self.stores.reader(name, access.version).endpoint.columns
            rows = self._generic[name, access.version] = GenericRows(columns)
        return rows

    def _endpoints(self, caller: Caller, _message: bytes) -> tuple[str, bytes]:
        grant = self.grant(caller)
        grant.check("read")
        endpoints: list[dict[str, Any]] = []
        for name in self.access.names(grant):
            try:
                endpoint = self.access.open(grant, name).endpoint
            except RequestError as error:
                if error.status != 503:
                    raise
                endpoints.append({"name": name, "service": service_name(name)})
                continue
            details = {"version": endpoint.version, "description": endpoint.description, "key": endpoint.key}
            endpoints.append({"name": name, "service": service_name(name), **details})
        return "", self._messages("GetEndpointsResponse")(endpoints=endpoints).SerializeToString()

    def _fields(self, caller: Caller, message: bytes) -> tuple[str, bytes]:
        endpoint = self._open(caller, self._request("GetFieldsRequest", message).endpoint).endpoint
        indexed = {columns[0] for columns in endpoint.indexes}
        fields = [
            {
                "name": field.name,
                "type": ddl_type(field.type),
                "key": field.name in endpoint.key,
                "indexed": field.name in indexed or field.name == next(iter(endpoint.key), None),
                "searched": field.name in endpoint.text,
            }
            for field in endpoint.columns
        ]
        answer = self._messages("GetFieldsResponse")(version=endpoint.version, fields=fields)
        return endpoint.name, answer.SerializeToString()

    def _get(self, caller: Caller, message: bytes) -> tuple[str, bytes]:
        request = self._request("GetRequest", message)
        access = self._open(caller, request.endpoint)
        stored = row_of(access, lambda: [read(value) for value in request.key])
        row = self._rows(access).row(stored.json)
        return access.endpoint.name, self._messages("Record")(version=stored.version, row=row).SerializeToString()

    def _query(self, caller: Caller, message: bytes) -> tuple[str, bytes]:
        request = self._request("QueryRequest", message)
        access = self._open(caller, request.endpoint)
        page = access.query(document(request.query))
        rows = self._rows(access)
        records = [{"version": stored.version, "row": rows.row(stored.json)} for stored in page.rows]
        reply = self._messages("QueryResponse")(records=records, next=page.next or "")
        return access.endpoint.name, reply.SerializeToString()

    def _count(self, caller: Caller, message: bytes) -> tuple[str, bytes]:
        request = self._request("QueryRequest", message)
        return self._counted_rows(self._open(caller, request.endpoint), request.query)

    def _counted_rows(self, access: EndpointAccess, query: str) -> tuple[str, bytes]:
        reply = self._messages("CountResponse")(count=access.count(document(query)))
        return access.endpoint.name, reply.SerializeToString()

    def _on_event(self, caller: Caller, message: bytes) -> AsyncIterator[bytes]:
        request = self._request("OnEventRequest", message)
        event = self._messages("Event")
        return self._events(caller, request.endpoint, request, lambda access: (event, self._rows(access).row))

    # --- the table service

    async def _push(self, caller: Caller, message: bytes) -> bytes:
        began, status, name = time.perf_counter(), 500, ""
        try:
            grant = self.grant(caller)
            request = self._request("PushRequest", message)
            if request.table in self._tables.names(grant):
                name = request.table
            changes = {"changes": [_pushed(change) for change in request.changes]}
            reply = await self._tables.push(grant, request.table, changes, request.idempotency_key or None)
            status = 200
        except RequestError as error:
            status = error.status
            raise
        finally:
            self._meters.count("grpc", "table Push", name, status, time.perf_counter() - began)
        return self._messages("PushResponse")(**reply).SerializeToString()

    # --- the typed services

    def _typed_get(self, name: str, caller: Caller, message: bytes) -> tuple[str, bytes]:
        access = self._open(caller, name)
        typed = self.typed(access)
        request = parsed(typed.key_class, message)
        stored = row_of(access, lambda: list(typed.read_key(request).values()))
        return name, typed.record_class(version=stored.version, row=typed.row(stored.json)).SerializeToString()

    def _typed_query(self, name: str, caller: Caller, message: bytes) -> tuple[str, bytes]:
        access = self._open(caller, name)
        typed = self.typed(access)
        page = access.query(document(self._request("Query", message).query))
        records = [{"version": stored.version, "row": typed.row(stored.json)} for stored in page.rows]
        return name, typed.page_class(records=records, next=page.next or "").SerializeToString()

    def _typed_count(self, name: str, caller: Caller, message: bytes) -> tuple[str, bytes]:
        return self._counted_rows(self._open(caller, name), self._request("Query", message).query)

    def _typed_on_event(self, name: str, caller: Caller, message: bytes) -> AsyncIterator[bytes]:
        def encoding(access: EndpointAccess) -> tuple[type[Message], Callable[[bytes], dict[str, Any]]]:
            typed = self.typed(access)
            return typed.event_class, typed.row

        return self._events(caller, name, self._request("Subscription", message), encoding)

    async def _events(self, caller: Caller, name: str, message: Any, encoding: Any) -> AsyncIterator[bytes]:
        def reopen() -> EndpointAccess:
            return self._open(caller, name, "events")

        request = SubscriptionRequest.of(
            document(message.filter, None), _types(message.types), message.snapshot, message.after or None
        )
        subscription = Subscription(self.feeds, reopen, request)
        event, row = encoding(subscription.access)
        self._meters.subscribers(1)
        try:
            async with aclosing(subscription.items()) as batches:
                async for items in batches:
                    for item in items:
                        yield event(**_event(item, row)).SerializeToString()
        finally:
            self._meters.subscribers(-1)


def parsed(kind: type[Message], message: bytes) -> Any:
    """Parse a message; RequestError when it is not of this type."""
    try:
        return kind.FromString(message)
    except DecodeError:
        raise RequestError(
            "bad-call", f"the message is not a {kind.DESCRIPTOR.full_name}", hint="server reflection describes it"
        ) from None


def document(text: str, empty: Any = msgspec.UNSET) -> Any:
    """The JSON of a query or filter."""
    if not text.strip():
        return {} if empty is msgspec.UNSET else empty
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise RequestError("bad-json", "the JSON is nested too deeply", hint="reduce the nesting") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise RequestError("bad-json", f"not JSON: {error}", hint="check quotes and commas") from None


def row_of(access: EndpointAccess, key: Callable[[], list[Any]]) -> ServedRow:
    """The row of a key; RequestError when it does not exist."""
    if not access.endpoint.key:
        access.get([])  # raises the error for endpoints without key
    try:
        values = key()
    except ValueError as error:
        raise RequestError("bad-key", f"the key is not valid: {error}", hint="see GetFields for its types") from None
    row = access.get(key_of(access.endpoint, values))
    if row is None:
        raise RequestError(
            "no-row",
            f"'{access.endpoint.name}' has no row with this key",
            status=404,
            hint=f"the key is: {', '.join(access.endpoint.key)}",
        )
    return row


def _pushed(change: Any) -> dict[str, Any]:
    """A change as a JSON value."""
    try:
        row = {name: read(value) for name, value in change.row.items()}
    except ValueError as error:
        raise RequestError("bad-change", f"a row has an invalid value: {error}", status=422) from None
    op = _OPS[change.op] if change.op < len(_OPS) else ""
    return {"op": op, "row": row, **({"id": change.id} if change.id else {})}


def _types(numbers: list[int]) -> list[str]:
    wrong = [number for number in numbers if not 1 <= number <= 3]
    if wrong:
        raise RequestError("bad-event-type", "this event type cannot be selected", hint="INSERT, UPDATE, DELETE")
    return [_EVENT_TYPES[number] for number in numbers]


def _event(item: SubscriptionItem, row: Callable[[bytes], dict[str, Any]]) -> dict[str, Any]:
    event: dict[str, Any] = {"type": _NUMBERS[item.type]}
    if item.token is not None:
        event["token"] = item.token
    if item.row is not None:
        event["row"] = row(item.row)
    if item.old is not None:
        event["old"] = row(item.old)
    if item.gap is not None:
        event["gap"] = {"from": item.gap[0], "to": item.gap[1]}
    if item.version is not None:
        event["version"] = item.version
    return event
