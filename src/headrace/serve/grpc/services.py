"""The methods of the common and of the typed services: a caller's question, through its door, to its answer."""

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
from headrace.serve.access.access import Door, Doors
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
from headrace.serve.ingest.pushing import Pushing
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
_KEPT = 64


class Services:
    """All methods about endpoints. What an endpoint's typed service looks like follows the version that is served."""

    def __init__(self, settings: Settings, stores: Stores, callers: Callers, meters: Meters) -> None:
        self.stores, self.callers = stores, callers
        self.doors = Doors.of(settings, stores)
        self.feeds = Feeds(stores, settings.spec.limits.subscribers)
        self._pushing = Pushing(settings)
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
        """The method of a path."""
        known = self._methods.get(path)
        if known is not None:
            return known
        found = _TYPED.fullmatch(path)
        if found is None or not path.startswith(f"/{service_name(found[1])}/"):
            return None
        method = self._method(found[2], "typed", self._typed_calls[found[2]], found[1])
        if found[1] in self.stores.names():
            self._methods[path] = method
        return method

    def grant(self, caller: Caller) -> Grant:
        """What a caller may do."""
        metadata = caller.metadata
        return self.callers.grant(token_of(metadata.get("authorization"), metadata.get("x-api-key")), caller.address)

    def typed(self, door: Door) -> Typed:
        """The typed service of what is behind a door, all columns of it."""
        name = door.endpoint.name
        found = self._typed.get((name, door.version))
        if found is None:
            full = self.stores.reader(name, door.version).endpoint
            if len(self._typed) >= _KEPT:
                self._typed.clear()
            found = self._typed[name, door.version] = Typed(full)
        return found

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
        """Counts the calls of a method. What it is given back is the endpoint's name and the answer."""
        count, clock = self._meters.count, time.perf_counter

        def counted(caller: Caller, message: bytes) -> bytes:
            began = clock()
            try:
                name, answer = call(caller, message)
            except RequestError as error:
                count("grpc", route, "", error.status, clock() - began)
                raise
            count("grpc", route, name, 200, clock() - began)
            return answer

        return counted

    @cached_property
    def _messages(self) -> Callable[[str], type[Message]]:
        pool = build_pool(common_files())
        known = {
            name: GetMessageClass(found)
            for name, found in pool.FindFileByName("headrace/v1/common.proto").message_types_by_name.items()
        }
        return known.__getitem__

    def _asked(self, kind: str, message: bytes) -> Any:
        return parsed(self._messages(kind), message)

    def _door(self, caller: Caller, name: str, scope: str = "read") -> Door:
        """The door to an endpoint; a caller that knows one version of it names that in its metadata."""
        version = caller.metadata.get("x-headrace-version")
        wanted = name if version is None or "@" in name else f"{name}@v{version.removeprefix('v')}"
        return self.doors.open(self.grant(caller), wanted, scope)

    def _rows(self, door: Door) -> GenericRows:
        name = door.endpoint.name
        found = self._generic.get((name, door.version))
        if found is None:
            if len(self._generic) >= _KEPT:
                self._generic.clear()
            columns = self.stores.reader(name, door.version).endpoint.columns
            found = self._generic[name, door.version] = GenericRows(columns)
        return found

    def _endpoints(self, caller: Caller, _message: bytes) -> tuple[str, bytes]:
        grant = self.grant(caller)
        grant.check("read")
        found: list[dict[str, Any]] = []
        for name in self.doors.names(grant):
            try:
                endpoint = self.doors.open(grant, name).endpoint
            except RequestError as error:
                if error.status != 503:
                    raise
                found.append({"name": name, "service": service_name(name)})
                continue
            said = {"version": endpoint.version, "description": endpoint.description, "key": endpoint.key}
            found.append({"name": name, "service": service_name(name), **said})
        return "", self._messages("GetEndpointsResponse")(endpoints=found).SerializeToString()

    def _fields(self, caller: Caller, message: bytes) -> tuple[str, bytes]:
        endpoint = self._door(caller, self._asked("GetFieldsRequest", message).endpoint).endpoint
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
        asked = self._asked("GetRequest", message)
        door = self._door(caller, asked.endpoint)
        answer = row_of(door, lambda: [read(value) for value in asked.key])
        row = self._rows(door).row(answer.json)
        return door.endpoint.name, self._messages("Record")(version=answer.version, row=row).SerializeToString()

    def _query(self, caller: Caller, message: bytes) -> tuple[str, bytes]:
        asked = self._asked("QueryRequest", message)
        door = self._door(caller, asked.endpoint)
        page = door.query(document(asked.query))
        rows = self._rows(door)
        records = [{"version": answer.version, "row": rows.row(answer.json)} for answer in page.rows]
        answer = self._messages("QueryResponse")(records=records, next=page.next or "")
        return door.endpoint.name, answer.SerializeToString()

    def _count(self, caller: Caller, message: bytes) -> tuple[str, bytes]:
        asked = self._asked("QueryRequest", message)
        return self._counted_rows(self._door(caller, asked.endpoint), asked.query)

    def _counted_rows(self, door: Door, query: str) -> tuple[str, bytes]:
        answer = self._messages("CountResponse")(count=door.count(document(query)))
        return door.endpoint.name, answer.SerializeToString()

    def _on_event(self, caller: Caller, message: bytes) -> AsyncIterator[bytes]:
        asked = self._asked("OnEventRequest", message)
        event = self._messages("Event")
        return self._events(caller, asked.endpoint, asked, lambda door: (event, self._rows(door).row))

    # --- the service of tables

    async def _push(self, caller: Caller, message: bytes) -> bytes:
        began, status, name = time.perf_counter(), 500, ""
        try:
            grant = self.grant(caller)
            asked = self._asked("PushRequest", message)
            if asked.table in self._pushing.names(grant):
                name = asked.table
            changes = {"changes": [_pushed(change) for change in asked.changes]}
            found = await self._pushing.push(grant, asked.table, changes, asked.idempotency_key or None)
            status = 200
        except RequestError as error:
            status = error.status
            raise
        finally:
            self._meters.count("grpc", "table Push", name, status, time.perf_counter() - began)
        return self._messages("PushResponse")(**found).SerializeToString()

    # --- the typed services

    def _typed_get(self, name: str, caller: Caller, message: bytes) -> tuple[str, bytes]:
        door = self._door(caller, name)
        typed = self.typed(door)
        asked = parsed(typed.key_class, message)
        answer = row_of(door, lambda: list(typed.read_key(asked).values()))
        return name, typed.record_class(version=answer.version, row=typed.row(answer.json)).SerializeToString()

    def _typed_query(self, name: str, caller: Caller, message: bytes) -> tuple[str, bytes]:
        door = self._door(caller, name)
        typed = self.typed(door)
        page = door.query(document(self._asked("Query", message).query))
        records = [{"version": answer.version, "row": typed.row(answer.json)} for answer in page.rows]
        return name, typed.page_class(records=records, next=page.next or "").SerializeToString()

    def _typed_count(self, name: str, caller: Caller, message: bytes) -> tuple[str, bytes]:
        return self._counted_rows(self._door(caller, name), self._asked("Query", message).query)

    def _typed_on_event(self, name: str, caller: Caller, message: bytes) -> AsyncIterator[bytes]:
        def how(door: Door) -> tuple[type[Message], Callable[[bytes], dict[str, Any]]]:
            typed = self.typed(door)
            return typed.event_class, typed.row

        return self._events(caller, name, self._asked("Subscription", message), how)

    async def _events(self, caller: Caller, name: str, asked: Any, how: Any) -> AsyncIterator[bytes]:
        def again() -> Door:
            return self._door(caller, name, "events")

        wanted = SubscriptionRequest.of(
            document(asked.filter, None), _types(asked.types), asked.snapshot, asked.after or None
        )
        subscription = Subscription(self.feeds, again, wanted)
        event, row = how(subscription.door)
        self._meters.subscribers(1)
        try:
            async with aclosing(subscription.items()) as found:
                async for items in found:
                    for item in items:
                        yield event(**_event(item, row)).SerializeToString()
        finally:
            self._meters.subscribers(-1)


