"""The contract of sources. Reading never starts anything: `read` only describes it."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from headrace.core.component import Component
from headrace.core.context import Context, ReadContext
from headrace.core.places import Location
from headrace.core.positions import Positions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class PackedPosition:
    """Two numbers of a position in one, and what is the same for all records: one column is cheaper than three.

    `high` must fit into 19 bits and `low` into 44; `fixed` comes first in the position.
    """

    high: str
    low: str
    fixed: tuple[tuple[str, str], ...] = ()

    @property
    def expression(self) -> str:
        """The SQL of the packed number."""
        return f"(shiftleft(cast({self.high} AS bigint), 44) | {self.low})"

    def unpack(self, packed: int) -> dict[str, object]:
        """The position, as if its columns had been read."""
        return {**dict(self.fixed), self.high: packed >> 44, self.low: packed & ((1 << 44) - 1)}


class Source(Component):
    """Where a stream's data comes from. Do not subclass directly: see RecordSource and RowSource."""

    family: ClassVar[str] = "sources"
    metadata: ClassVar[dict[str, str]] = {}
    """Columns about a record, not of it, with their Spark types, e.g. {"_offset": "bigint"}. All start with `_`."""
    position: ClassVar[tuple[str, ...]] = ()
    """The metadata columns that identify a record for ever: the address of a dead letter, the same again on replay."""

    @property
    def packed_position(self) -> PackedPosition | None:
        """How to carry the position of a record in one number, if that can be done."""
        return None

    realtime: ClassVar[bool] = False
    """Whether a real-time flow can read it."""
    simulated: ClassVar[bool] = False
    """Whether its records make up their own time, so that none of them is too far in the future."""

    @property
    @abstractmethod
    def yields_rows(self) -> bool:
        """True when `read` gives columns, False when it gives bytes for a format."""

    def check(self, context: Context) -> None:
        """Ask the system behind this source whether it can be read; a ProjectError says what to mend."""

    @property
    def reads(self) -> str:
        """What is read, as far as positions in it depend on it: not how fast, since when or with which password.

        A flow whose source reads something else than before cannot go on from the positions it has reached. Unless a
        kind says better, any changed option counts.
        """
        options = self.model_dump_json(exclude_defaults=True)
        return f"{self.label} (options {hashlib.sha256(options.encode()).hexdigest()[:12]})"

    def places(self, context: Context) -> tuple[Location, ...]:
        """Where its records may have been written by a sink: topics, folders, tables."""
        return ()

    def splits(self, context: Context) -> int | None:
        """How many parts are read side by side, where the system behind it says so, e.g. a topic's partitions."""
        return None

    def positions(self, context: Context) -> Positions:
        """What is known about positions in it: to measure lag, and to begin somewhere else. Connects when asked.

        A source that overrides this begins at `ReadContext.start` when that is given.
        """
        return Positions(self.label)

    def backfill_obstacle(self) -> str | None:
        """Why a stream of this source cannot begin with history from elsewhere, None when it can.

        A source that can must be able to wait (`ReadContext.held`) and to begin at `ReadContext.start`.
        """
        return f"needs a source that can wait and go on at an offset, such as kafka, not {self.kind()}"

    @property
    def needs_format(self) -> bool:
        """Whether the stream must have a format: to decode bytes, or because an option says something about bytes."""
        return not self.yields_rows

    def encoded(self, records: DataFrame) -> DataFrame:
        """Rows in the bytes of the stream's format, for a source that yields rows. A place to spoil some of them."""
        return records

    @abstractmethod
    def read(self, spark: SparkSession, context: ReadContext) -> DataFrame:
        """The data, streaming or as it stands, depending on the context."""


class RecordSource(Source):
    """Subclass this first: opaque records that a format decodes.

    `read` returns a binary column `value` and the columns named in `metadata`.
    """

    @property
    def yields_rows(self) -> bool:
        """Bytes, for a format."""
        return False

    def sample(self, context: Context, limit: int) -> list[bytes]:
        """Up to `limit` records as they are now, read without Spark, for schema inference. Default: none."""
        return []


class RowSource(Source):
    """Rows that already have columns: no format is needed, nothing can be malformed."""

    @property
    def yields_rows(self) -> bool:
        """Columns."""
        return True

    @abstractmethod
    def row_schema(self, context: Context) -> pa.Schema:
        """The columns, known without Spark. Metadata columns are not among them."""
