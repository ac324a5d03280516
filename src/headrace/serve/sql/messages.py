"""The messages between an API process and a query process: a kind, a length, then the bytes."""

from __future__ import annotations

import os
import select
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headrace.core.errors import RequestError
from headrace.project.serving import Access, Limits, ServeSpec
from headrace.serve.access.grants import Grant
from headrace.serve.base.settings import Settings

_HEAD = struct.Struct(">BI")
READY, QUERY, ANSWER, REFUSAL = range(4)


class Closed(Exception):  # noqa: N818
    """The other process has ended."""


class Late(Exception):  # noqa: N818
    """No message came in time."""


def send(file: int, kind: int, body: bytes) -> None:
    left = memoryview(_HEAD.pack(kind, len(body)) + body)
    try:
        while left:
            left = left[os.write(file, left) :]
    except BrokenPipeError:
        raise Closed from None


def receive(file: int, until: float | None = None) -> tuple[int, bytes]:
    """The next message; `until` is the deadline."""
    kind, size = _HEAD.unpack(_exactly(file, _HEAD.size, until))
    return kind, _exactly(file, size, until)


def _exactly(file: int, size: int, until: float | None) -> bytes:
    parts = []
    while size:
        if until is not None and not select.select([file], [], [], max(0.0, until - time.monotonic()))[0]:
            raise Late
        part = os.read(file, min(size, 1 << 20))
        if not part:
            raise Closed
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def hello(settings: Settings) -> bytes:
    """The settings that a query process needs: no keys, no secrets."""
    return msgspec.json.encode(
        {
            "project": settings.project,
            "root": str(settings.root),
            "store": str(settings.store),
            "limits": settings.spec.limits.model_dump(mode="json"),
            "lakes": dict(settings.lakes),
            "endpoints": settings.endpoints,
        }
    )


def settings_of(message: bytes) -> Settings:
    document = msgspec.json.decode(message)
    root = Path(document["root"])
    return Settings(
        project=document["project"],
        root=root,
        spec=ServeSpec(limits=Limits.model_validate(document["limits"])),
        log=root,
        store=Path(document["store"]),
        snapshots=root,
        lakes=document["lakes"],
        endpoints=tuple(document["endpoints"]),
    )


def encode_request(text: str, parameters: Any, grant: Grant) -> bytes:
    """The message with a query and what its caller may see."""
    endpoints = grant.endpoints
    return msgspec.json.encode(
        {
            "sql": text,
            "parameters": parameters,
            "scopes": sorted(grant.scopes),
            "endpoints": None if endpoints is None else {name: seen.model_dump() for name, seen in endpoints.items()},
        }
    )


@dataclass(frozen=True)
class SqlRequest:
    """A query, and the grant of its caller."""

    sql: str
    parameters: Any
    grant: Grant


def decode_request(message: bytes) -> SqlRequest:
    """The inverse of `encode_request`."""
    document = msgspec.json.decode(message)
    endpoints = document["endpoints"]
    seen = None if endpoints is None else {name: Access.model_validate(access) for name, access in endpoints.items()}
    return SqlRequest(document["sql"], document["parameters"], Grant("sql", frozenset(document["scopes"]), seen))


def refusal(error: RequestError) -> bytes:
    return msgspec.json.encode([error.code, error.message, error.status, error.hint])


def refused(message: bytes) -> RequestError:
    """The inverse of `refusal`."""
    code, text, status, hint = msgspec.json.decode(message)
    return RequestError(code, text, status=status, hint=hint)
