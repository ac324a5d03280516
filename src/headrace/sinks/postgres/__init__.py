"""`type: postgres`: rows of a PostgreSQL table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow as pa
from pydantic import Field, PrivateAttr, model_validator

from headrace.core.capabilities import BuildsCandidate, Candidate, DescribesRewind, HoldsView, ReadsAllRows, Rewind
from headrace.core.context import Batch, Context
from headrace.core.durations import Duration
from headrace.core.errors import ProjectError
from headrace.core.lazy import lazy_modules
from headrace.core.records import spark_schema
from headrace.core.rows import drain, structured
from headrace.core.sink import Delivery, Sink
from headrace.sinks._documents import require_columns
from headrace.sinks._views import GONE, as_rows, begins, refuse_options, view_key
from headrace.systems.postgres.connection import PostgresConnection

if TYPE_CHECKING:
    from psycopg import sql
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F

    from headrace.sinks.postgres import candidate as pg_candidate
    from headrace.sinks.postgres import server as pg_server
    from headrace.sinks.postgres import table as pg_table
    from headrace.sinks.postgres import write as pg_write
    from headrace.sinks.postgres.server import SinkServer
    from headrace.sinks.postgres.table import ServerTable
    from headrace.sinks.postgres.write import BatchWrite
else:
    F, sql = lazy_modules("pyspark.sql.functions", "psycopg.sql")
    pg_candidate, pg_server, pg_table, pg_write = lazy_modules(
        "headrace.sinks.postgres.candidate",
        "headrace.sinks.postgres.server",
        "headrace.sinks.postgres.table",
        "headrace.sinks.postgres.write",
    )


class PostgresSink(PostgresConnection, HoldsView, DescribesRewind, BuildsCandidate, ReadsAllRows):
    """Rows of a PostgreSQL table: appended, or with `key` one row per key, replaced by the newest.

    Delivery: exactly once per generation of the flow; one transaction merges the rows of a staging table and records
    the batch in the table `headrace_marks`. Tasks copy their rows into the staging table; a mark has flow, sink,
    generation and batch.
    Order: none between rows; of several rows of a batch with one key the one with the greatest `sequence` is kept, else
    the last, or with `merge` of each column the last that is not null; a row whose `sequence` is smaller than that in
    the table changes nothing. Scale: one connection per task
    while rows are copied; the merge of a batch is one statement on the server, so batches of up to some million rows.
    Types: arrays become arrays, nested ones, structs and maps jsonb. A rewind cannot take rows back.
    A view is held by its key; a null in the key fails the batch. A new generation of it replaces all rows.
    """

    type: Literal["postgres"] = "postgres"
    table: str = Field(description="Table to write to, with its schema if need be.", examples=["orders", "shop.orders"])
    key: list[str] = Field(
        default=[],
        description="Keep one row per value of these columns, which must have a primary key or unique index. Left "
        "out, that of a view is the view's own.",
        examples=[["order_id"]],
    )
    sequence: str | None = Field(
        None, description="Column that decides which of two rows with one key is newer.", examples=["updated_at"]
    )
    delete: str | None = Field(
        None,
        description="Boolean column: true deletes the row with this key. It is not part of the table.",
        examples=["is_deleted"],
    )
    merge: bool = Field(
        False,
        description="Whether a null leaves its column of a row that is there as it is, also between the rows of a "
        "batch; else it becomes null.",
    )
    keep: list[str] = Field(
        default=[],
        description="Columns that are set only where they are null, so that what came first stays.",
        examples=[["first_seen"]],
    )
    create: bool = Field(False, description="Create the table from the columns of the rows when it does not exist.")
    work_schema: str | None = Field(
        None, description="Schema of staging tables and headrace_marks; that of the table if left out."
    )
    timeout: Duration = Field(timedelta(seconds=10), description="How long to wait for a connection.")
    statement_timeout: Duration = Field(
        timedelta(minutes=5),
        gt=timedelta(0),
        description="How long one statement may take, above all the merge of a batch, and how long the server may give "
        "no sign of life while rows are copied; then the batch is tried again.",
    )
    retry_for: Duration = Field(
        timedelta(seconds=30),
        description="How long connecting and merging are retried while the server is unavailable; then the flow is "
        "degraded, and resumes when the server is back.",
    )
    _like: str | None = PrivateAttr(None)
    """The table that serves as a template for a missing one."""
    _of_view: bool = PrivateAttr(False)
    """Whether it holds a view, whose rows may be deleted."""

    @model_validator(mode="after")
    def _for_a_key(self) -> Self:
        for name in ("sequence", "delete", "merge", "keep"):
            if getattr(self, name) and not self.key:
                raise ValueError(f"`{name}` is about rows that are there already, so it needs `key`")
        if self.delete and (self.merge or self.keep):
            raise ValueError("`delete` takes whole rows, and `merge` and `keep` are about columns: two sinks do both")
        if set(self.keep) & {*self.key, self.sequence}:
            raise ValueError("columns of `key` and `sequence` cannot be in `keep`")
        return self

    @property
    def guarantee(self) -> Delivery:
        """The transaction of the rows contains the mark of the batch."""
        return "exactly_once"

    @property
    def target(self) -> str:
        return self.table

    @property
    def label(self) -> str:
        """Table and server, without names and passwords."""
        return f"postgres {self.table} at {self.address}"

    def of_view(self, key: Sequence[str]) -> PostgresSink:
        refuse_options(self, "sequence", "delete", "merge", "keep")
        held = self.model_copy(update={"key": view_key(self, "key", self.key, key)})
        held._of_view = True
        return held

    def server(self, context: Context) -> SinkServer:
        """How to connect; fit to be sent to the workers."""
        return pg_server.SinkServer(
            self.label,
            **self.server_parameters(context, self.timeout),
            retry_for=self.retry_for.total_seconds(),
            statement_timeout=self.statement_timeout.total_seconds(),
        )

    def check(self, context: Context) -> None:
        """The server accepts the login, the table exists or may be created, and the user may write to it."""
        with pg_server.explained(self.label), self.server(context).connect() as connection:
            table = self._found(connection)
            if table is None and not self.create:
                raise ProjectError(
                    "sink-missing",
                    f"table {self.table} does not exist at {self.label.partition(' at ')[2]}",
                    hint="create it, fix its name, or write `create: true`",
                )
            self._check_rights(connection, table)

    def check_rows(self, context: Context, columns: Sequence[str], output: str, schema: pa.Schema | None) -> None:
        """Updates need a key, options name existing columns, and the rows fit the table."""
        if output == "update" and not self.key:
            raise ProjectError(
                "sink-needs-key",
                f"the flow's output is 'update', and sink {self.label} has no `key` to replace earlier rows by",
                hint="set key to the columns that identify a row, e.g. those after GROUP BY",
            )
        top_level = [*dict.fromkeys(name.partition(".")[0] for name in columns)]
        require_columns(self.label, "key", self.key, top_level)
        for option in ("sequence", "delete"):
            name = getattr(self, option)
            require_columns(self.label, option, [name] if name else [], top_level)
        require_columns(self.label, "keep", self.keep, top_level)
        if schema is not None and not any("." in name for name in columns):
            self._check_types(context, schema)

    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        shaped = structured(rows)
        schema = self._held(spark_schema(shaped))
        server = self.server(batch.context)
        with pg_server.explained(self.label):
            with server.connect(autocommit=True) as connection:
                write = self._write(connection, schema, batch)
                written = write.is_written(connection)
                staging = None if written else write.stage(connection)
            if staging is None:
                drain(rows)
                return
            try:
                staged = self._staged(shaped, schema, write, staging)
                write.commit(staging, staged)
            except Exception:  # whatever the cause, the staged rows are no longer needed
                write.discard(staging)
                raise
        batch.tally.add(batch.flow, batch.sink, "written", sum(count for _, count in staged))

    def write_changes(self, changes: DataFrame, key: Sequence[str], batch: Batch) -> None:
        self.of_view(key).model_copy(update={"delete": GONE}).write_batch(as_rows(changes), batch)

    def rewind_effect(self, rewind: Rewind, replace: bool) -> str:
        effect = "replace those of the same key" if self.key else "are added to those already written"
        cannot = "; rows written since cannot be removed" if replace else ""
        return f"{rewind.read_again}: their rows {effect}{cannot}"

    def candidate_effect(self, candidate: Candidate) -> str:
        """All rows are replaced, if the user has the privilege to delete them."""
        with pg_server.explained(self.label), self.server(candidate.context).connect() as connection:
            self._check_rights(connection, self._found(connection), further=["DELETE"])
        return (
            f"{self.candidate_sink(candidate).target} is filled; at the switch its rows replace all of {self.table}, "
            "also those of other writers, in one transaction"
        )

    def candidate_sink(self, candidate: Candidate) -> Sink:
        separate = self.model_copy(update={"table": pg_candidate.candidate_name(self.table, candidate), "create": True})
        separate._like = self.table
        return separate

    def publish(self, candidate: Candidate, spark: SparkSession) -> None:
        with pg_server.explained(self.label), self.server(candidate.context).connect() as connection:
            filled = self.candidate_sink(candidate).target
            pg_candidate.replace_rows(connection, filled, self.table, candidate, self.work_schema)

    def drop_candidate(self, candidate: Candidate) -> None:
        with pg_server.explained(self.label), self.server(candidate.context).connect() as connection:
            pg_candidate.drop_table(connection, self.candidate_sink(candidate).target)

    def _staged(self, rows: DataFrame, schema: pa.Schema, write: BatchWrite, staging: Any) -> list[tuple[int, int]]:
        columns = tuple(schema.names)
        if self.delete is not None:
            gone = F.coalesce(F.col(f"`{self.delete}`"), F.lit(False))
            texts = pg_table.as_texts(rows.withColumn(pg_write.GONE, gone), schema, write.merge.table, pg_write.GONE)
            columns = (*columns, pg_write.GONE)
        else:
            texts = pg_table.as_texts(rows, schema, write.merge.table)
        staged = texts.mapInArrow(pg_write.CopyWrite(write.server, staging, columns), pg_write.STAGED).collect()
        return [(row["attempt"], row["rows"]) for row in staged]

    def _write(self, connection: Any, schema: pa.Schema, batch: Batch) -> BatchWrite:
        table = self._made(connection, schema)
        pg_table.require_fit(table, schema, self.key)
        schema_of_work = self.work_schema or table.schema
        marks = sql.Identifier(schema_of_work, pg_write.MARKS)
        merge = pg_write.Merge(
            table=table,
            marks=marks,
            columns=tuple(schema.names),
            key=tuple(self.key),
            sequence=self.sequence,
            deletes=self.delete is not None,
            merges=self.merge,
            keep=tuple(self.keep),
        )
        return pg_write.BatchWrite(
            self.server(batch.context), batch, merge, schema_of_work, self._of_view and begins(batch)
        )

    def _held(self, schema: pa.Schema) -> pa.Schema:
        """The columns that are part of the table."""
        return pa.schema([field for field in schema if field.name != self.delete])

    def _found(self, connection: Any) -> ServerTable | None:
        return pg_table.find_table(connection, self.table)

    def _made(self, connection: Any, schema: pa.Schema) -> ServerTable:
        found = self._found(connection)
        if found is None and self._like is not None:
            pg_candidate.make_like(connection, self.table, self._like)
            found = self._found(connection)
        if found is None and self.create:
            given, name = pg_table.split_name(self.table)
            place = given or connection.execute("SELECT current_schema()").fetchone()[0]
            connection.execute(pg_table.create_statement(place, name, schema, self.key))
            found = self._found(connection)
        if found is None:
            raise ProjectError("sink-missing", f"table {self.table} does not exist", hint="write `create: true`")
        return found

    def _check_types(self, context: Context, schema: pa.Schema) -> None:
        if self.delete is not None and not pa.types.is_boolean(schema.field(self.delete).type):
            raise ProjectError(
                "sink-column-type",
                f"column '{self.delete}' of sink {self.label} is {schema.field(self.delete).type}",
                hint="`delete` is a boolean: cast it in SQL",
            )
        with pg_server.explained(self.label), self.server(context).connect() as connection:
            table = self._found(connection)
        if table is not None:
            pg_table.require_fit(table, self._held(schema), self.key)

    def _check_rights(self, connection: Any, table: ServerTable | None, further: Sequence[str] = ()) -> None:
        """Raise an error with the missing privileges, as in GRANT."""
        place = table.schema if table else connection.execute("SELECT current_schema()").fetchone()[0]
        work = self.work_schema or place
        lacking = []
        if not connection.execute("SELECT has_schema_privilege(%s, 'CREATE')", (work,)).fetchone()[0]:
            lacking.append(f"CREATE ON SCHEMA {work}")
        deletes = self._of_view or self.delete is not None
        wanted = ["INSERT", "SELECT", *(["UPDATE"] if self.key else []), *(["DELETE"] if deletes else []), *further]
        for right in wanted if table else []:
            assert table is not None
            named = table.identifier.as_string(connection)
            if not connection.execute("SELECT has_table_privilege(%s, %s)", (named, right)).fetchone()[0]:
                lacking.append(f"{right} ON {self.table}")
        if lacking:
            raise ProjectError(
                "service-authentication",
                f"{self.label}: the user lacks {'; '.join(lacking)}",
                hint=f"run as its owner: GRANT {lacking[0]} TO the user",
            )
