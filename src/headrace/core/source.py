"""The contract of sources. Reading never starts anything: `read` only describes it."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from headrace.core.component import Component
from headrace.core.context import Context, ReadContext

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class Source(Component):
    """Where a stream's data comes from. Do not subclass directly: see RecordSource and RowSource."""

    family: ClassVar[str] = "sources"
    metadata: ClassVar[dict[str, str]] = {}
    """Columns about a record rather than of it, with their Spark types, e.g. {"_offset": "bigint"}. All start with `_`."""
    position: ClassVar[tuple[str, ...]] = ()
    """The metadata columns that identify a record for ever: the address of a dead letter, the same again on replay."""

    realtime: ClassVar[bool] = False
    """Whether a real-time flow can read it."""

    @property
    @abstractmethod
    def yields_rows(self) -> bool:
        """True when `read` gives columns, False when it gives bytes for a format."""

    def check(self, context: Context) -> None:
        """Ask the system behind this source whether it can be read; a ProjectError says what to mend. Default: fine."""

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

    def encoded(self, records: DataFrame) -> DataFrame:
        """The records of a stream that has a format all the same: its rows, encoded. A place to spoil some of them."""
        return records
