"""The contract of sources. Reading never starts anything: `read` only describes it.

A source is `reads`, `check` and `read`. What only some can do is a capability, asked by `isinstance`:

| it … | capability | kinds, e.g. |
|---|---|---|
| knows positions: lag, rewind, savepoints | `HasPositions` | kafka, lake, http |
| carries a position in one number | `PacksPosition` | kafka, http |
| can be sampled without Spark | `HasSample` | kafka, files |
| can be linked to the sinks that write it | `HasPlaces` | kafka, files |
| is read in a known number of parts | `HasSplits` | kafka |
| can begin with history from elsewhere | `Backfills` | kafka |
| can spoil records, for tests | `SpoilsRecords` | generate |
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from headrace.core.component import Component
from headrace.core.context import Context, ReadContext
from headrace.core.places import Location
from headrace.core.positions import Positions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class PackedPosition:
    """A position as one number: two numbers packed, and constants that all records share.

    One column is cheaper than three. `high` must fit into 19 bits, `low` into 44; `fixed` comes first in the position.
    """

    high: str
    low: str
    fixed: tuple[tuple[str, str], ...] = ()

    @property
    def expression(self) -> str:
        """The SQL of the packed number."""
        return f"(shiftleft(cast({self.high} AS bigint), 44) | {self.low})"

    def unpack(self, packed: int) -> dict[str, object]:
        """The position as its columns hold it."""
        return {**dict(self.fixed), self.high: packed >> 44, self.low: packed & ((1 << 44) - 1)}


class Source(Component):
    """Where a stream's data comes from. Do not subclass directly: see RecordSource and RowSource."""

    family: ClassVar[str] = "sources"
    metadata: ClassVar[dict[str, str]] = {}
    """Columns about a record, not of it, with their Spark types, e.g. {"_offset": "bigint"}. All start with `_`."""
    position: ClassVar[tuple[str, ...]] = ()
    """The metadata columns that identify a record for ever: the address of a dead letter, the same again on replay."""
    realtime: ClassVar[bool] = False
    """Whether a real-time flow can read it."""
    simulated: ClassVar[bool] = False
    """Whether its event times are made up, so that none of them is too far in the future."""

    @property
    @abstractmethod
    def yields_rows(self) -> bool:
        """True when `read` returns columns, False when it returns bytes for a format."""

    @property
    def reads(self) -> str:
        """What is read, as far as positions depend on it: not how fast, since when or with which password.

        A flow whose source reads something else than before cannot resume from its positions. By default any changed
        option counts.
        """
        options = self.model_dump_json(exclude_defaults=True)
        return f"{self.label} (options {hashlib.sha256(options.encode()).hexdigest()[:12]})"

    def check(self, context: Context) -> None:
        """Connect to the system behind this source; a ProjectError says what to fix."""

    @abstractmethod
    def read(self, spark: SparkSession, reading: ReadContext) -> DataFrame:
        """The data, streaming or as a batch, depending on `reading`."""


class RecordSource(Source):
    """Subclass this first: opaque records that a format decodes.

    `read` returns a binary column `value` and the columns named in `metadata`.
    """

    @property
    def yields_rows(self) -> bool:
        return False


class RowSource(Source):
    """Rows that already have columns: no format is needed, nothing can be malformed."""

    @property
    def yields_rows(self) -> bool:
        return True

    @abstractmethod
    def row_schema(self, context: Context) -> pa.Schema:
        """The columns, known without Spark. Metadata columns are not among them."""


@runtime_checkable
class HasPositions(Protocol):
    """Capability of a source: positions in it can be compared, resolved and resumed.

    `read` begins at `ReadContext.start` when that is set.
    """

    def positions(self, context: Context) -> Positions:
        """Measures lag and resolves positions. Connects on first use."""


def positions_of(source: Source, context: Context) -> Positions:
    """The positions of a source; those of a source without the capability know nothing."""
    return source.positions(context) if isinstance(source, HasPositions) else Positions(source.label)


@runtime_checkable
class PacksPosition(Protocol):
    """Capability of a source: the position of a record fits into one number."""

    @property
    def packed_position(self) -> PackedPosition | None:
        """How to pack it; None if these options do not allow it."""


@runtime_checkable
class HasSample(Protocol):
    """Capability of a source: some of its records can be read without Spark."""

    def sample(self, context: Context, limit: int) -> list[bytes]:
        """Up to `limit` records as they are now, for schema inference."""


@runtime_checkable
class HasPlaces(Protocol):
    """Capability of a source: a sink may have written its records, so flows can be chained."""

    def places(self, context: Context) -> tuple[Location, ...]:
        """The topics, folders or tables that it reads."""


@runtime_checkable
class HasSplits(Protocol):
    """Capability of a source: it is read in a number of parallel parts that the system behind it determines."""

    def splits(self, context: Context) -> int:
        """The number of parts, e.g. partitions of topics."""


@runtime_checkable
class Backfills(Protocol):
    """Capability of a source: a stream can begin with history from elsewhere and continue with this source.

    `read` waits at its start while `ReadContext.held` is set, and begins at `ReadContext.start`.
    """

    def backfill_obstacle(self) -> str | None:
        """Why these options do not allow it; None if they do."""


@runtime_checkable
class SpoilsRecords(Protocol):
    """Capability of a source that yields rows: it damages some of them after they are encoded, for tests."""

    @property
    def needs_format(self) -> bool:
        """Whether the stream must have a format, because only bytes can be damaged."""

    def encoded(self, records: DataFrame) -> DataFrame:
        """The records, some of them damaged."""