def parsed(kind: type[Message], message: bytes) -> Any:
    """The question that a message is."""
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
        raise RequestError("bad-json", "the JSON is nested too deeply", hint="a few levels are enough") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise RequestError("bad-json", f"not JSON: {error}", hint="check quotes and commas") from None


def row_of(door: Door, key: Callable[[], list[Any]]) -> ServedRow:
    """The row of a key."""
    if not door.endpoint.key:
        door.get([])  # says why there is none
    try:
        given = key()
    except ValueError as error:
        raise RequestError("bad-key", f"the key cannot be one: {error}", hint="see GetFields for its types") from None
    answer = door.get(key_of(door.endpoint, given))
    if answer is None:
        raise RequestError(
            "no-row",
            f"there is no row of '{door.endpoint.name}' with this key",
            status=404,
            hint=f"the key is: {', '.join(door.endpoint.key)}",
        )
    return answer


def _pushed(change: Any) -> dict[str, Any]:
    """A change as JSON has it."""
    try:
        row = {name: read(value) for name, value in change.row.items()}
    except ValueError as error:
        raise RequestError("bad-change", f"a row has a value that cannot be one: {error}", status=422) from None
    op = _OPS[change.op] if change.op < len(_OPS) else ""
    return {"op": op, "row": row, **({"id": change.id} if change.id else {})}


def _types(numbers: list[int]) -> list[str]:
    wrong = [number for number in numbers if not 1 <= number <= 3]
    if wrong:
        raise RequestError("bad-event-type", "only some types of events can be chosen", hint="INSERT, UPDATE, DELETE")
    return [_EVENT_TYPES[number] for number in numbers]


def _event(item: SubscriptionItem, row: Callable[[bytes], dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"type": _NUMBERS[item.type]}
    if item.token is not None:
        found["token"] = item.token
    if item.row is not None:
        found["row"] = row(item.row)
    if item.old is not None:
        found["old"] = row(item.old)
    if item.gap is not None:
        found["gap"] = {"from": item.gap[0], "to": item.gap[1]}
    if item.version is not None:
        found["version"] = item.version
    return found
