"""Live events over HTTP: server-sent events, and a WebSocket at the same URL."""

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
from headrace.core.runtime import lifeline
from headrace.serve.access.access import EndpointAccess
from headrace.serve.access.auth import token_of
from headrace.serve.access.feeds import Feeds
from headrace.serve.access.subscription import Subscription, SubscriptionItem, SubscriptionRequest
from headrace.serve.http.problems import bug
from headrace.serve.http.request_context import RequestContext, check_accept

_LOG = logging.getLogger(__name__)
_EVENT_STREAM = "text/event-stream"
_PROTOCOL, _BEARER = "headrace", "bearer."
_FIRST_MESSAGE_SECONDS = 10.0
_LONGEST_MESSAGE = 65_536
_WORDS = ("$filter", "types", "snapshot", "after")
_GOING_AWAY, _REFUSED, _FAILED, _LATER = 1001, 1008, 1011, 1013


def routes(context: RequestContext) -> list[BaseRoute]:
    live = Live(context)
    return [Route("/{path}/events", live.watch, methods=["GET"]), WebSocketRoute("/{path}/events", live.socket)]


class Live:
    """Handles the routes; holds the feeds of this process."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self.feeds = Feeds(context.stores, context.settings.spec.limits.subscribers)
        self._loop: asyncio.AbstractEventLoop | None = None
        lifeline.on_stop(self._stop)

    async def watch(self, request: Request) -> Response:
        """The changes of an endpoint as server-sent events."""
        self._loop = asyncio.get_running_loop()
        check_accept(request, _EVENT_STREAM)
        requested = parse_parameters(request.query_params.multi_items(), request.headers.get("last-event-id"))
        context = self._context

        def reopen() -> EndpointAccess:
            return context.access.open(context.grant(request), request.path_params["path"], "events")

        if request.method == "HEAD":
            reopen()
            return Response(media_type=_EVENT_STREAM)
        items = self._items(reopen, requested)
        first = await anext(items)  # errors of the request are reported before the response begins
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", "vary": context.vary}
        return StreamingResponse(_sse(first, items), media_type=_EVENT_STREAM, headers=headers)

    async def socket(self, socket: WebSocket) -> None:
        """The changes of an endpoint as WebSocket messages. A message of the caller changes the subscription."""
        self._loop = asyncio.get_running_loop()
        try:
            check_origin(socket, self._context.settings.spec.cors)
            token, protocol = _shown_token(socket)
            if token is not None or not self._context.callers.auth_required:
                self._context.grant_of(token, socket)
        except RequestError as error:
            _LOG.info("a WebSocket was refused: %s", error.code)
            await socket.close(_REFUSED, error.code)
            return
        await socket.accept(subprotocol=protocol)
        with suppress(WebSocketDisconnect, RuntimeError):  # the caller has disconnected
            await _WebSocketSession(socket, self, token).run()

    async def _items(self, reopen: Any, requested: SubscriptionRequest) -> AsyncGenerator[list[SubscriptionItem], None]:
        subscription = Subscription(self.feeds, reopen, requested)
        self._context.meters.subscribers(1)
        try:
            async with aclosing(subscription.items()) as batches:
                async for items in batches:
                    yield items
        finally:
            self._context.meters.subscribers(-1)

    def of_socket(
        self, socket: WebSocket, token: str | None, requested: SubscriptionRequest
    ) -> AsyncGenerator[list[SubscriptionItem], None]:
        """The items for the caller of a WebSocket."""
        context = self._context

        def reopen() -> EndpointAccess:
            return context.access.open(context.grant_of(token, socket), socket.path_params["path"], "events")

        return self._items(reopen, requested)

    def waits_for_token(self, token: str | None) -> bool:
        """Whether the caller still has to send a token."""
        return token is None and self._context.callers.auth_required

    def _stop(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.feeds.stop)


class _WebSocketSession:
    """One WebSocket: it sends the events of the last subscription message."""

    def __init__(self, socket: WebSocket, live: Live, token: str | None) -> None:
        self._socket, self._live, self._token = socket, live, token

    async def run(self) -> None:
        """Run until one side closes."""
        try:
            requested = parse_parameters(self._socket.query_params.multi_items(), None)
            if self._live.waits_for_token(self._token):
                requested = await self._first(requested)
            while (following := await self._send_until_message(requested)) is not None:
                requested = following
        except RequestError as error:
            await self._end(error)
        except (WebSocketDisconnect, RuntimeError):
            raise
        except Exception:
            _LOG.exception("a WebSocket of %s failed", self._socket.url.path)
            await self._end(bug())

    async def _first(self, requested: SubscriptionRequest) -> SubscriptionRequest:
        try:
            async with asyncio.timeout(_FIRST_MESSAGE_SECONDS):
                return await self._next_request(requested)
        except TimeoutError:
            raise RequestError(
                "no-token",
                "no token was sent",
                status=401,
                hint='send {"type": "subscribe", "token": "…"} as the first message',
            ) from None

    async def _send_until_message(self, requested: SubscriptionRequest) -> SubscriptionRequest | None:
        """Send events until the caller changes the subscription; None: the version of the endpoint has changed."""
        sending = asyncio.create_task(self._send(requested))
        receiving = asyncio.create_task(self._next_request(requested))
        try:
            await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                return receiving.result()
            sending.result()
            await self._socket.close(_GOING_AWAY, "version")
            return None
        finally:
            for task in (sending, receiving):
                task.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)

    async def _send(self, requested: SubscriptionRequest) -> None:
        async with aclosing(self._live.of_socket(self._socket, self._token, requested)) as items:
            async for batch in items:
                for item in batch:
                    await self._socket.send_text(item.to_json().decode())

    async def _next_request(self, before: SubscriptionRequest) -> SubscriptionRequest:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        text = message.get("text") or ""
        if len(text) > _LONGEST_MESSAGE:
            raise RequestError("body-too-large", "the message is too long", status=413)
        try:
            change = msgspec.json.decode(text, type=_Subscribe)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise RequestError(
                "bad-subscription",
                f"the message is not valid: {str(error)[:200]}",
                hint='example: {"type": "subscribe", "filter": {"id": 5}, "types": ["insert"], "snapshot": true}',
            ) from None
        if change.token is not None:
            self._token = change.token
        return SubscriptionRequest.of(
            before.filter if change.filter is None else change.filter,
            before.types if change.types is None else change.types,
            before.snapshot if change.snapshot is None else change.snapshot,
            change.after or before.after,
        )

    async def _end(self, error: RequestError) -> None:
        document = {"type": "error", "status": error.status, "code": error.code, "detail": error.message}
        code = _FAILED if error.status == 500 else _LATER if error.status in (429, 503) else _REFUSED
        await self._socket.send_text(msgspec.json.encode({**document, "hint": error.hint}).decode())
        await self._socket.close(_GOING_AWAY if error.code == "stopping" else code, error.code)


class _Subscribe(msgspec.Struct, tag_field="type", tag="subscribe", forbid_unknown_fields=True):
    """A message of the caller: omitted values stay as they were."""

    token: str | None = None
    filter: Any = None
    types: list[str] | None = None
    snapshot: bool | None = None
    after: str | None = None


def parse_parameters(parameters: Sequence[tuple[str, str]], last: str | None) -> SubscriptionRequest:
    """The subscription in URL parameters; the id that a browser repeats is newer than the one in the URL."""
    texts: dict[str, str] = {}
    for name, text in parameters:
        word = "$filter" if name == "filter" else name
        if word not in _WORDS:
            raise RequestError(
                "bad-parameter", f"unknown parameter '{name[:60]}'", hint=did_you_mean(name, _WORDS, "parameters")
            )
        if word in texts:
            raise RequestError("bad-parameter", f"{word} is given twice", hint="remove one")
        texts[word] = text
    types = [name.strip() for name in texts.get("types", "").split(",") if name.strip()]
    return SubscriptionRequest.of(
        _json(texts.get("$filter")), types, _flag(texts.get("snapshot")), last or texts.get("after")
    )


def _json(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError):
        hint = 'example: $filter={"year": {"$gt": 1999}}, percent-encoded'
        raise RequestError("bad-parameter", "$filter is not JSON", hint=hint) from None


def _flag(text: str | None) -> bool:
    if text not in (None, "true", "false"):
        raise RequestError("bad-parameter", "snapshot must be true or false", hint="example: snapshot=true")
    return text == "true"


def check_origin(connection: HTTPConnection, allowed: Sequence[str]) -> None:
    """Reject WebSockets from pages of other origins: browsers leave this check to the server."""
    origin = connection.headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return
    scheme, _, place = origin.partition("://")
    if scheme not in ("http", "https") or place != connection.headers.get("host"):
        raise RequestError(
            "origin-forbidden", "WebSockets from this origin are not allowed", status=403, hint="see serve.cors"
        )


def _shown_token(socket: WebSocket) -> tuple[str | None, str | None]:
    """The token from the headers or, from browsers, which cannot set headers, from the list of subprotocols; and the
    subprotocol to accept."""
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
            async for batch in items:
                yield b"".join(map(_message, batch))
    except RequestError as error:
        if error.code != "stopping":  # the browser then reconnects to another node
            document = {"type": "error", "status": error.status, "code": error.code, "detail": error.message}
            yield b"event: error\ndata: %s\n\n" % msgspec.json.encode({**document, "hint": error.hint})


def _message(item: SubscriptionItem) -> bytes:
    place = b"" if item.token is None else b"id: %s\n" % item.token.encode()
    return b"event: %s\n%sdata: %s\n\n" % (item.type.encode(), place, item.to_json())
