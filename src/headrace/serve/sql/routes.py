"""The routes of `POST /sql` and of the browser client."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from headrace.core.errors import RequestError, did_you_mean
from headrace.serve.http.request_context import RequestContext
from headrace.serve.sql.messages import encode_request
from headrace.serve.sql.pool import QueryProcesses

_KEYS = ("sql", "parameters")


def routes(context: RequestContext, processes: QueryProcesses) -> list[BaseRoute]:
    """The routes; the caller closes the query processes."""
    script = files("headrace.serve").joinpath("static/headrace.js").read_bytes()

    async def sql(request: Request) -> Response:
        """The result of an SQL query."""
        grant = context.grant(request)
        grant.check("sql")
        text, parameters = parse_body(await context.document(request))
        return context.answer(request, await processes.run(encode_request(text, parameters, grant)))

    async def client(_request: Request) -> Response:
        """The browser client, for every caller: it contains no data."""
        return Response(script, media_type="text/javascript", headers={"cache-control": "max-age=300"})

    return [Route("/sql", sql, methods=["POST"]), Route("/headrace.js", client)]


def parse_body(document: Any) -> tuple[str, Any]:
    """The text and the parameters of a request's body."""
    if not isinstance(document, dict) or not isinstance(document.get("sql"), str):
        raise RequestError(
            "bad-sql", "the body has no SQL text", hint='send {"sql": "SELECT ...", "parameters": [...]}'
        )
    for key in document:
        if key not in _KEYS:
            raise RequestError("bad-sql", f"unknown key '{key[:100]}'", hint=did_you_mean(key[:100], _KEYS))
    parameters = document.get("parameters")
    if not isinstance(parameters, list | dict | None):
        raise RequestError(
            "bad-sql", "'parameters' must be a list or an object", hint="for ? a list, for $name an object"
        )
    return document["sql"], parameters
