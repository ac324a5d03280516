"""The Confluent wire format: a zero byte, a schema id in four bytes and, for protobuf, the message indexes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.format import Bad, Decoded, Decoder, Encoder
from headrace.formats._batches import moved, set_aside, stacked

HEADER = 5
_END = 2**31 - 1  # without an end, binary_slice fails on batches of short values
_NOT_FRAMED = "the record does not start with a zero byte and a schema id"


@dataclass(frozen=True)
class UnreadableSchema:
    """Why no record of a schema can be decoded."""

    reason: str
    detail: str


Key = tuple[int, tuple[int, ...]]


class FramedDecoder(Decoder):
    """Splits a batch by writer schema, decodes each part with its own decoder and restores the order of rows."""

    def __init__(self, schema: pa.Schema, *, indexed: bool) -> None:
        self.schema = schema
        self._indexed = indexed
        self._decoders: dict[Key, Decoder] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoders": {}}

    @abstractmethod
    def decoder_for(self, schema_id: int, path: tuple[int, ...]) -> Decoder | UnreadableSchema:
        """The decoder of a writer schema. Raises when the registry does not answer: then the batch must be retried."""

    def decode(self, values: pa.Array) -> Decoded:
        """Decode framed values; a record without frame or with an unknown schema is bad."""
        values = values.cast(pa.binary())
        framed = pc.fill_null(
            pc.and_(pc.starts_with(values, b"\0"), pc.greater_equal(pc.binary_length(values), HEADER)), False
        )
        bad = [Bad(i, *_unframed(values[i])) for i in pc.indices_nonzero(pc.invert(framed)).to_pylist()]
        return set_aside(values, bad, self._decode_framed)

    def _decode_framed(self, values: pa.Array) -> Decoded:
        headers = pc.binary_slice(values, 0, HEADER).dictionary_encode()
        bodies = pc.binary_slice(values, HEADER, _END)
        bad: list[Bad] = []
        parts: dict[Key, tuple[list[int] | None, pa.Array]] = {}
        for code, header in enumerate(headers.dictionary.to_pylist()):
            schema_id = int.from_bytes(header[1:], "big")
            if len(headers.dictionary) == 1:
                positions, own = None, bodies
            else:
                positions = pc.indices_nonzero(pc.equal(headers.indices, code)).to_pylist()
                own = bodies.take(pa.array(positions, pa.int64()))
            for path, places, body in self._by_path(own, bad, positions):
                parts[schema_id, path] = (places, body)
        return self._merged(parts, bad, len(values))

    def _by_path(
        self, bodies: pa.Array, bad: list[Bad], positions: list[int] | None
    ) -> list[tuple[tuple[int, ...], list[int] | None, pa.Array]]:
        if not self._indexed:
            return [((), positions, bodies)]
        if pc.all(pc.starts_with(bodies, b"\0")).as_py():
            return [((0,), positions, pc.binary_slice(bodies, 1, _END))]
        groups: dict[tuple[int, ...], tuple[list[int], list[bytes]]] = {}
        for i, body in enumerate(bodies.to_pylist()):
            place = i if positions is None else positions[i]
            read = read_path(body)
            if read is None:
                bad.append(Bad(place, "not-framed", "the message indexes after the schema id cannot be read"))
                continue
            places, rest = groups.setdefault(read[0], ([], []))
            places.append(place)
            rest.append(body[read[1] :])
        return [(path, places, pa.array(rest, pa.binary())) for path, (places, rest) in groups.items()]

    def _merged(self, parts: dict[Key, tuple[list[int] | None, pa.Array]], bad: list[Bad], length: int) -> Decoded:
        rows = [pa.RecordBatch.from_pylist([], self.schema)]
        order: list[int] = []
        for key, (positions, bodies) in parts.items():
            places = range(length) if positions is None else positions
            decoded = self._decode_part(key, bodies)
            out = {record.index for record in decoded.bad}
            bad += moved(decoded.bad, places)
            order += [place for i, place in enumerate(places) if i not in out]
            rows.append(decoded.rows)
        whole = stacked([batch for batch in rows if batch.num_rows] or rows[:1])
        if order != sorted(order):
            whole = whole.take(pc.sort_indices(pa.array(order, pa.int64())))
        return Decoded(whole, tuple(sorted(bad, key=lambda record: record.index)))

    def _decode_part(self, key: Key, bodies: pa.Array) -> Decoded:
        decoder = self._decoders.get(key) or self.decoder_for(*key)
        if isinstance(decoder, UnreadableSchema):  # not cached: the schema may be registered by the next batch
            refused = [Bad(i, decoder.reason, decoder.detail) for i in range(len(bodies))]
            return Decoded(pa.RecordBatch.from_pylist([], self.schema), refused)
        self._decoders[key] = decoder
        return decoder.decode(bodies)


class StrippedDecoder(FramedDecoder):
    """Framed records whose decoder needs no writer schema: only the header is removed."""

    def __init__(self, inner: Decoder, *, indexed: bool) -> None:
        super().__init__(inner.schema, indexed=indexed)
        self._inner = inner

    def decoder_for(self, schema_id: int, path: tuple[int, ...]) -> Decoder | UnreadableSchema:
        """The same decoder for every schema."""
        return self._inner


class FramedEncoder(Encoder):
    """Adds the header to the values of another encoder."""

    def __init__(self, inner: Encoder, header: bytes) -> None:
        self._inner = inner
        self._header = header

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        """One framed binary value per row."""
        header, nothing = pa.scalar(self._header, pa.binary()), pa.scalar(b"", pa.binary())
        return pc.binary_join_element_wise(header, self._inner.encode(rows).cast(pa.binary()), nothing)


def _unframed(value: pa.Scalar) -> tuple[str, str]:
    return ("empty", "the record has no value") if not value.is_valid else ("not-framed", _NOT_FRAMED)


def header_of(schema_id: int, path: Sequence[int] | None = None) -> bytes:
    """The bytes before the body: path is None where there are no message indexes."""
    header = b"\0" + schema_id.to_bytes(4, "big")
    if path is None:
        return header
    if tuple(path) == (0,):
        return header + b"\0"
    return header + b"".join(_zigzag(number) for number in (len(path), *path))


def read_path(body: bytes) -> tuple[tuple[int, ...], int] | None:
    """The message indexes at the start of a body and their length; None when they cannot be read."""
    count, position = _read_zigzag(body, 0)
    if count == 0:
        return (0,), position
    path: list[int] = []
    for _ in range(max(count, 0)):
        number, position = _read_zigzag(body, position)
        if number < 0:
            return None
        path.append(number)
    return (tuple(path), position) if path else None


def _zigzag(number: int) -> bytes:
    number, out = number << 1, bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _read_zigzag(body: bytes, position: int) -> tuple[int, int]:
    """A number and where it ends; -1 when there is none."""
    number = 0
    for shift in range(0, 35, 7):
        if position >= len(body):
            return -1, position
        byte = body[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position
    return -1, position
