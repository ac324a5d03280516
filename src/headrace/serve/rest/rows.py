"""One row by its key: `GET /films/42`. This is the hot path, so it works on the bare request."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from time import perf_counter
from typing import Any

from starlette.types import Scope

from headrace.core.errors import RequestError
from headrace.serve.access.access import EndpointAccess
from headrace.serve.access.url_values import endpoint_name
from headrace.serve.http.problems import Headers, bug, problem
from headrace.serve.http.replies import WORTH_IT, accepts, coding, compressed
from headrace.serve.http.request_context import JSON, Client, RequestContext, not_acceptable

_LOG = logging.getLogger(__name__)
_OTHER_ROUTES = (b"", b"events", b"oapi")
_PAGES = b"dashboards"
_JSON_TYPE = (b"content-type", JSON.encode())
_REVALIDATED = (b"cache-control", b"no-cache")
Reply = tuple[int, Headers, bytes]
"""Status, headers and body."""


class RowRoutes:
    """Answers requests for single rows."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._vary = (b"vary", context.vary.encode())

    def reply(self, scope: Scope) -> Reply | None:
        """The response, if the request is for one row; None: the router answers it."""
        if scope["method"] != "GET" or scope["query_string"]:
            return None
        return self.reply_to_path(scope.get("raw_path") or b"", scope["headers"], scope.get("client"))

    def reply_to_path(self, path: bytes, sent: Iterable[tuple[bytes, bytes]], client: Client) -> Reply | None:
        """The same, for a GET of a path without parameters. The request is counted here."""
        name, _, key = path[1:].partition(b"/")
        if key in _OTHER_ROUTES or name == _PAGES:
            return None
        headers = dict(sent)
        if b"origin" in headers:
            return None
        began, label = perf_counter(), ""
        try:
            access = self._context.access.open(self._context.grant_by(headers, client), endpoint_name(name))
            label = access.endpoint.name
            reply = self.row(access, access.keys.raw(key), headers)
        except RequestError as error:
            reply = problem(error)
        except Exception:
            _LOG.exception("a row of '%s' could not be returned", label)
            reply = problem(bug())
        self._context.meters.count("rest", "get", label, reply[0], perf_counter() - began)
        return reply

    def row(self, access: EndpointAccess, key: list[Any], headers: dict[bytes, bytes]) -> Reply:
        accepted = headers.get(b"accept", b"*/*")
        if accepted != b"*/*" and not accepts(accepted, JSON):
            raise not_acceptable(JSON)
        row = access.get(key)
        if row is None:
            raise RequestError(
                "no-row",
                f"'{access.endpoint.name}' has no row with this key",
                status=404,
                hint=f"the key is: {', '.join(access.endpoint.key)}",
            )
        tag = access.etag(row.version)
        known = headers.get(b"if-none-match")
        if known is not None and _matches(known, tag):
            return 304, [(b"etag", tag), self._vary, access.header], b""
        body, coded = row.json, None
        if len(body) >= WORTH_IT:
            body, coded = compressed(body, coding(headers.get(b"accept-encoding", b"")))
        more = [
            _JSON_TYPE,
            (b"content-length", b"%d" % len(body)),
            (b"etag", tag if coded is None else b"W/" + tag),
            _REVALIDATED,
            self._vary,
            access.header,
        ]
        if coded is not None:
            more.append((b"content-encoding", coded.encode()))
        return 200, more, body


def _matches(known: bytes, tag: bytes) -> bool:
    """Whether the caller already has this state of the row; compression does not change the state."""
    return known.strip() == b"*" or tag in [entry.strip().removeprefix(b"W/") for entry in known.split(b",")]
