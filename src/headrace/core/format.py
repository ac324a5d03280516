"""The contract of formats: bytes ↔ Arrow columns, in batches, in Python workers; native Spark where there is one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from headrace.core.component import Component
from headrace.core.context import Context
from headrace.core.errors import ProjectError

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class Bad:
    """Why one record of a batch could not be decoded. `reason` is a stable code, `detail` is for people."""

    index: int
    reason: str
    detail: str


@dataclass(frozen=True)
class Decoded:
    """The good rows in their order, and the bad ones by their index in the input."""

    rows: pa.RecordBatch
    bad: Sequence[Bad] = field(default=())


class Decoder(ABC):
    """Decodes batches in a Python worker. Pickled to executors, so handlers are built on first use, not in __init__.

    Never raises because of a record: what it cannot decode it returns as `bad`.
    """

    schema: pa.Schema

    @abstractmethod
    def decode(self, values: pa.Array) -> Decoded:
        """Decode binary values (null values are bad records too)."""


class Encoder(ABC):
    """Encodes batches in a Python worker. Pickled to executors like a Decoder."""

    @abstractmethod
    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        """One binary value per row."""


class Offer(ABC):
    """A schema that a registry has now, other than the one in force. Nothing changes until it is accepted."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Where it comes from."""

    @abstractmethod
    def applied(self, form: Format) -> Format:
        """A format of the same registry with this schema, to plan with before it is in force."""

    @abstractmethod
    def additions(self) -> list[str]:
        """What it has more than the one in force, for people."""

    @abstractmethod
    def breaches(self, used: Collection[str] | None) -> list[str]:
        """Why it cannot take the place of the one in force when these columns are used, None for all of them."""

    @abstractmethod
    def accept(self) -> None:
        """Put it in force."""

    @abstractmethod
    def refuse(self, reason: str) -> None:
        """Remember why it was not taken: it is not offered again, and `Format.refusal` says so."""


class Format(Component):
    """How the bytes of a record are laid out."""

    family: ClassVar[str] = "formats"
    can_fail: ClassVar[bool] = True
    """Whether there are records it cannot decode."""
    verbatim: ClassVar[bool] = False
    """Whether the value of a record is its one column, a text or bytes, as it is: then no encoder is needed."""
    has_native_decoder: ClassVar[bool] = False
    """Whether `native_decode` gives a column: what real-time flows need."""

    @abstractmethod
    def record_schema(self, context: Context) -> pa.Schema | None:
        """All columns of a record, known without Spark; None when it must be inferred from a sample."""

    @abstractmethod
    def decoder(self, context: Context, schema: pa.Schema) -> Decoder:
        """A decoder of just the columns in `schema`, a part of the full schema: what is not asked for costs nothing."""

    def encoder(self, context: Context, schema: pa.Schema) -> Encoder:
        """An encoder of rows with these columns. A column the format has no place for is refused here."""
        raise ProjectError("format-read-only", f"format '{self.kind()}' cannot write", hint="write json instead")

    def infer(self, sample: Sequence[bytes]) -> pa.Schema:
        """The schema of sampled records, for formats whose `record_schema` may be None."""
        raise NotImplementedError(f"{self.kind()} always knows its schema")

    @property
    def registry_key(self) -> str | None:
        """What tells the schema of a registry from others, None when the schema is part of the project."""
        return None

    @property
    def refresh_every(self) -> timedelta | None:
        """How often the registry is asked for a newer schema, None for never."""
        return None

    def offer(self, context: Context) -> Offer | None:
        """Ask the registry, when it is time to; what it has now if that is something new. Takes its time."""
        return None

    def refusal(self, context: Context) -> str | None:
        """Why the newest schema of the registry is not in force, None when it is."""
        return None

    def native_decode(self, value: Column, schema: pa.Schema) -> Column | None:
        """A struct column decoded by Spark itself, or None. Only real-time flows use it: see DESIGN, latency modes."""
        return None

    def native_encode(self, row: Column) -> Column | None:
        """A binary or string column encoded by Spark itself from a struct column, or None: then the encoder is used."""
        return None


def bisect(
    values: pa.Array, decode: Callable[[pa.Array], pa.RecordBatch], reason: Callable[[Exception], str]
) -> Decoded:
    """Decode with a function that raises for the whole batch when one record is bad, by halving until it stands alone.

    k bad records among n cost about k·log2(n/k) extra calls, and nothing when there are none.
    """
    rows: list[pa.RecordBatch] = []
    bad: list[Bad] = []

    def attempt(start: int, length: int) -> None:
        try:
            rows.append(decode(values.slice(start, length)))
        except Exception as error:  # decoders of foreign bytes raise whatever their library raises
            if length == 1:
                bad.append(Bad(start, reason(error), str(error)[:500]))
                return
            half = length // 2
            attempt(start, half)
            attempt(start + half, length - half)

    if len(values):
        attempt(0, len(values))
    batches = rows or [decode(values.slice(0, 0))]
    table = pa.Table.from_batches(batches).combine_chunks()
    whole = table.to_batches()[0] if table.num_rows else batches[0].slice(0, 0)
    return Decoded(whole, tuple(bad))
