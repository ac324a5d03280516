"""`type: lake`: the rows of a Delta table, as a batch or as a stream."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from headrace.core.context import Context, ReadContext
from headrace.core.errors import ProjectError
from headrace.core.positions import Position, Positions
from headrace.core.source import RowSource
from headrace.sources.lake.positions import LakePositions
from headrace.systems.delta import CHANGE_FEED, columns_of, keeps_change_feed, open_table

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession


class LakeSource(RowSource):
    """Rows of a Delta table: first its present rows, then appended ones.

    Delivery: exactly once into replay-safe sinks. Order: by commit, none within one. Rows that are updated or deleted
    later stop the stream, unless `changes` reads them as changes or `skip_changes` ignores them. Compaction is not a
    change. Scale: any; the table's log is read on the driver.
    """

    metadata: ClassVar[dict[str, str]] = {
        "_change_type": "string",
        "_commit_version": "bigint",
        "_commit_timestamp": "timestamp",
    }

    type: Literal["lake"] = "lake"
    path: str = Field(description="Folder or URI of the table, relative to the project.", examples=["lake/orders"])
    start: Literal["earliest", "latest"] | Annotated[int, Field(ge=0)] | datetime = Field(
        "earliest",
        description="Where a first run begins: all rows, only new ones, the commit of this version, or of this time.",
        examples=["latest", 12, "2026-01-31T00:00:00Z"],
    )
    changes: bool = Field(
        False,
        description="Read updates and deletes too: _change_type is insert, update_preimage, update_postimage, delete. "
        "Needs the table's change feed.",
    )
    skip_changes: bool = Field(False, description="Ignore commits that update or delete rows, and what they insert.")
    max_files_per_trigger: int = Field(1000, ge=1, description="At most this many files of the table per batch.")

    @property
    def label(self) -> str:
        return f"lake {self.path}"

    @property
    def reads(self) -> str:
        """The table, and whether as rows or as changes."""
        return f"{'changes' if self.changes else 'rows'} of {self.path}"

    def check(self, context: Context) -> None:
        """The table exists, and has a change feed if `changes` needs it."""
        table = self._table(context)
        if self.changes and not keeps_change_feed(table):
            raise ProjectError(
                "lake-no-change-feed",
                f"'changes' needs the change feed of {self.path}, which the table does not have",
                hint="set change_feed: true on its lake sink, or ALTER TABLE delta.`…` SET TBLPROPERTIES "
                f"('{CHANGE_FEED}' = 'true')",
            )

    def row_schema(self, context: Context) -> pa.Schema:
        """The table's columns, from its log."""
        return columns_of(self._table(context))

    def positions(self, context: Context) -> Positions:
        """Versions of the table."""
        return LakePositions(self.label, self.path, lambda: self._table(context))

    def stream_options(self, start: Position | None = None, newest: int | None = None) -> dict[str, str]:
        """These options as options of Delta's streaming reader. `start` takes precedence."""
        options = {"maxFilesPerTrigger": str(self.max_files_per_trigger)}
        if self.changes:
            options["readChangeFeed"] = "true"
        if self.skip_changes:
            options["skipChangeCommits"] = "true"
        begin = self.start
        if start is not None:
            version = start["version"]
            # Delta refuses a version that does not exist yet; the latest is the one after the newest
            begin = "earliest" if version is None else "latest" if version > (newest or 0) else version
        match begin:
            case datetime() as moment:
                aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
                options["startingTimestamp"] = aware.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            case "latest" | int():
                options["startingVersion"] = str(begin)
        return options

    def read(self, spark: SparkSession, reading: ReadContext) -> DataFrame:
        """The rows; without `changes` all are inserts."""
        columns = [f"`{name}`" for name in self.row_schema(reading.context).names]
        path = reading.path(self.path)
        if not reading.streaming:
            return spark.read.format("delta").load(path).selectExpr(*columns, *_INSERTED)
        options = self.stream_options(reading.start, self._table(reading.context).version())
        rows = spark.readStream.format("delta").options(**options).load(path)
        return rows.selectExpr(*columns, *(self.metadata if self.changes else _INSERTED))

    def _table(self, context: Context) -> DeltaTable:
        return open_table(self.path, context)


_INSERTED = (
    "'insert' as _change_type",
    *(f"cast(null as {kind}) as {name}" for name, kind in LakeSource.metadata.items() if name != "_change_type"),
)
