"""A batch on its way into a PostgreSQL table, exactly once.

1. The driver creates a staging table. 2. Tasks copy their rows into it, each in its own transaction. 3. One
transaction on the driver takes the mark of the batch, merges what the successful tasks have staged and drops the
staging table. A batch that runs again finds the mark; an attempt that died leaves a staging table, which the next one
removes. Staging tables are unlogged, so a server that crashes empties them: hence what is merged is counted first.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pyarrow.csv
from psycopg import sql

from headrace.core.context import Batch
from headrace.core.errors import ProjectError
from headrace.core.lazy import lazy_modules
from headrace.core.schema import to_ddl
from headrace.sinks.postgres.server import SinkServer, explained
from headrace.sinks.postgres.table import ServerTable, identifiers
from headrace.systems.services import SERVICE_BACKOFF, service_unavailable

if TYPE_CHECKING:
    import pyspark
else:
    pyspark = lazy_modules("pyspark")

MARKS = "headrace_marks"

_LOG = logging.getLogger(__name__)
_STAGED_SCHEMA = pa.schema([("attempt", pa.int64()), ("rows", pa.int64())])
STAGED = to_ddl(_STAGED_SCHEMA)
_TASK, _ATTEMPT, _ROW, GONE = "_headrace_task", "_headrace_attempt", "_headrace_row", "_headrace_gone"
_CSV = pyarrow.csv.WriteOptions(include_header=False)
# an attempt of another generation may still be running, so it is left alone for this long
_LONG_AGO_SECONDS = 3600


@dataclass(frozen=True)
class StagingTable:
    """The staging table of one attempt."""

    schema: str
    name: str

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @staticmethod
    def of(batch: Batch, schema: str) -> StagingTable:
        """A new name, derived from flow, sink, generation and time."""
        stamp = f"{int(time.time()):08x}{secrets.token_hex(3)}"
        return StagingTable(schema, f"{_prefix(batch)}{_digest(batch.generation)}_{stamp}")


def _prefix(batch: Batch) -> str:
    return f"headrace_stage_{_digest(f'{batch.flow}|{batch.sink}')}_"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass(frozen=True)
class CopyWrite:
    """Stages the rows of one task; called by Spark with Arrow batches. Pickled to the workers."""

    server: SinkServer
    staging: StagingTable
    columns: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        task, attempt = _task()
        with explained(self.server.label), self.server.connect() as connection:
            rows = self._copy(connection, first, filled, (task, attempt))
        yield pa.RecordBatch.from_arrays([pa.array([attempt]), pa.array([rows])], schema=_STAGED_SCHEMA)

    def _copy(
        self, connection: Any, first: pa.RecordBatch, others: Iterator[pa.RecordBatch], place: tuple[int, int]
    ) -> int:
        names = [*self.columns, _TASK, _ATTEMPT, _ROW]
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)")
        rows = 0
        # how times without a zone are read; only for this transaction, as a pool may share the connection
        connection.execute("SET LOCAL timezone = 'UTC'")
        connection.execute("SET LOCAL datestyle = 'ISO'")
        with connection.cursor().copy(statement.format(self.staging.identifier, identifiers(names))) as copy:
            batch: pa.RecordBatch | None = first
            while batch is not None:
                copy.write(_csv(batch, *place, rows))
                rows += batch.num_rows
                batch = next(others, None)
        return rows


def _csv(batch: pa.RecordBatch, task: int, attempt: int, first: int) -> memoryview:
    length = batch.num_rows
    places = [pa.repeat(pa.scalar(task), length), pa.repeat(pa.scalar(attempt), length)]
    numbers = pa.array(range(first, first + length), pa.int64())
    names = [f"c{number}" for number in range(batch.num_columns + 3)]
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(pa.RecordBatch.from_arrays([*batch.columns, *places, numbers], names=names), sink, _CSV)
    return memoryview(sink.getvalue())


def _task() -> tuple[int, int]:
    """The partition, and the attempt at it, which no other has."""
    task = pyspark.TaskContext.get()
    assert task is not None, "rows are staged by tasks"
    return task.partitionId(), task.taskAttemptId()


@dataclass(frozen=True)
class Merge:
    """How staged rows become rows of the table."""

    table: ServerTable
    marks: sql.Identifier
    columns: tuple[str, ...]
    key: tuple[str, ...]
    sequence: str | None
    deletes: bool
    merges: bool = False
    """Whether a null leaves its column as it is."""
    keep: tuple[str, ...] = ()
    """Columns that are set only where they are null."""

    def statement(self, staging: sql.Identifier) -> sql.Composed:
        """One statement that takes the attempts to merge as its parameter. Pure, so a test needs no server."""
        if not self.key:
            append = sql.SQL(
                "INSERT INTO {table} ({columns}) SELECT {columns} FROM {staging} WHERE {attempt} = ANY(%s)"
            )
            return self._format(append, staging)
        last = (
            "WITH last AS (SELECT DISTINCT ON ({key}) {taken}{gone} FROM {staging} WHERE {attempt} = ANY(%s) "
            "ORDER BY {key}, {newest})"
        )
        remove = ", removed AS (DELETE FROM {table} AS held USING last WHERE {same} AND last.{gone_name}{newer})"
        put = " INSERT INTO {table} AS held ({columns}) SELECT {columns} FROM last{alive} ON CONFLICT ({key}) DO "
        text = last + (remove if self.deletes else "") + put + self._change()
        return self._format(sql.SQL(text), staging)

    def _change(self) -> str:
        if set(self.columns) == set(self.key):
            return "NOTHING"
        return "UPDATE SET {changes}" + (" WHERE {excluded_newer}" if self.sequence else "")

    def _format(self, text: sql.SQL, staging: sql.Identifier) -> sql.Composed:
        sequence = sql.Identifier(self.sequence) if self.sequence else sql.SQL("")
        newer = sql.SQL("(held.{0} IS NULL OR {1}.{0} >= held.{0})")
        changed = [name for name in self.columns if name not in self.key]
        return text.format(
            table=self.table.identifier,
            staging=staging,
            columns=identifiers(self.columns),
            key=identifiers(self.key),
            attempt=sql.Identifier(_ATTEMPT),
            taken=sql.SQL(", ").join(self._taken(name) for name in self.columns),
            newest=self._order("DESC"),
            gone=sql.SQL(", {}").format(sql.Identifier(GONE)) if self.deletes else sql.SQL(""),
            gone_name=sql.Identifier(GONE),
            alive=sql.SQL(" WHERE NOT {}").format(sql.Identifier(GONE)) if self.deletes else sql.SQL(""),
            same=sql.SQL(" AND ").join(sql.SQL("held.{0} = last.{0}").format(sql.Identifier(n)) for n in self.key),
            newer=sql.SQL(" AND ") + newer.format(sequence, sql.SQL("last")) if self.sequence else sql.SQL(""),
            excluded_newer=newer.format(sequence, sql.SQL("excluded")) if self.sequence else sql.SQL(""),
            changes=sql.SQL(", ").join(self._changed(name) for name in changed),
        )

    def _order(self, direction: str) -> sql.Composed:
        """Which of the staged rows of a key comes first: the newest, or the oldest."""
        nulls = "LAST" if direction == "DESC" else "FIRST"
        parts = (
            [sql.SQL(f"{{}} {direction} NULLS {nulls}").format(sql.Identifier(self.sequence))] if self.sequence else []
        )
        parts += [sql.SQL(f"{{}} {direction}").format(sql.Identifier(name)) for name in (_TASK, _ROW)]
        return sql.SQL(", ").join(parts)

    def _taken(self, name: str) -> sql.Composable:
        """A column of the staged rows of a key: that of the newest row, or of the first or last that has a value."""
        column = sql.Identifier(name)
        if name in self.key or not (self.merges or name in self.keep):
            return column
        return sql.SQL("first_value({0}) OVER (PARTITION BY {1} ORDER BY {0} IS NULL, {2}) AS {0}").format(
            column, identifiers(self.key), self._order("ASC" if name in self.keep else "DESC")
        )

    def _changed(self, name: str) -> sql.Composed:
        value = "excluded.{0}"
        if name in self.keep:
            value = "COALESCE(held.{0}, excluded.{0})"
        elif self.merges:
            value = "COALESCE(excluded.{0}, held.{0})"
        return sql.SQL("{0} = " + value).format(sql.Identifier(name))


def make_marks(connection: Any, marks: sql.Identifier) -> None:
    """Make the table of marks when it is missing."""
    connection.execute(
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {} (flow text, sink text, generation text, batch_id bigint NOT NULL, "
            "written_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (flow, sink, generation))"
        ).format(marks)
    )


@dataclass(frozen=True)
class BatchWrite:
    """One batch of one sink, seen from the driver."""

    server: SinkServer
    batch: Batch
    merge: Merge
    work_schema: str
    replaces_all: bool = False
    """Whether all rows of the target come now: what earlier generations wrote goes."""

    def is_written(self, connection: Any) -> bool:
        """Whether the mark is there. Makes the table of marks when it is missing."""
        make_marks(connection, self.merge.marks)
        found = connection.execute(
            sql.SQL("SELECT 1 FROM {} WHERE flow = %s AND sink = %s AND generation = %s AND batch_id >= %s").format(
                self.merge.marks
            ),
            self._mark,
        ).fetchone()
        return found is not None

    def stage(self, connection: Any) -> StagingTable:
        """Make the staging table: the columns of the target, and where each row comes from."""
        self._remove_stale(connection)
        staging = StagingTable.of(self.batch, self.work_schema)
        connection.execute(
            sql.SQL(
                "CREATE UNLOGGED TABLE {} WITH (autovacuum_enabled = false) AS SELECT {} FROM {} WITH NO DATA"
            ).format(staging.identifier, identifiers(self.merge.columns), self.merge.table.identifier)
        )
        added = {_TASK: "integer", _ATTEMPT: "bigint", _ROW: "bigint"} | (
            {GONE: "boolean"} if self.merge.deletes else {}
        )
        changes = [
            sql.SQL("ADD COLUMN {} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in added.items()
        ]
        # a null is equal to nothing, so such a row would be added again and again
        changes += [sql.SQL("ALTER COLUMN {} SET NOT NULL").format(sql.Identifier(name)) for name in self.merge.key]
        connection.execute(sql.SQL("ALTER TABLE {} {}").format(staging.identifier, sql.SQL(", ").join(changes)))
        return staging

    def commit(self, staging: StagingTable, staged: Sequence[tuple[int, int]]) -> None:
        """Merge and mark in one transaction, retried while the server is unavailable: the mark makes it idempotent."""
        retries = SERVICE_BACKOFF.within(self.server.retry_for)
        while True:
            try:
                with self.server.connect() as connection:
                    self._commit(connection, staging, staged)
                    return
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                _LOG.warning("%s: merging batch %s: %s", self.server.label, self.batch.batch_id, error)
                if not retries.wait():
                    raise

    def discard(self, staging: StagingTable) -> None:
        """Drop the staging table, if the server is available; else the next attempt does."""
        with suppress(psycopg.Error, ProjectError), replace(self.server, retry_for=0.0).connect() as connection:
            self._drop(connection, staging)

    def _commit(self, connection: Any, staging: StagingTable, staged: Sequence[tuple[int, int]]) -> None:
        connection.execute(f"SET LOCAL statement_timeout = {round(self.server.statement_timeout * 1000)}")
        # the mark first: its lock lets a second attempt at the same batch wait, and then see that it is too late
        marked = connection.execute(
            sql.SQL(
                "INSERT INTO {marks} AS m (flow, sink, generation, batch_id) VALUES (%s, %s, %s, %s) "
                "ON CONFLICT (flow, sink, generation) DO UPDATE SET batch_id = excluded.batch_id, written_at = now() "
                "WHERE m.batch_id < excluded.batch_id"
            ).format(marks=self.merge.marks),
            self._mark,
        )
        if marked.rowcount == 1:
            attempts = [attempt for attempt, _ in staged]
            self._require_all(connection, staging, attempts, sum(rows for _, rows in staged))
            if self.replaces_all:
                self._empty(connection)
            connection.execute(self.merge.statement(staging.identifier), (attempts,))
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(staging.identifier))

    def _empty(self, connection: Any) -> None:
        """Delete all rows, if an earlier generation of the flow has marked the table: other rows are not its own."""
        earlier = sql.SQL("SELECT 1 FROM {} WHERE flow = %s AND sink = %s AND generation <> %s").format(
            self.merge.marks
        )
        if connection.execute(earlier, self._mark[:3]).fetchone() is not None:
            connection.execute(sql.SQL("DELETE FROM {}").format(self.merge.table.identifier))

    def _require_all(self, connection: Any, staging: StagingTable, attempts: list[int], expected: int) -> None:
        counted = sql.SQL("SELECT count(*) FROM {} WHERE {} = ANY(%s)").format(
            staging.identifier, sql.Identifier(_ATTEMPT)
        )
        (found,) = connection.execute(counted, (attempts,)).fetchone()
        if found != expected:
            raise service_unavailable(
                self.server.label, f"it has {found} of {expected} staged rows, so it was restarted"
            )

    @property
    def _mark(self) -> tuple[str, str, str, int]:
        return self.batch.flow, self.batch.sink, self.batch.generation, self.batch.batch_id

    def _remove_stale(self, connection: Any) -> None:
        """Drop staging tables of dead attempts, except those that are in use."""
        prefix = _prefix(self.batch)
        found = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s AND starts_with(tablename, %s)",
            (self.work_schema, prefix),
        ).fetchall()
        for (name,) in found:
            generation, _, stamp = name.removeprefix(prefix).partition("_")
            age = time.time() - int(stamp[:8], 16)
            if generation == _digest(self.batch.generation) or age > _LONG_AGO_SECONDS:
                self._drop(connection, StagingTable(self.work_schema, name))

    def _drop(self, connection: Any, staging: StagingTable) -> None:
        try:
            with connection.transaction():
                connection.execute("SET LOCAL lock_timeout = '2s'")
                connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(staging.identifier))
        except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege) as error:
            _LOG.warning("%s: staging table %s stays: %s", self.server.label, staging.name, error)
