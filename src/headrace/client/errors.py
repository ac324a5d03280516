"""What can go wrong with a request, as a caller tells it apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class ClientError(Exception):
    """The request was not answered as hoped."""


class UnreachableError(ClientError):
    """Nobody answered, or not in time."""


class ApiError(ClientError):
    """The server refused. `code` says why in a word that stays, `hint` what to do about it."""

    def __init__(self, status: int, code: str, detail: str, hint: str | None = None) -> None:
        super().__init__(f"{code} ({status}): {detail}" + (f" ({hint})" if hint else ""))
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = hint


class NotAllowedError(ApiError):
    """No token, one that is not valid (401), or one that does not allow this (403)."""


class NotFoundError(ApiError):
    """There is no such endpoint, row or version."""


class LimitedError(ApiError):
    """Too many requests, still after waiting."""


class UnavailableError(ApiError):
    """The server is not ready, still after waiting."""


_KINDS: dict[int, type[ApiError]] = {
    401: NotAllowedError,
    403: NotAllowedError,
    404: NotFoundError,
    429: LimitedError,
    503: UnavailableError,
}


def refused(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The error that an answer stands for; also of a proxy in between, which has no problem document."""
    problem = _problem(headers, body)
    kind = _KINDS.get(status, ApiError)
    detail = problem.get("detail") or problem.get("title") or "the server gave no reason"
    return kind(status, str(problem.get("code", f"http-{status}")), str(detail), problem.get("hint"))


def _problem(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    if "json" not in headers.get("content-type", ""):
        return {"detail": body[:200].decode(errors="replace").strip()}
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
