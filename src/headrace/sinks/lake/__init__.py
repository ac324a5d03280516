"""`type: lake`: a Delta table that grows by rows, or is kept up to date by key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from headrace.core.capabilities import (
    BuildsCandidate,
    Candidate,
    HoldsView,
    KeepsLakeTable,
    ReadsAllRows,
    Rewind,
    Rewindable,
    SingleWriter,
)
from headrace.core.context import Batch, Context
from headrace.core.durations import Duration
from headrace.core.errors import ProjectError
from headrace.core.lazy import lazy_modules
from headrace.core.records import spark_schema
from headrace.core.rows import drain, structured
from headrace.core.sink import Delivery, Sink
from headrace.sinks._views import GONE, as_rows, begins, refuse_options, view_key
from headrace.sinks.lake.delta import TableState, compact, table_state
from headrace.sinks.lake.schema import require_columns, require_fit
from headrace.sinks.lake.upsert import Upsert

if TYPE_CHECKING:
    import deltalake
    import deltalake.exceptions
    from pyspark.sql import DataFrame, SparkSession

    from headrace.sinks.lake import candidate as lake_candidate
    from headrace.sinks.lake import undo as lake_undo
else:
    deltalake, lake_candidate, lake_undo = lazy_modules(
        "deltalake", "headrace.sinks.lake.candidate", "headrace.sinks.lake.undo"
    )


Way = Literal["append", "overwrite", "merge"]


class LakeSink(HoldsView, Rewindable, BuildsCandidate, KeepsLakeTable, SingleWriter, ReadsAllRows):
    """Rows of a Delta table: appended, or with `key` one row per key, replaced by the newest.

    Delivery: exactly once per generation of the flow; the Delta commit carries flow, generation and batch number.
    Order: none between rows; with `sequence` the row with the greatest wins, whatever order they come in (equal ones:
    either). Scale: a commit takes about a second, so trigger intervals of seconds; one flow per table when `key` is
    set. Every `compact_every` batches the small files are merged, between two batches of this flow.
    A view is held by its key, one commit per batch; nulls in a key are equal. A new generation of it replaces all rows.
    """

    type: Literal["lake"] = "lake"
    path: str = Field(
        description="Folder or URI of the table, relative to the project. Created when missing.",
        examples=["lake/orders"],
    )
    key: list[str] = Field(
        default=[],
        description="Keep one row per value of these columns. Left out, that of a view is the view's own.",
        examples=[["order_id"]],
    )
    sequence: str | None = Field(
        None, description="Column that decides which of two rows with one key is newer.", examples=["updated_at"]
    )
    partition_by: list[str] = Field(default=[], description="Columns to partition a new table by.", examples=[["dt"]])
    schema_evolution: Literal["add", "refuse"] = Field(
        "add", description="Whether new columns are added to the table. A changed type is always refused."
    )
    change_feed: bool = Field(False, description="Keep the changes of a new table for readers with `changes: true`.")
    compact_every: int = Field(100, ge=0, description="Merge small files after this many batches; 0 never does.")
    retention: Duration = Field(
        timedelta(days=7),
        description="How long readers may go back: files no longer used and the table's log are kept that long.",
    )

    @model_validator(mode="after")
    def _a_sequence_needs_a_key(self) -> LakeSink:
        if self.sequence is not None and not self.key:
            raise ValueError("'sequence' chooses between rows with one key, so it needs 'key'")
        return self

    @property
    def guarantee(self) -> Delivery:
        """The commit of the rows contains the mark of the batch."""
        return "exactly_once"

    @property
    def single_writer(self) -> bool:
        """Concurrent appends succeed; of two concurrent merges one fails."""
        return bool(self.key)

    @property
    def lake_path(self) -> str:
        return self.path

    @property
    def target(self) -> str:
        return self.path

    @property
    def label(self) -> str:
        return f"lake {self.path}" + (f" by {', '.join(self.key)}" if self.key else "")

    def of_view(self, key: Sequence[str]) -> LakeSink:
        refuse_options(self, "sequence")
        return self.model_copy(update={"key": view_key(self, "key", self.key, key)})

    def check_rows(self, context: Context, columns: Sequence[str], output: str, schema: pa.Schema | None) -> None:
        """Refuse updates without a key, options that name no column, and rows the table cannot take."""
        if output == "update" and not self.key:
            raise ProjectError(
                "lake-needs-key",
                f"the flow's output is 'update', and lake sink '{self.path}' has no key to replace earlier rows by",
                hint="set key to the columns that identify a row, e.g. those after GROUP BY",
            )
        top_level = [*dict.fromkeys(name.partition(".")[0] for name in columns)]
        require_columns("key", self.key, top_level)
        require_columns("sequence", [self.sequence] if self.sequence else [], top_level)
        require_columns("partition_by", self.partition_by, top_level)
        held = _held_columns(context.path(self.path))
        if schema is not None and held is not None and not any("." in name for name in columns):
            require_fit(self.path, held, schema, self.schema_evolution == "add")

    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        """Commit the batch unless it is committed, and compact the table every `compact_every` batches."""
        self._write(structured(rows), Upsert(tuple(self.key), self.sequence) if self.key else None, batch)

    def write_changes(self, changes: DataFrame, key: Sequence[str], batch: Batch) -> None:
        held = self.of_view(key)
        held._write(structured(as_rows(changes)), Upsert(tuple(held.key), gone=GONE), batch)

    def rewind_effect(self, rewind: Rewind, replace: bool) -> str:
        if not replace:
            effect = "replace those of the same key" if self.key else "are added to those already written"
            return f"{rewind.read_again}: their rows {effect}"
        undo = lake_undo.plan_undo(rewind.context.path(self.path), rewind)
        if undo is None:
            return f"nothing was written since; {rewind.read_again}"
        where = f"goes back to version {undo.version}" if undo.version >= 0 else "is emptied"
        return f"the table {where} ({undo.commits:,} commits of this flow are undone); {rewind.read_again}"

    def take_back(self, rewind: Rewind) -> None:
        lake_undo.undo(rewind.context.path(self.path), rewind)

    def candidate_effect(self, candidate: Candidate) -> str:
        lake_candidate.require_alone(candidate.context.path(self.path), candidate)
        filled = self._candidate_path(candidate)
        return f"{filled} is filled; at the switch its rows replace all of {self.path} in one commit"

    def candidate_sink(self, candidate: Candidate) -> Sink:
        return self.model_copy(update={"path": self._candidate_path(candidate)})

    def publish(self, candidate: Candidate, spark: SparkSession) -> None:
        source, target = (candidate.context.path(path) for path in (self._candidate_path(candidate), self.path))
        lake_candidate.replace_rows(spark, source, target, candidate, self.partition_by, self._table_options())

    def drop_candidate(self, candidate: Candidate) -> None:
        lake_candidate.remove_table(candidate.context.path(self._candidate_path(candidate)))

    def _candidate_path(self, candidate: Candidate) -> str:
        return f"{self.path.rstrip('/')}__{candidate.generation}"

    def _write(self, rows: DataFrame, upsert: Upsert | None, batch: Batch) -> None:
        spark = rows.sparkSession
        path = batch.context.path(self.path)
        writer = f"headrace.{batch.flow}.{batch.generation}.{batch.sink}"
        table = table_state(spark, path, writer)
        if table.last_batch >= batch.batch_id:
            drain(rows)
        else:
            mark = {"txnAppId": writer, "txnVersion": str(batch.batch_id)}
            self._commit(rows, upsert, path, mark, table, _way(upsert, table, batch))
        if self.compact_every and (batch.batch_id + 1) % self.compact_every == 0:
            compact(spark, path, self.retention)

    def _commit(
        self, rows: DataFrame, upsert: Upsert | None, path: str, mark: dict[str, str], table: TableState, way: Way
    ) -> None:
        may_add = self.schema_evolution == "add"
        if table.columns is not None:
            require_fit(self.path, table.columns, spark_schema(upsert.held(rows) if upsert else rows), may_add)
        if upsert is None:
            self._append(rows, path, mark)
            return
        with upsert.explaining(self.path):
            if way == "merge":
                upsert.merge(rows, path, mark, may_add)
            else:
                self._append(upsert.first(rows), path, mark, way)

    def _append(self, rows: DataFrame, path: str, mark: dict[str, str], mode: Way = "append") -> None:
        options = {
            **mark,
            "mergeSchema": str(self.schema_evolution == "add").lower(),
            **self._table_options(),
        }
        writer = rows.write.format("delta").mode(mode).options(**options)
        (writer.partitionBy(*self.partition_by) if self.partition_by else writer).save(path)

    def _table_options(self) -> dict[str, str]:
        kept = f"interval {math.ceil(self.retention.total_seconds())} seconds"
        options = {
            # a table with one commit a second would have 2.6 million log files after Delta's default of 30 days
            "delta.logRetentionDuration": kept,
            "delta.deletedFileRetentionDuration": kept,
        }
        if self.change_feed:
            options["delta.enableChangeDataFeed"] = "true"
        if self.partition_by:
            # else every task would write a file into every partition it has rows of
            options["optimizeWrite"] = "true"
        return options


def _way(upsert: Upsert | None, table: TableState, batch: Batch) -> Way:
    """How a batch is written: the first batch of a view's generation replaces all rows that its flow wrote before."""
    if upsert is None or table.columns is None:
        return "append"
    written = any(mark.startswith(f"headrace.{batch.flow}.") for mark in table.marks)
    return "overwrite" if upsert.gone is not None and begins(batch) and written else "merge"


def _held_columns(path: str) -> pa.Schema | None:
    """The columns of a local table, read without Spark; None if it does not exist or is not local."""
    if "://" in path:
        return None
    try:
        return pa.schema(deltalake.DeltaTable(path).schema().to_arrow())
    except deltalake.exceptions.TableNotFoundError:
        return None
