"""One row by its key: `GET /films/42`. The path that must be fast, so it works on the bare request."""

from __future__ import annotations

import logging
from typing import Any

from headrace.core.errors import RequestError
from headrace.serve.access import Door
from headrace.serve.auth import token_of
from headrace.serve.front import JSON, Front, not_acceptable
from headrace.serve.grants import Grant
from headrace.serve.problems import Headers, bug, problem
from headrace.serve.replies import WORTH_IT, coding, compressed, takes
from headrace.serve.texts import endpoint_name

_LOG = logging.getLogger(__name__)
_OTHER_ROUTES = (b"", b"events", b"oapi")
_JSON_TYPE = (b"content-type", JSON.encode())
_REVALIDATED = (b"cache-control", b"no-cache")
_HOSTS = 256
_Reply = tuple[str, int, Headers, bytes]


class Rows:
    """Answers questions for single rows."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._vary = (b"vary", front.vary.encode())
        self._hosts: set[bytes | None] = set()

    def asked(self, scope: Any) -> _Reply | None:
        """The endpoint's name, status, headers and body, if the request is for one row; None: it is for the router."""
        if scope["method"] != "GET" or scope["query_string"]:
            return None
        path: bytes = scope.get("raw_path") or b""
        name, _, key = path[1:].partition(b"/")
        if key in _OTHER_ROUTES:
            return None
        headers = dict(scope["headers"])
        return None if b"origin" in headers else self._told(scope, name, key, headers)

    def _told(self, scope: Any, name: bytes, key: bytes, headers: dict[bytes, bytes]) -> _Reply:
        label = ""
        try:
            grant = self.grant(scope, headers)
            door = self._front.doors.open(grant, endpoint_name(name))
            label = door.endpoint.name
            return label, *self.row(door, door.keys.raw(key), headers)
        except RequestError as error:
            status, more, body = problem(error)
        except Exception:
            _LOG.exception("a row of '%s' could not be given", label)
            status, more, body = problem(bug())
        return label, status, [*more, (b"content-length", b"%d" % len(body))], body

    def grant(self, scope: Any, headers: dict[bytes, bytes]) -> Grant:
        """What whoever sent this may do."""
        callers, host = self._front.callers, headers.get(b"host")
        if not callers.wanted and host not in self._hosts:
            self._front.check_host(_text(host))
            if len(self._hosts) < _HOSTS:
                self._hosts.add(host)
        if callers.anyone is not None:
            return callers.anyone
        client = scope.get("client")
        shown = callers.wanted and token_of(_text(headers.get(b"authorization")), _text(headers.get(b"x-api-key")))
        return callers.grant(shown or None, client[0] if client else "")

    def row(self, door: Door, key: list[Any], headers: dict[bytes, bytes]) -> tuple[int, Headers, bytes]:
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


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def _matches(known: bytes, tag: bytes) -> bool:
    """Whether a caller has this state of the row already; compression makes no other state."""
    return known.strip() == b"*" or tag in [one.strip().removeprefix(b"W/") for one in known.split(b",")]
