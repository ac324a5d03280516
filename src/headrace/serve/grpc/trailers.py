"""The header blocks of gRPC responses: the headers of each response, and trailers with the status of the call."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from headrace.serve.grpc.http2.headers import literal, response_headers

_LONGEST_MESSAGE = 4_000


def trailers(status: int, message: str = "", further: Iterable[tuple[str, str]] = ()) -> bytes:
    """The trailers of a response: the status of the call and its message."""
    block = literal("grpc-status", str(status))
    if message:
        block += literal("grpc-message", escaped(message))
    return block + b"".join(literal(name, escaped(value)) for name, value in further)


def escaped(text: str) -> str:
    """The text in the form of `grpc-message`: percent-encoded, except for printable ASCII."""
    return quote(text[:_LONGEST_MESSAGE], safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")


HEADERS = response_headers(200, "application/grpc")
OK = trailers(0)
