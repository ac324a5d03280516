"""CSV texts to column values and back, column by column."""

from __future__ import annotations

import base64
import binascii

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import ProjectError
from headrace.core.schema import ddl_type
from headrace.formats._timestamps import parse_timestamps


def check_plain(schema: pa.Schema) -> None:
    """Refuse nested columns, which CSV does not have."""
    for field in schema:
        if pa.types.is_nested(field.type):
            message = f"column '{field.name}' is {ddl_type(field.type)}, and CSV has plain columns only"
            raise ProjectError("wrong-column-type", message, hint="use json, or read it as string")


def from_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values of texts; raises ArrowInvalid or ValueError when one of them is not valid."""
    if pa.types.is_timestamp(kind):
        return parse_timestamps(texts, kind)
    if pa.types.is_binary(kind):
        return pa.array([_bytes(text) for text in texts.to_pylist()], kind)
    return texts if texts.type == kind else texts.cast(kind)


def to_texts(values: pa.Array) -> pa.Array:
    """The texts that `from_texts` reads back."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        return pc.strftime(values, "%Y-%m-%dT%H:%M:%SZ" if kind.tz else "%Y-%m-%dT%H:%M:%S")
    if pa.types.is_binary(kind):
        return pa.array(
            [None if value is None else base64.b64encode(value).decode() for value in values.to_pylist()], pa.string()
        )
    return values.cast(pa.string())


def _bytes(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: '{text}'") from error
