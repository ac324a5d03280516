"""The errors of a request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class ClientError(Exception):
    """The request failed."""


class UnreachableError(ClientError):
    """The server did not answer, or not in time."""


class ApiError(ClientError):
    """The server rejected the request. `code` is stable, for programs; `hint` says how to fix it."""

    def __init__(self, status: int, code: str, detail: str, hint: str | None = None) -> None:
        super().__init__(f"{code} ({status}): {detail}" + (f" ({hint})" if hint else ""))
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = hint


class NotAllowedError(ApiError):
    """No token, an invalid token (401), or one that does not allow the request (403)."""


class NotFoundError(ApiError):
    """The endpoint, row or version does not exist."""


class LimitedError(ApiError):
    """Too many requests, even after retries."""


class UnavailableError(ApiError):
    """The server is not ready, even after retries."""


_KINDS: dict[int, type[ApiError]] = {
    401: NotAllowedError,
    403: NotAllowedError,
    404: NotFoundError,
    429: LimitedError,
    503: UnavailableError,
}


def error_of_response(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The error of a response, with or without a problem document: proxies send none."""
    return error_of_problem(status, _problem(headers, body))


def error_of_problem(status: int, problem: Mapping[str, Any]) -> ApiError:
    kind = _KINDS.get(status, ApiError)
    detail = problem.get("detail") or problem.get("title") or "the server gave no reason"
    return kind(status, str(problem.get("code", f"http-{status}")), str(detail), problem.get("hint"))


def _problem(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    if "json" not in headers.get("content-type", ""):
        return {"detail": body[:200].decode(errors="replace").strip()}
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
