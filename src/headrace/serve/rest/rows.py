"""One row by its key: `GET /films/42`. The path that must be fast, so it works on the bare request."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from time import perf_counter
from typing import Any

from starlette.types import Scope

from headrace.core.errors import RequestError
from headrace.serve.access.access import Door
from headrace.serve.access.url_values import endpoint_name
from headrace.serve.http.problems import Headers, bug, problem
from headrace.serve.http.replies import WORTH_IT, coding, compressed, takes
from headrace.serve.http.request_context import JSON, Client, Front, not_acceptable

_LOG = logging.getLogger(__name__)
_OTHER_ROUTES = (b"", b"events", b"oapi")
_PAGES = b"dashboards"
_JSON_TYPE = (b"content-type", JSON.encode())
_REVALIDATED = (b"cache-control", b"no-cache")
Reply = tuple[int, Headers, bytes]
"""Status, headers and body."""


class RowRoutes:
    """Answers questions for single rows."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._vary = (b"vary", front.vary.encode())

    def asked(self, scope: Scope) -> Reply | None:
        """The answer, if the request is for one row; None: it is for the router."""
        if scope["method"] != "GET" or scope["query_string"]:
            return None
        return self.told(scope.get("raw_path") or b"", scope["headers"], scope.get("client"))

    def told(self, path: bytes, sent: Iterable[tuple[bytes, bytes]], client: Client) -> Reply | None:
        """The same, for a GET of a path without parameters. It is counted here."""
        name, _, key = path[1:].partition(b"/")
        if key in _OTHER_ROUTES or name == _PAGES:
            return None
        headers = dict(sent)
        if b"origin" in headers:
            return None
        began, label = perf_counter(), ""
        try:
            door = self._front.doors.open(self._front.grant_by(headers, client), endpoint_name(name))
            label = door.endpoint.name
            reply = self.row(door, door.keys.raw(key), headers)
        except RequestError as error:
            reply = problem(error)
        except Exception:
            _LOG.exception("a row of '%s' could not be given", label)
            reply = problem(bug())
        self._front.meters.count("rest", "get", label, reply[0], perf_counter() - began)
        return reply

    def row(self, door: Door, key: list[Any], headers: dict[bytes, bytes]) -> Reply:
        """Status, headers and body for the row of a key."""
        accepted = headers.get(b"accept", b"*/*")
        if accepted != b"*/*" and not takes(accepted, JSON):
            raise not_acceptable(JSON)
        found = door.get(key)
        if found is None:
            raise RequestError(
                "no-row",
                f"there is no row of '{door.endpoint.name}' with this key",
                status=404,
                hint=f"the key is: {', '.join(door.endpoint.key)}",
            )
        tag = door.etag(found.version)
        known = headers.get(b"if-none-match")
        if known is not None and _matches(known, tag):
            return 304, [(b"etag", tag), self._vary, door.header], b""
        body, coded = found.json, None
        if len(body) >= WORTH_IT:
            body, coded = compressed(body, coding(headers.get(b"accept-encoding", b"")))
        more = [
            _JSON_TYPE,
            (b"content-length", b"%d" % len(body)),
            (b"etag", tag if coded is None else b"W/" + tag),
            _REVALIDATED,
            self._vary,
            door.header,
        ]
        if coded is not None:
            more.append((b"content-encoding", coded.encode()))
        return 200, more, body


def _matches(known: bytes, tag: bytes) -> bool:
    """Whether a caller has this state of the row already; compression makes no other state."""
    return known.strip() == b"*" or tag in [one.strip().removeprefix(b"W/") for one in known.split(b",")]
