"""The REST routes of an API process, except the hot path for single rows."""

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
from headrace.serve.access.access import EndpointAccess
from headrace.serve.access.url_query import query_of
from headrace.serve.access.url_values import endpoint_name
from headrace.serve.http import pages
from headrace.serve.http.request_context import RequestContext
from headrace.serve.ingest import pushing
from headrace.serve.ingest.ingest import may_post
from headrace.serve.rest import dashboards, live, openapi
from headrace.serve.rest.rows import RowRoutes
from headrace.serve.sql import routes as sql
from headrace.serve.sql.pool import QueryProcesses
from headrace.sources.http import HttpSource
from headrace.store.query.query import ResultPage

_METRICS = "text/plain; version=1.0.0; charset=utf-8"
_READY = "ready"
_FEW_ROWS = 200
T = TypeVar("T")


def routes(context: RequestContext, processes: QueryProcesses) -> list[BaseRoute]:
    """All routes: tables and the most frequent ones first, then those with fixed names."""
    tables = pushing.TableIngest(context.settings)
    rest = Rest(context, tables)
    return [
        *pushing.routes(context, tables),
        Route("/{path}/query", rest.query, methods=["POST"]),
        Route("/", rest.endpoints),
        Route("/health", rest.health),
        Route("/metrics", rest.metrics),
        Route("/openapi.json", rest.openapi),
        Route("/docs", rest.docs),
        *dashboards.routes(context),
        *sql.routes(context, processes),
        Route("/{path}", rest.list),
        Route("/{path}/count", rest.count, methods=["POST"]),
        Route("/{path}/oapi", rest.describe),
        *live.routes(context),
        Route("/{path}/{key:path}", rest.row),
    ]


