"""The routes of `POST /sql` and of the browser client."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from headrace.core.errors import RequestError, did_you_mean
from headrace.serve.http.request_context import Front
from headrace.serve.sql.messages import question
from headrace.serve.sql.pool import Answerers

_KEYS = ("sql", "parameters")


def routes(front: Front, answerers: Answerers) -> list[BaseRoute]:
    """The routes; whoever made the answerers closes them."""
    script = files("headrace.serve").joinpath("static/headrace.js").read_bytes()

    async def sql(request: Request) -> Response:
        """The answer to a question in SQL."""
        grant = front.grant(request)
        grant.check("sql")
        text, parameters = asked(await front.document(request))
        return front.answer(request, await answerers.ask(question(text, parameters, grant)))

    async def client(_request: Request) -> Response:
        """The browser client: no data, so for everyone."""
        return Response(script, media_type="text/javascript", headers={"cache-control": "max-age=300"})

    return [Route("/sql", sql, methods=["POST"]), Route("/headrace.js", client)]


def asked(document: Any) -> tuple[str, Any]:
    """Text and parameters of a request's body."""
    if not isinstance(document, dict) or not isinstance(document.get("sql"), str):
        raise RequestError(
            "bad-sql", "the body has no question", hint='send {"sql": "SELECT ...", "parameters": [...]}'
        )
    for key in document:
        if key not in _KEYS:
            raise RequestError("bad-sql", f"unknown key '{key[:100]}'", hint=did_you_mean(key[:100], _KEYS))
    parameters = document.get("parameters")
    if not isinstance(parameters, list | dict | None):
        raise RequestError(
            "bad-sql", "'parameters' is neither a list nor an object", hint="for ? a list, for $name an object"
        )
    return document["sql"], parameters
