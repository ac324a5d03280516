"""What an API process and one that answers questions say to each other: a kind, a length, then as many bytes."""

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
READY, QUESTION, ANSWER, REFUSAL = range(4)


class Closed(Exception):  # noqa: N818
    """The other side is gone."""


class Late(Exception):  # noqa: N818
    """Nothing came in time."""


def send(file: int, kind: int, body: bytes) -> None:
    """One message."""
    left = memoryview(_HEAD.pack(kind, len(body)) + body)
    try:
        while left:
            left = left[os.write(file, left) :]
    except BrokenPipeError:
        raise Closed from None


def receive(file: int, until: float | None = None) -> tuple[int, bytes]:
    """The next message, which has to be there by then."""
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
    """What such a process has to know: no keys, no secrets."""
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
    """The settings of a process that was told this."""
    said = msgspec.json.decode(message)
    root = Path(said["root"])
    return Settings(
        project=said["project"],
        root=root,
        spec=ServeSpec(limits=Limits.model_validate(said["limits"])),
        log=root,
        store=Path(said["store"]),
        snapshots=root,
        lakes=said["lakes"],
        endpoints=tuple(said["endpoints"]),
    )


def question(text: str, parameters: Any, grant: Grant) -> bytes:
    """The message that asks, with what the caller may see."""
    endpoints = grant.endpoints
    return msgspec.json.encode(
        {
            "sql": text,
            "parameters": parameters,
            "scopes": sorted(grant.scopes),
            "endpoints": None if endpoints is None else {name: one.model_dump() for name, one in endpoints.items()},
        }
    )


@dataclass(frozen=True)
class Asked:
    """A question, and who asks."""

    sql: str
    parameters: Any
    grant: Grant


def asked_of(message: bytes) -> Asked:
    """The inverse of `question`."""
    said = msgspec.json.decode(message)
    endpoints = said["endpoints"]
    seen = None if endpoints is None else {name: Access.model_validate(one) for name, one in endpoints.items()}
    return Asked(said["sql"], said["parameters"], Grant("sql", frozenset(said["scopes"]), seen))


def refusal(error: RequestError) -> bytes:
    """The message that says why there is no answer."""
    return msgspec.json.encode([error.code, error.message, error.status, error.hint])


def refused(message: bytes) -> RequestError:
    """The inverse of `refusal`."""
    code, text, status, hint = msgspec.json.decode(message)
    return RequestError(code, text, status=status, hint=hint)
