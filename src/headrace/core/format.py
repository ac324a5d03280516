"""The contract of formats: bytes ↔ Arrow columns, in batches, in Python workers.

A format is `record_schema`, `decoder` and `encoder`. What only some can do is a capability, asked by `isinstance`:

| it … | capability | kinds, e.g. |
|---|---|---|
| decodes by Spark expressions, as real-time flows need | `DecodesNatively` | json, raw |
| encodes by Spark expressions | `EncodesNatively` | json |
| infers its schema from records | `InfersSchema` | json |
| takes its schema from a registry | `RegistryBacked` | protobuf |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

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

    Never raises because of a record: it returns records that it cannot decode as `bad`.
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
    """A newer schema of a registry than the one in force. Nothing changes until it is accepted."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The registry, for people."""

    @abstractmethod
    def applied(self, form: Format) -> Format:
        """A format of the same registry with this schema, to plan with before it is in force."""

    @abstractmethod
    def additions(self) -> list[str]:
        """What it adds to the one in force, for people."""

    @abstractmethod
    def breaches(self, used: Collection[str] | None) -> list[str]:
        """Why it cannot replace the one in force when these columns are used; None means all columns."""

    @abstractmethod
    def accept(self) -> None:
        """Put it in force."""

    @abstractmethod
    def refuse(self, reason: str) -> None:
        """Record why it was refused: it is not offered again, and `RegistryBacked.refusal` returns the reason."""


class Format(Component):
    """How the bytes of a record are laid out."""

    family: ClassVar[str] = "formats"
    can_fail: ClassVar[bool] = True
    """Whether there are records it cannot decode."""
    verbatim: ClassVar[bool] = False
    """Whether the value of a record is its one column, a text or bytes, unchanged: then no encoder is needed."""

    @abstractmethod
    def record_schema(self, context: Context) -> pa.Schema | None:
        """All columns of a record, known without Spark; None when it must be inferred from a sample."""

    @abstractmethod
    def decoder(self, context: Context, schema: pa.Schema) -> Decoder:
        """A decoder of only the columns in `schema`, a part of the full schema: unused columns cost nothing."""

    def encoder(self, context: Context, schema: pa.Schema) -> Encoder:
        """An encoder of rows with these columns. Refuses a column that the format has no place for."""
        raise ProjectError("format-read-only", f"format '{self.kind()}' cannot write", hint="write json instead")


@runtime_checkable
class DecodesNatively(Protocol):
    """Capability of a format: Spark expressions decode it, as real-time flows need (see DESIGN, latency modes)."""

    def native_decode(self, value: Column, schema: pa.Schema) -> Column:
        """A struct column of these columns. A text that cannot be read goes to `_corrupt_record`, if that is one."""


@runtime_checkable
class EncodesNatively(Protocol):
    """Capability of a format: Spark expressions encode it, which takes no Python stage."""

    def native_encode(self, row: Column) -> Column:
        """A binary or string column, from a struct column."""


@runtime_checkable
class InfersSchema(Protocol):
    """Capability of a format: `record_schema` may be None, and then the schema is inferred."""

    def infer(self, sample: Sequence[bytes]) -> pa.Schema:
        """The schema of these records."""


@runtime_checkable
class RegistryBacked(Protocol):
    """Capability of a format: a registry may hold its schema, and a newer one later."""

    @property
    def registry_key(self) -> str | None:
        """Identifies the schema among those of registries; None when the schema is part of the project."""

    @property
    def refresh_every(self) -> timedelta | None:
        """How often the registry is queried for a newer schema, None for never."""

    def offer(self, context: Context) -> Offer | None:
        """The newest schema of the registry if it is not in force; None also while a query is not due. Blocks."""

    def refusal(self, context: Context) -> str | None:
        """Why the newest schema of the registry is not in force, None when it is."""


def bisect(
    values: pa.Array, decode: Callable[[pa.Array], pa.RecordBatch], reason: Callable[[Exception], str]
) -> Decoded:
    """Decode with a function that raises for the whole batch when one record is bad: halve it until that one is alone.

    k bad records among n cost about k·log2(n/k) extra calls; without bad records there is no extra call.
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
