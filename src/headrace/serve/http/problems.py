"""Error responses: one JSON shape for all errors (problem documents)."""

from __future__ import annotations

import math
from http import HTTPStatus

import msgspec

from headrace.core.errors import RequestError

PROBLEM = b"application/problem+json"
Headers = list[tuple[bytes, bytes]]


def problem(error: RequestError) -> tuple[int, Headers, bytes]:
    """Status, headers and body of an error response."""
    body = msgspec.json.encode(
        {
            "type": "about:blank",
            "title": _title(error.status),
            "status": error.status,
            "code": error.code,
            "detail": error.message,
            "hint": error.hint,
        }
    )
    headers: Headers = [
        (b"content-type", PROBLEM),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
    ]
    if error.status == 401:
        how = b"Bearer" if error.code == "no-token" else b'Bearer error="invalid_token"'
        headers.append((b"www-authenticate", how))
    if error.retry_after is not None or error.status == 503:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after or 0))))
    return error.status, headers, body


def bug() -> RequestError:
    """The error for a defect of the server, without internal details."""
    return RequestError(
        "internal-error",
        "this request failed because of a bug in the server",
        status=500,
        hint="the log of the node has the details",
    )


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
