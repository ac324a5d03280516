"""`type: clickhouse`: rows of a ClickHouse table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import urlsplit

import pyarrow as pa
from pydantic import Field, model_validator

from headrace.core.capabilities import (
    AppendsAfterSwitch,
    Candidate,
    DescribesRewind,
    ReadsAllRows,
    Rewind,
    candidate_refused,
)
from headrace.core.context import Batch, Context
from headrace.core.errors import ProjectError
from headrace.core.records import spark_schema
from headrace.core.rows import structured
from headrace.core.runtime.lazy import lazy_modules
from headrace.core.sink import Delivery
from headrace.sinks._documents import require_columns
from headrace.sinks._refused import ON_ERROR_DESCRIPTION, OnRefusal, Report, write_counted
from headrace.systems.http.options import HttpOptions, HttpUrl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.sinks.clickhouse import insert, table
    from headrace.sinks.clickhouse.insert import ClickHouseClient
    from headrace.sinks.clickhouse.table import ClickHouseTable
else:
    insert, table = lazy_modules("headrace.sinks.clickhouse.insert", "headrace.sinks.clickhouse.table")


class ClickHouseSink(HttpOptions, DescribesRewind, AppendsAfterSwitch, ReadsAllRows):
    """Rows of a ClickHouse table, inserted over HTTP.

    With `key` the table is a ReplacingMergeTree that is ordered by these columns: ClickHouse merges rows with the same
    key in the background, so a query sees each key once only with FINAL. Of several rows of a batch with one key the
    last is inserted, by `sequence` if there is one.
    Delivery with `key: id`: idempotent; a repeated batch inserts the same rows, which replace each other. Delivery: at
    least once; a repeated batch inserts its rows again, unless the server knows `insert_deduplication_token` and the
    table keeps a deduplication window. Order: none. Scale: one connection per task and `batch_size` rows per request;
    each request is a part of the table, so seconds between batches; with `key` a shuffle per batch.
    Types: structs, maps and nested arrays are JSON texts in a String column, binary values base64; a timestamp has
    microseconds in a DateTime64 column and whole seconds in a DateTime column. In a column that is not Nullable a null
    becomes the default of the column. A null in a column of `key` is a dead letter (`no-key`).
    """

    type: Literal["clickhouse"] = "clickhouse"
    url: HttpUrl = Field(description="Address of the HTTP interface.", examples=["http://127.0.0.1:8123"])
    database: str = Field("default", description="Database of the table.", min_length=1)
    table: str = Field(description="Table to write to.", examples=["orders"], min_length=1)
    key: list[str] = Field(
        default=[],
        description="Keep one row per value of these columns: the sorting key of a ReplacingMergeTree.",
        examples=[["order_id"]],
    )
    sequence: str | None = Field(
        None,
        description="Column that tells the newer of two rows with one key; the version of a table that is created.",
        examples=["updated_at"],
    )
    create: bool = Field(False, description="Create the table from the columns of the rows when it does not exist.")
    batch_size: int = Field(50_000, gt=0, le=1_000_000, description="Rows per request.")
    batch_bytes: int = Field(10_000_000, gt=0, description="Bytes per request.")
    on_error: OnRefusal = Field("dead_letter", description=ON_ERROR_DESCRIPTION)

    @model_validator(mode="after")
    def _sequence_needs_key(self) -> Self:
        if self.sequence is not None and not self.key:
            raise ValueError("`sequence` chooses between rows with one key, so it needs `key`")
        return self

    @property
    def guarantee(self) -> Delivery:
        return "idempotent" if self.key else "at_least_once"

    @property
    def target(self) -> str:
        return f"{self.database}.{self.table}"

    @property
    def label(self) -> str:
        return f"clickhouse {self.target} at {urlsplit(self.url).netloc}"

    def check(self, context: Context) -> None:
        """The server answers and accepts the login, and the table exists or may be created."""
        found = self._table(context)
        if found is None and not self.create:
            raise ProjectError(
                "sink-missing",
                f"table {self.target} does not exist at {urlsplit(self.url).netloc}",
                hint="create it, fix its name, or write `create: true`",
            )
        if found is not None:
            found.require_key(self.key)

    def check_rows(self, context: Context, columns: Sequence[str], output: str, schema: pa.Schema | None) -> None:
        if output == "update" and not self.key:
            raise ProjectError(
                "sink-needs-key",
                f"the flow's output is 'update', and sink {self.label} has no `key` to replace earlier rows by",
                hint="set key to the columns that identify a row, e.g. those after GROUP BY",
            )
        top_level = [*dict.fromkeys(name.partition(".")[0] for name in columns)]
        require_columns(self.label, "key", self.key, top_level)
        require_columns(self.label, "sequence", [self.sequence] if self.sequence else [], top_level)
        if schema is not None:
            found = self._table(context)
            if found is not None:
                found.require_columns(top_level)

    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        """Insert all rows of the batch, creating the table if necessary."""
        shaped = structured(rows)
        schema = spark_schema(shaped)
        has_tokens = table.knows_setting(self._client(batch.context), "insert_deduplication_token")
        held = self._table_for(schema, batch.context, has_tokens)
        identity = f"{batch.flow}|{batch.generation}|{batch.sink}|{batch.batch_id}"
        write = insert.InsertWrite(
            client=self._client(batch.context),
            query=table.insert_query(self.database, self.table, schema.names),
            identity=identity if has_tokens else None,
            batch_size=self.batch_size,
            batch_bytes=self.batch_bytes,
            report=Report.of(batch, self.label, self.on_error),
        )
        write_counted(table.documents(shaped, schema, held, self.key, self.sequence), write, batch)

    def rewind_effect(self, rewind: Rewind, replace: bool) -> str:
        effect = "replace those of the same key" if self.key else "are added to those already written"
        cannot = "; rows written since cannot be removed" if replace else ""
        return f"{rewind.read_again}: their rows {effect}{cannot}"

    def candidate_effect(self, candidate: Candidate) -> str:
        """Rows stay, unless they replace each other by key: then the table would be a mixture of two definitions."""
        if self.key:
            raise candidate_refused(self, candidate)
        return super().candidate_effect(candidate)

    def _client(self, context: Context) -> ClickHouseClient:
        """A new client: one that has made a request cannot be sent to the workers."""
        return insert.ClickHouseClient(**vars(self.client(self.label, self.url, context)))

    def _table_for(self, schema: pa.Schema, context: Context, has_tokens: bool) -> ClickHouseTable:
        found = self._table(context)
        if found is None and self.create:
            key, client = self.key, self._client(context)
            table.create(client, self.database, self.table, schema, key, self.sequence, deduplicates=has_tokens)
            found = self._table(context)
        if found is None:
            raise ProjectError("sink-missing", f"table {self.target} does not exist", hint="write `create: true`")
        found.require_columns(schema.names)
        return found

    def _table(self, context: Context) -> ClickHouseTable | None:
        return table.find_table(self._client(context), self.database, self.table)
