"""The REST routes of an API process, other than the fast one for single rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from headrace.core.errors import RequestError
from headrace.serve.access.access import Door
from headrace.serve.access.url_query import query_of
from headrace.serve.access.url_values import endpoint_name
from headrace.serve.http import pages
from headrace.serve.http.request_context import Front
from headrace.serve.ingest import pushing
from headrace.serve.ingest.ingest import may_post
from headrace.serve.rest import dashboards, live, openapi
from headrace.serve.rest.rows import RowRoutes
from headrace.serve.sql import routes as sql
from headrace.serve.sql.pool import Answerers
from headrace.sources.http import HttpSource
from headrace.store.query.query import ResultPage

_METRICS = "text/plain; version=1.0.0; charset=utf-8"
_READY = "ready"
_FEW_ROWS = 200
T = TypeVar("T")


def routes(front: Front, answerers: Answerers) -> list[BaseRoute]:
    """All routes: tables and what is asked most, so that it is found first, then those of fixed names."""
    tables = pushing.Pushing(front.settings)
    rest = Rest(front, tables)
    return [
        *pushing.routes(front, tables),
        Route("/{path}/query", rest.query, methods=["POST"]),
        Route("/", rest.endpoints),
        Route("/health", rest.health),
        Route("/metrics", rest.metrics),
        Route("/openapi.json", rest.openapi),
        Route("/docs", rest.docs),
        *dashboards.routes(front),
        *sql.routes(front, answerers),
        Route("/{path}", rest.list),
        Route("/{path}/count", rest.count, methods=["POST"]),
        Route("/{path}/oapi", rest.describe),
        *live.routes(front),
        Route("/{path}/{key:path}", rest.row),
    ]


class Rest:
    """The routes' handlers."""

    def __init__(self, front: Front, tables: pushing.Pushing) -> None:
        self._front = front
        self._tables = tables
        self._rows = RowRoutes(front)

    async def endpoints(self, request: Request) -> Response:
        """The paths of all endpoints that the caller may see."""
        grant = self._front.grant(request)
        return self._json(request, [f"/{name}" for name in self._front.doors.names(grant)])

    async def health(self, request: Request) -> Response:
        """Whether all endpoints can answer; how far each is, for callers with a token."""
        front = self._front
        known = any(name in request.headers for name in ("authorization", "x-api-key"))
        grant = front.grant(request) if known or not front.callers.wanted else None
        said = await run_in_threadpool(front.stores.status)
        states = [one["state"] for one in said.values()]
        state = next((one for one in states if one != _READY), _READY)
        document: dict[str, Any] = {"status": state}
        if grant is not None:
            document["endpoints"] = {name: one for name, one in said.items() if grant.may(name) is not None}
        return self._json(request, document, status=200 if state == _READY else 503)

    async def metrics(self, request: Request) -> Response:
        """Numbers for Prometheus, of all processes of this node."""
        self._front.grant(request).check("admin")
        said = await run_in_threadpool(self._front.stores.status)
        return Response(await run_in_threadpool(self._front.meters.text, said), media_type=_METRICS)

    async def openapi(self, request: Request) -> Response:
        """The OpenAPI document of what the caller may see."""
        grant = self._front.grant(request)
        tables, streams = self._tables.names(grant), may_post(self._front.settings, grant)
        if not tables and not streams:
            grant.check("read")
        found = []
        for name in self._front.doors.names(grant) if grant.allows("read") else ():
            try:
                found.append(self._front.doors.open(grant, name))
            except RequestError as error:
                if error.status != 503:  # one that cannot answer yet has no schema yet
                    raise
        return self._json(request, self._described(found, tables, streams))

    async def describe(self, request: Request) -> Response:
        """The OpenAPI document of one endpoint."""
        door = self._door(request)
        return self._json(request, self._described([door]), headers=_version(door))

    async def docs(self, request: Request) -> Response:
        """A page for people. It holds no data: it asks for the OpenAPI document itself, with the reader's token."""
        return pages.DOCS.answer(self._front, request)

    async def list(self, request: Request) -> Response:
        """Rows, as the parameters of the address want them."""
        door = self._door(request)
        document = query_of(_parameters(request), door.endpoint)
        page = await _found(door.query, document)
        headers = _version(door)
        if page.next is not None:
            headers["link"] = f'<{_next_address(request, page.next)}>; rel="next"'
        return self._page(request, page, headers)

    async def query(self, request: Request) -> Response:
        """Rows that meet a filter."""
        door = self._door(request)
        page = await _found(door.query, await self._front.document(request))
        return self._page(request, page, _version(door))

    async def count(self, request: Request) -> Response:
        """How many rows meet a filter."""
        door = self._door(request)
        number = await _found(door.count, await self._front.document(request))
        return self._json(request, number, headers=_version(door))

    async def row(self, request: Request) -> Response:
        """One row by its key, for requests that the fast path leaves alone."""
        door = self._door(request)
        raw = _raw_path(request)[1:].partition(b"/")[2]
        given = _parameters(request)
        if raw == b"":
            if not given or {name for name, _ in given} != set(door.endpoint.key):
                return await self.list(request)
            texts = dict(given)
            key = door.keys.texts([texts[name] for name in door.endpoint.key])
        elif given:
            names = ", ".join(sorted({name for name, _ in given}))
            raise RequestError("bad-parameter", f"one row takes no parameters: {names}", hint="leave them out")
        else:
            key = door.keys.raw(raw)
        status, headers, body = self._rows.row(door, key, dict(request.scope["headers"]))
        named = {name.decode(): value.decode() for name, value in headers}
        return Response(body, status, named)

    def _door(self, request: Request) -> Door:
        grant = self._front.grant(request)
        name = endpoint_name(_raw_path(request)[1:].partition(b"/")[0])
        door = self._front.doors.open(grant, name)
        request.scope["headrace.endpoint"] = door.endpoint.name
        return door

    def _described(
        self, doors: Iterable[Door], tables: Iterable[str] = (), streams: Mapping[str, HttpSource] | None = None
    ) -> dict[str, Any]:
        settings = self._front.settings
        shown = [door.endpoint for door in doors]
        written = {name: settings.tables[name].declared for name in tables}
        wanted, limits = self._front.callers.wanted, settings.spec.limits
        return openapi.document(shown, settings.project, limits, tables=written, streams=streams, auth=wanted)

    def _json(self, request: Request, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
        return self._front.answer(request, msgspec.json.encode(value), headers, status)

    def _page(self, request: Request, page: ResultPage, headers: dict[str, str]) -> Response:
        if page.next is not None:
            headers["x-next-cursor"] = page.next
        return self._front.answer(request, b"[" + b",".join(row.json for row in page.rows) + b"]", headers)


async def _found(ask: Callable[[Any, int | None], T], document: Any) -> T:
    """What a query finds. Few rows are looked at here and now, which costs half of asking a thread; what takes longer
    must not hold up other callers."""
    try:
        return ask(document, _FEW_ROWS)
    except RequestError as error:
        if error.code != "scan-too-large":
            raise
    return await run_in_threadpool(ask, document, None)


def _version(door: Door) -> dict[str, str]:
    return {"x-headrace-version": f"v{door.version}"}


def _raw_path(request: Request) -> bytes:
    raw: bytes | None = request.scope.get("raw_path")
    return quote(request.scope["path"]).encode() if raw is None else raw.partition(b"?")[0]


def _parameters(request: Request) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            request.scope["query_string"].decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=100,
        )
    except ValueError:  # no ASCII, no UTF-8 when decoded, or too many
        raise RequestError(
            "bad-parameter", "the parameters of the address cannot be read", hint="percent-encode UTF-8"
        ) from None


def _next_address(request: Request, cursor: str) -> str:
    kept = [(name, value) for name, value in _parameters(request) if name not in ("$after", "after", "$skip", "skip")]
    return f"{_raw_path(request).decode('ascii', 'replace')}?{urlencode([*kept, ('$after', cursor)])}"
