"""Live events over HTTP: server-sent events, and a WebSocket on the same address."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from typing import Any

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from headrace.core.errors import RequestError, did_you_mean
from headrace.core.processes import lifeline
from headrace.serve.access.access import Door
from headrace.serve.access.auth import token_of
from headrace.serve.access.feeds import Feeds
from headrace.serve.access.subscription import Subscription, SubscriptionItem, SubscriptionRequest
from headrace.serve.http.problems import bug
from headrace.serve.http.request_context import Front, check_accept

_LOG = logging.getLogger(__name__)
_EVENT_STREAM = "text/event-stream"
_PROTOCOL, _BEARER = "headrace", "bearer."
_FIRST_MESSAGE_SECONDS = 10.0
_LONGEST_MESSAGE = 65_536
_WORDS = ("$filter", "types", "snapshot", "after")
_GOING_AWAY, _REFUSED, _FAILED, _LATER = 1001, 1008, 1011, 1013


def routes(front: Front) -> list[BaseRoute]:
    """The routes of live events."""
    live = Live(front)
    return [Route("/{path}/events", live.watch, methods=["GET"]), WebSocketRoute("/{path}/events", live.socket)]


class Live:
    """The routes' handlers, and the feeds of this process."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self.feeds = Feeds(front.stores, front.settings.spec.limits.subscribers)
        self._loop: asyncio.AbstractEventLoop | None = None
        lifeline.on_stop(self._stop)

    async def watch(self, request: Request) -> Response:
        """The changes of an endpoint as server-sent events."""
        self._loop = asyncio.get_running_loop()
        check_accept(request, _EVENT_STREAM)
        wanted = wanted_of(request.query_params.multi_items(), request.headers.get("last-event-id"))
        front = self._front

        def door() -> Door:
            return front.doors.open(front.grant(request), request.path_params["path"], "events")

        if request.method == "HEAD":
            door()
            return Response(media_type=_EVENT_STREAM)
        items = self._items(door, wanted)
        first = await anext(items)  # what is wrong with the request is said before anything is sent
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", "vary": front.vary}
        return StreamingResponse(_sse(first, items), media_type=_EVENT_STREAM, headers=headers)

    async def socket(self, socket: WebSocket) -> None:
        """The changes of an endpoint as messages of a WebSocket. A message of the caller asks anew."""
        self._loop = asyncio.get_running_loop()
        try:
            check_origin(socket, self._front.settings.spec.cors)
            token, protocol = _shown_token(socket)
            if token is not None or not self._front.callers.wanted:
                self._front.grant_of(token, socket)
        except RequestError as error:
            _LOG.info("a WebSocket was refused: %s", error.code)
            await socket.close(_REFUSED, error.code)
            return
        await socket.accept(subprotocol=protocol)
        with suppress(WebSocketDisconnect, RuntimeError):  # the caller is gone
            await _WebSocketSession(socket, self, token).run()

    async def _items(self, door: Any, wanted: SubscriptionRequest) -> AsyncGenerator[list[SubscriptionItem], None]:
        subscription = Subscription(self.feeds, door, wanted)
        self._front.meters.subscribers(1)
        try:
            async with aclosing(subscription.items()) as found:
                async for items in found:
                    yield items
        finally:
            self._front.meters.subscribers(-1)

    def of_socket(
        self, socket: WebSocket, token: str | None, wanted: SubscriptionRequest
    ) -> AsyncGenerator[list[SubscriptionItem], None]:
        """The items of a WebSocket's caller."""
        front = self._front

        def door() -> Door:
            return front.doors.open(front.grant_of(token, socket), socket.path_params["path"], "events")

        return self._items(door, wanted)

    def waits_for_token(self, token: str | None) -> bool:
        """Whether the caller still has to say who it is."""
        return token is None and self._front.callers.wanted

    def _stop(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.feeds.stop)


