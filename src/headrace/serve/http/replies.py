"""Content negotiation and compression of responses, and request bodies within limits."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa
from starlette.requests import Request

from headrace.core.errors import RequestError

WORTH_IT = 1_000
"""Bytes below which compression saves nothing."""
_BODY_SECONDS = 30


@lru_cache(maxsize=1024)
def coding(accepted: bytes) -> str | None:
    """The compression for a caller with this Accept-Encoding."""
    weights = dict(_weighted(accepted.decode("latin-1")))
    offered = [(weights.get(name, weights.get("*", 0.0)), name) for name in ("gzip", "zstd")]
    weight, name = max(offered)
    return name if weight > 0 else None


@lru_cache(maxsize=1024)
def accepts(accepted: bytes, kind: str) -> bool:
    """Whether a caller with this Accept accepts the media type."""
    family = kind.partition("/")[0]
    ranges = dict(_weighted(accepted.decode("latin-1")))
    if not ranges:
        return True
    matching = [ranges[name] for name in (kind, f"{family}/*", "*/*") if name in ranges]
    return bool(matching) and matching[0] > 0


def compressed(body: bytes, name: str | None) -> tuple[bytes, str | None]:
    """The body in that compression, if it saves enough."""
    if name is None or len(body) < WORTH_IT:
        return body, None
    if name == "zstd":
        return pa.compress(body, codec="zstd", asbytes=True), name
    return gzip.compress(body, compresslevel=5, mtime=0), name


async def json_body(request: Request, most: int, decode: Callable[[bytes], Any] = msgspec.json.decode) -> Any:
    """The JSON body of a request; an empty body is an empty object."""
    check_json(request)
    if coding_of(request) != "identity":
        raise RequestError(
            "compressed-body", "compressed bodies are not accepted", status=415, hint="remove Content-Encoding"
        )
    body = await body_of(request, most, "'serve.limits.body' sets the limit")
    if not body.strip():
        return {}
    try:
        return decode(body)
    except RecursionError:
        raise RequestError("bad-json", "the body is nested too deeply", hint="reduce the nesting") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise RequestError("bad-json", f"the body is not JSON: {error}", hint="check quotes and commas") from None


def check_json(request: Request) -> None:
    """RequestError if the body declares another type."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise RequestError(
            "not-json",
            f"the Content-Type of the body is {kind or 'empty'}, not JSON",
            status=415,
            hint="send 'Content-Type: application/json'; with curl: --json '{…}'",
        )


def require_type(request: Request) -> None:
    """RequestError if a body has no type: a page of another origin can send such a request without a preflight."""
    if "content-type" not in request.headers:
        raise RequestError(
            "not-json", "the body has no Content-Type", status=415, hint="Content-Type: application/json"
        )


def coding_of(request: Request) -> str:
    """The declared compression of a body."""
    return request.headers.get("content-encoding", "identity").strip().lower()


async def body_of(request: Request, most: int, hint: str) -> bytes:
    """The body of a request, within the limits of size and time."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise _too_large(most, hint)
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise _too_large(most, hint)
    except TimeoutError:
        raise RequestError("body-timeout", f"the body did not arrive within {_BODY_SECONDS} s", status=408) from None
    return bytes(body)


def _too_large(most: int, hint: str) -> RequestError:
    return RequestError("body-too-large", f"the body has more than {most:,} bytes", status=413, hint=hint)


def _weighted(header: str) -> Iterator[tuple[str, float]]:
    for part in header.split(","):
        name, *parameters = [piece.strip().lower() for piece in part.split(";")]
        if name:
            yield name, _weight(parameters)


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
