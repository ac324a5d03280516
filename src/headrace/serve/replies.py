"""What passes between HTTP and the rest: which form of an answer a caller takes, and bodies within limits."""

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
"""Bytes below which a compressed answer saves nothing."""
_BODY_SECONDS = 30


@lru_cache(maxsize=1024)
def coding(accepted: bytes) -> str | None:
    """The compression to use for a caller that sent this Accept-Encoding."""
    weights = dict(_weighted(accepted.decode("latin-1")))
    offered = [(weights.get(name, weights.get("*", 0.0)), name) for name in ("gzip", "zstd")]
    weight, name = max(offered)
    return name if weight > 0 else None


@lru_cache(maxsize=1024)
def takes(accepted: bytes, kind: str) -> bool:
    """Whether a caller that sent this Accept takes answers of that media type."""
    family = kind.partition("/")[0]
    ranges = dict(_weighted(accepted.decode("latin-1")))
    if not ranges:
        return True
    fitting = [ranges[one] for one in (kind, f"{family}/*", "*/*") if one in ranges]
    return bool(fitting) and fitting[0] > 0


def compressed(body: bytes, name: str | None) -> tuple[bytes, str | None]:
    """The body in that compression, if it is worth it."""
    if name is None or len(body) < WORTH_IT:
        return body, None
    if name == "zstd":
        return pa.compress(body, codec="zstd", asbytes=True), name
    return gzip.compress(body, compresslevel=5, mtime=0), name


async def json_body(request: Request, most: int, decode: Callable[[bytes], Any] = msgspec.json.decode) -> Any:
    """The JSON that a request brings; nothing at all is an empty object."""
    _check_head(request, most)
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            body = await _read(request, most)
    except TimeoutError:
        raise RequestError("body-timeout", f"the body did not arrive within {_BODY_SECONDS} s", status=408) from None
    if not body.strip():
        return {}
    try:
        return decode(body)
    except RecursionError:
        raise RequestError("bad-json", "the body is nested too deeply", hint="a few levels are enough") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise RequestError("bad-json", f"the body is not JSON: {error}", hint="check quotes and commas") from None


async def _read(request: Request, most: int) -> bytes:
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > most:
            raise _too_large(most)
    return bytes(found)


def _check_head(request: Request, most: int) -> None:
    headers = {name: value.decode("latin-1") for name, value in request.scope["headers"]}
    kind = headers.get(b"content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise RequestError(
            "not-json",
            f"the body is said to be {kind or 'nothing'}, not JSON",
            status=415,
            hint="send 'Content-Type: application/json'; with curl: --json '{…}'",
        )
    if headers.get(b"content-encoding", "identity").strip().lower() != "identity":
        raise RequestError(
            "compressed-body", "bodies are not taken compressed", status=415, hint="leave out Content-Encoding"
        )
    length = headers.get(b"content-length", "")
    if length.isdecimal() and int(length) > most:
        raise _too_large(most)


def _too_large(most: int) -> RequestError:
    return RequestError(
        "body-too-large",
        f"the body has more than {most:,} bytes",
        status=413,
        hint="'serve.limits.body' sets the limit",
    )


def _weighted(header: str) -> Iterator[tuple[str, float]]:
    """The choices of a header with their weights."""
    for part in header.split(","):
        name, *parameters = [piece.strip().lower() for piece in part.split(";")]
        if name:
            yield name, _weight(parameters)


def _weight(parameters: list[str]) -> float:
    for one in parameters:
        name, _, value = one.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
