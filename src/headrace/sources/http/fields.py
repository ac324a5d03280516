"""Records from POSTed bodies, which are decompressed and get fields about their origin.

Other values stay exactly as they are written: numbers lose no digit.
"""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from pydantic import Field, model_validator

from headrace.core.component import Options
from headrace.core.encoding.timestamps import utc_now
from headrace.core.errors import RequestError

Record = dict[str, msgspec.Raw]
_decode = msgspec.json.Decoder(Record).decode
_encode = msgspec.json.encode
_GZIP_OR_ZLIB, _RAW = zlib.MAX_WBITS | 32, -zlib.MAX_WBITS
_PARTS, _PIECE = 1000, 1 << 14
SMALLER = "send fewer records at a time; 'max_body' of the stream sets the limit"
CODINGS = ("gzip", "deflate", "identity")


class FieldFrom(Options):
    """Where the value of a field comes from: exactly one of these; `uuid` also where a header or field is missing."""

    header: str | None = Field(
        None, min_length=1, description="A header of the request, as text.", examples=["x-device-id"]
    )
    field: str | None = Field(
        None, min_length=1, description="A field of the record, after the fields before.", examples=["mid"]
    )
    now: Literal["ms", "s", "iso"] | None = Field(
        None, description="The time of the request: milliseconds or seconds since 1970, or as text in UTC."
    )
    value: Any = Field(None, description="This value.", examples=["sb-telemetry"])
    uuid: bool = Field(False, description="A new UUID.")

    @model_validator(mode="after")
    def _check_sources(self) -> FieldFrom:
        sources = [name for name in ("header", "field", "now", "value") if getattr(self, name) is not None]
        unsuited = self.uuid and sources and sources[0] in ("now", "value")
        if len(sources) > 1 or (not sources and not self.uuid) or unsuited:
            raise ValueError("needs one of 'header', 'field', 'now', 'value', 'uuid' ('uuid' also after the first two)")
        return self

    def of(self, record: Record, headers: Mapping[str, str]) -> msgspec.Raw | None:
        """The value as JSON, None when there is none."""
        value = self._value(record, headers)
        if value is None and self.uuid:
            value = str(uuid.uuid4())
        return value if value is None or isinstance(value, msgspec.Raw) else msgspec.Raw(_encode(value))

    def _value(self, record: Record, headers: Mapping[str, str]) -> Any:
        if self.header is not None:
            return headers.get(self.header.lower())
        if self.field is not None:
            known = record.get(self.field)
            return None if known is None or bytes(known) == b"null" else known
        return self.value if self.now is None else _now(self.now)


def _now(unit: str) -> int | str:
    if unit == "iso":
        return utc_now("milliseconds")
    return time.time_ns() // (1_000_000 if unit == "ms" else 1_000_000_000)


def record_of(body: bytes, fields: Mapping[str, FieldFrom], headers: Mapping[str, str]) -> bytes:
    """The record of a body, in one line. Raises RequestError."""
    try:
        str(body, "utf-8")
        record = _decode(body)
    except UnicodeDecodeError:
        raise RequestError("bad-json", "the body is not UTF-8", hint="JSON is sent as UTF-8") from None
    except RecursionError:
        raise RequestError("bad-json", "the body is nested too deeply", hint="a few levels are enough") from None
    except msgspec.ValidationError:
        raise RequestError("bad-json", "the body is not a JSON object", hint='send one: {"…": …}') from None
    except msgspec.DecodeError as error:
        raise RequestError("bad-json", f"the body is not JSON: {error}", hint="check quotes and commas") from None
    for name, source in fields.items():
        value = source.of(record, headers)
        if value is None:
            record.pop(name, None)
        else:
            record[name] = value
    text = _encode(record)
    return msgspec.json.format(text, indent=-1) if b"\n" in text or b"\r" in text else text


def inflated(body: bytes, coding: str, most: int) -> bytes:
    """A decompressed body, of at most so many bytes. Raises RequestError."""
    if coding == "identity":
        return body
    if coding not in CODINGS:
        raise RequestError(
            "unknown-coding",
            f"bodies compressed with '{coding[:40]}' are not accepted",
            status=415,
            hint="gzip or deflate",
        )
    try:
        content = _inflate(body, _GZIP_OR_ZLIB, most)
    except zlib.error:
        # deflate comes with and without a header
        try:
            content = _inflate(body, _RAW, most)
        except zlib.error:
            message = f"the body is not in the compression '{coding}' that its header names"
            raise RequestError("bad-compression", message, hint="leave out Content-Encoding for plain JSON") from None
    return content


def _inflate(body: bytes, window: int, most: int) -> bytes:
    """All parts of a body: a program that compresses in pieces sends several in a row."""
    content, at = bytearray(), 0
    for _ in range(_PARTS):
        machine = zlib.decompressobj(window)
        while not machine.eof:
            piece = body[at : at + _PIECE]
            if not piece:
                raise RequestError("bad-compression", "the compressed body is cut off", hint="send all of it")
            content += machine.decompress(piece, most + 1 - len(content))
            if len(content) > most:
                message = f"the body has more than {most:,} bytes when it is decompressed"
                raise RequestError("body-too-large", message, status=413, hint=SMALLER)
            at += len(piece) - len(machine.unused_data)
        if at == len(body):
            return bytes(content)
    raise RequestError("bad-compression", f"the body has more than {_PARTS} compressed parts", hint="send fewer")