class _WebSocketSession:
    """One WebSocket: what was asked last is what is sent."""

    def __init__(self, socket: WebSocket, live: Live, token: str | None) -> None:
        self._socket, self._live, self._token = socket, live, token

    async def run(self) -> None:
        """Until one side closes."""
        try:
            wanted = wanted_of(self._socket.query_params.multi_items(), None)
            if self._live.waits_for_token(self._token):
                wanted = await self._first(wanted)
            while (following := await self._send_until_asked(wanted)) is not None:
                wanted = following
        except RequestError as error:
            await self._end(error)
        except (WebSocketDisconnect, RuntimeError):
            raise
        except Exception:
            _LOG.exception("a WebSocket of %s failed", self._socket.url.path)
            await self._end(bug())

    async def _first(self, wanted: SubscriptionRequest) -> SubscriptionRequest:
        try:
            async with asyncio.timeout(_FIRST_MESSAGE_SECONDS):
                return await self._asked(wanted)
        except TimeoutError:
            raise RequestError(
                "no-token",
                "no token came",
                status=401,
                hint='send {"type": "subscribe", "token": "…"} as the first message',
            ) from None

    async def _send_until_asked(self, wanted: SubscriptionRequest) -> SubscriptionRequest | None:
        """Send what is wanted until the caller wants something else; None: that was all."""
        sending = asyncio.create_task(self._send(wanted))
        asking = asyncio.create_task(self._asked(wanted))
        try:
            await asyncio.wait((sending, asking), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            sending.result()
            await self._socket.close(_GOING_AWAY, "version")
            return None
        finally:
            for task in (sending, asking):
                task.cancel()
            await asyncio.gather(sending, asking, return_exceptions=True)

    async def _send(self, wanted: SubscriptionRequest) -> None:
        async with aclosing(self._live.of_socket(self._socket, self._token, wanted)) as items:
            async for some in items:
                for item in some:
                    await self._socket.send_text(item.to_json().decode())

    async def _asked(self, before: SubscriptionRequest) -> SubscriptionRequest:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        text = message.get("text") or ""
        if len(text) > _LONGEST_MESSAGE:
            raise RequestError("body-too-large", "the message is too long", status=413)
        try:
            asked = msgspec.json.decode(text, type=_Subscribe)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise RequestError(
                "bad-subscription",
                f"the message is not understood: {str(error)[:200]}",
                hint='as in {"type": "subscribe", "filter": {"id": 5}, "types": ["insert"], "snapshot": true}',
            ) from None
        if asked.token is not None:
            self._token = asked.token
        return SubscriptionRequest.of(
            before.filter if asked.filter is None else asked.filter,
            before.types if asked.types is None else asked.types,
            before.snapshot if asked.snapshot is None else asked.snapshot,
            asked.after or before.after,
        )

    async def _end(self, error: RequestError) -> None:
        said = {"type": "error", "status": error.status, "code": error.code, "detail": error.message}
        code = _FAILED if error.status == 500 else _LATER if error.status in (429, 503) else _REFUSED
        await self._socket.send_text(msgspec.json.encode({**said, "hint": error.hint}).decode())
        await self._socket.close(_GOING_AWAY if error.code == "stopping" else code, error.code)


class _Subscribe(msgspec.Struct, tag_field="type", tag="subscribe", forbid_unknown_fields=True):
    """What a caller may say: what it leaves out stays as the address has it."""

    token: str | None = None
    filter: Any = None
    types: list[str] | None = None
    snapshot: bool | None = None
    after: str | None = None


def wanted_of(parameters: Sequence[tuple[str, str]], last: str | None) -> SubscriptionRequest:
    """What the parameters of an address ask for; the id that a browser repeats is newer than the one in the address."""
    found: dict[str, str] = {}
    for name, text in parameters:
        word = "$filter" if name == "filter" else name
        if word not in _WORDS:
            raise RequestError(
                "bad-parameter", f"there is no parameter '{name[:60]}'", hint=did_you_mean(name, _WORDS, "parameters")
            )
        if word in found:
            raise RequestError("bad-parameter", f"{word} is there twice", hint="leave one out")
        found[word] = text
    types = [name.strip() for name in found.get("types", "").split(",") if name.strip()]
    return SubscriptionRequest.of(
        _json(found.get("$filter")), types, _flag(found.get("snapshot")), last or found.get("after")
    )


def _json(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError):
        hint = 'as in $filter={"year": {"$gt": 1999}}, percent-encoded'
        raise RequestError("bad-parameter", "$filter is not JSON", hint=hint) from None


def _flag(text: str | None) -> bool:
    if text not in (None, "true", "false"):
        raise RequestError("bad-parameter", "snapshot is neither true nor false", hint="as in snapshot=true")
    return text == "true"


def check_origin(connection: HTTPConnection, allowed: Sequence[str]) -> None:
    """A page of elsewhere gets no WebSocket: browsers let any page open one, and leave the check to the server."""
    origin = connection.headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return
    scheme, _, place = origin.partition("://")
    if scheme not in ("http", "https") or place != connection.headers.get("host"):
        raise RequestError(
            "origin-forbidden", "pages of this origin are not answered", status=403, hint="see serve.cors"
        )


def _shown_token(socket: WebSocket) -> tuple[str | None, str | None]:
    """The token in the headers or, from browsers, which can set no header, in the list of protocols; and which of those
    to agree to."""
    offered = socket.scope.get("subprotocols") or []
    headers = socket.headers
    token = token_of(headers.get("authorization"), headers.get("x-api-key"))
    named = next((name.removeprefix(_BEARER) for name in offered if name.startswith(_BEARER)), None)
    return token or named, _PROTOCOL if _PROTOCOL in offered else None


async def _sse(
    first: list[SubscriptionItem], items: AsyncGenerator[list[SubscriptionItem], None]
) -> AsyncIterator[bytes]:
    yield b"".join(map(_message, first))
    try:
        async with aclosing(items):
            async for some in items:
                yield b"".join(map(_message, some))
    except RequestError as error:
        if error.code != "stopping":  # then the browser asks another node by itself
            said = {"type": "error", "status": error.status, "code": error.code, "detail": error.message}
            yield b"event: error\ndata: %s\n\n" % msgspec.json.encode({**said, "hint": error.hint})


def _message(item: SubscriptionItem) -> bytes:
    place = b"" if item.token is None else b"id: %s\n" % item.token.encode()
    return b"event: %s\n%sdata: %s\n\n" % (item.type.encode(), place, item.to_json())