class Rest:
    """Handles the routes."""

    def __init__(self, context: RequestContext, tables: pushing.TableIngest) -> None:
        self._context = context
        self._tables = tables
        self._rows = RowRoutes(context)

    async def endpoints(self, request: Request) -> Response:
        """The paths of all endpoints that the caller may see."""
        grant = self._context.grant(request)
        return self._json(request, [f"/{name}" for name in self._context.access.names(grant)])

    async def health(self, request: Request) -> Response:
        """Whether all endpoints can answer; with a token also the progress of each."""
        context = self._context
        has_token = any(name in request.headers for name in ("authorization", "x-api-key"))
        grant = context.grant(request) if has_token or not context.callers.auth_required else None
        endpoints = await run_in_threadpool(context.stores.status)
        states = [endpoint["state"] for endpoint in endpoints.values()]
        state = next((state for state in states if state != _READY), _READY)
        document: dict[str, Any] = {"status": state}
        if grant is not None:
            document["endpoints"] = {name: status for name, status in endpoints.items() if grant.may(name) is not None}
        return self._json(request, document, status=200 if state == _READY else 503)

    async def metrics(self, request: Request) -> Response:
        """The metrics of all processes of this node, for Prometheus."""
        self._context.grant(request).check("admin")
        endpoints = await run_in_threadpool(self._context.stores.status)
        return Response(await run_in_threadpool(self._context.meters.text, endpoints), media_type=_METRICS)

    async def openapi(self, request: Request) -> Response:
        """The OpenAPI document of everything that the caller may see."""
        grant = self._context.grant(request)
        tables, streams = self._tables.names(grant), may_post(self._context.settings, grant)
        if not tables and not streams:
            grant.check("read")
        opened = []
        for name in self._context.access.names(grant) if grant.allows("read") else ():
            try:
                opened.append(self._context.access.open(grant, name))
            except RequestError as error:
                if error.status != 503:  # an endpoint that cannot answer yet has no schema
                    raise
        return self._json(request, self._described(opened, tables, streams))

    async def describe(self, request: Request) -> Response:
        """The OpenAPI document of one endpoint."""
        access = self._access(request)
        return self._json(request, self._described([access]), headers=_version(access))

    async def docs(self, request: Request) -> Response:
        """The HTML documentation. It contains no data: it requests the OpenAPI document with the reader's token."""
        return pages.DOCS.answer(self._context, request)

    async def list(self, request: Request) -> Response:
        """Rows by URL parameters."""
        access = self._access(request)
        document = query_of(_parameters(request), access.endpoint)
        page = await _run(access.query, document)
        headers = _version(access)
        if page.next is not None:
            headers["link"] = f'<{_next_address(request, page.next)}>; rel="next"'
        return self._page(request, page, headers)

    async def query(self, request: Request) -> Response:
        """Rows that match a filter."""
        access = self._access(request)
        page = await _run(access.query, await self._context.document(request))
        return self._page(request, page, _version(access))

    async def count(self, request: Request) -> Response:
        """The number of rows that match a filter."""
        access = self._access(request)
        number = await _run(access.count, await self._context.document(request))
        return self._json(request, number, headers=_version(access))

    async def row(self, request: Request) -> Response:
        """One row by its key, for requests that the hot path does not handle."""
        access = self._access(request)
        raw = _raw_path(request)[1:].partition(b"/")[2]
        parameters = _parameters(request)
        if raw == b"":
            if not parameters or {name for name, _ in parameters} != set(access.endpoint.key):
                return await self.list(request)
            texts = dict(parameters)
            key = access.keys.texts([texts[name] for name in access.endpoint.key])
        elif parameters:
            names = ", ".join(sorted({name for name, _ in parameters}))
            raise RequestError("bad-parameter", f"a request for one row has no parameters: {names}", hint="remove them")
        else:
            key = access.keys.raw(raw)
        status, headers, body = self._rows.row(access, key, dict(request.scope["headers"]))
        named = {name.decode(): value.decode() for name, value in headers}
        return Response(body, status, named)

    def _access(self, request: Request) -> EndpointAccess:
        grant = self._context.grant(request)
        name = endpoint_name(_raw_path(request)[1:].partition(b"/")[0])
        access = self._context.access.open(grant, name)
        request.scope["headrace.endpoint"] = access.endpoint.name
        return access

    def _described(
        self,
        opened: Iterable[EndpointAccess],
        tables: Iterable[str] = (),
        streams: Mapping[str, HttpSource] | None = None,
    ) -> dict[str, Any]:
        settings = self._context.settings
        endpoints = [access.endpoint for access in opened]
        writable = {name: settings.tables[name].declared for name in tables}
        auth, limits = self._context.callers.auth_required, settings.spec.limits
        return openapi.document(endpoints, settings.project, limits, tables=writable, streams=streams, auth=auth)

    def _json(self, request: Request, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
        return self._context.answer(request, msgspec.json.encode(value), headers, status)

    def _page(self, request: Request, page: ResultPage, headers: dict[str, str]) -> Response:
        if page.next is not None:
            headers["x-next-cursor"] = page.next
        return self._context.answer(request, b"[" + b",".join(row.json for row in page.rows) + b"]", headers)


async def _run(read: Callable[[Any, int | None], T], document: Any) -> T:
    """Run a query. Few rows are read on the event loop, at half the cost of a thread; a query that reads more would
    block other callers and runs in a thread."""
    try:
        return read(document, _FEW_ROWS)
    except RequestError as error:
        if error.code != "scan-too-large":
            raise
    return await run_in_threadpool(read, document, None)


def _version(access: EndpointAccess) -> dict[str, str]:
    return {"x-headrace-version": f"v{access.version}"}


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
    except ValueError:  # not ASCII, not UTF-8 when decoded, or too many
        raise RequestError(
            "bad-parameter", "the parameters of the URL cannot be read", hint="percent-encode UTF-8"
        ) from None


def _next_address(request: Request, cursor: str) -> str:
    others = [(name, value) for name, value in _parameters(request) if name not in ("$after", "after", "$skip", "skip")]
    return f"{_raw_path(request).decode('ascii', 'replace')}?{urlencode([*others, ('$after', cursor)])}"
