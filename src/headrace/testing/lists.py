"""A source and a sink that are lists: tests of flows without services."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import PrivateAttr

from headrace.core.capabilities import HoldsView, ReadsAllRows
from headrace.core.context import Batch, Context, ReadContext
from headrace.core.format import Format
from headrace.core.sink import Delivery
from headrace.core.source import RecordSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA = pa.schema([("value", pa.binary()), ("_offset", pa.int64())])


class ListSource(RecordSource):
    """Records fed by a test; the records of one `feed` call arrive in one batch.

    Order: as fed. Replays: the records stay in a folder, so a restarted flow resumes where it stopped.
    """

    metadata: ClassVar[dict[str, str]] = {"_offset": "bigint"}
    position: ClassVar[tuple[str, ...]] = ("_offset",)
    simulated: ClassVar[bool] = True

    type: Literal["list"] = "list"
    folder: str
    _fed: int = PrivateAttr(0)
    _files: int = PrivateAttr(0)

    @property
    def reads(self) -> str:
        return "a list"

    @property
    def fed(self) -> int:
        """The number of records fed so far."""
        return self._fed

    def feed(self, records: Sequence[bytes | None]) -> None:
        """Add a batch of records."""
        folder = Path(self.folder)
        offsets = range(self._fed, self._fed + len(records))
        table = pa.table([pa.array(records, pa.binary()), pa.array(offsets, pa.int64())], schema=_SCHEMA)
        self._fed += len(records)
        self._files += 1
        scratch = folder / f".{self._files:06}.parquet"
        pq.write_table(table, scratch)
        # Spark reads files in the order of their times, which may fall into one millisecond
        modified = time.time() + self._files / 100
        os.utime(scratch, (modified, modified))
        os.replace(scratch, folder / f"{self._files:06}.parquet")

    def read(self, spark: SparkSession, reading: ReadContext) -> DataFrame:
        """The records, one feed per batch."""
        schema = "value binary, _offset bigint"
        if reading.streaming:
            reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
            return reader.parquet(self.folder)
        return spark.read.schema(schema).parquet(self.folder)


class ListSink(HoldsView, ReadsAllRows):
    """Holds the rows of every batch in memory, once, also if a batch is repeated. Of a view it holds the changes, with
    `__op` and `__old`."""

    type: Literal["list"] = "list"
    _batches: dict[tuple[str, int], list[dict[str, Any]]] = PrivateAttr(default_factory=dict)

    @property
    def guarantee(self) -> Delivery:
        """A repeated batch replaces itself."""
        return "exactly_once"

    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        self._batches[(batch.generation, batch.batch_id)] = rows.toArrow().to_pylist()

    def write_changes(self, changes: DataFrame, key: Sequence[str], batch: Batch) -> None:
        self.write_batch(changes, batch)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows so far, in the order of their batches."""
        return [row for key in sorted(self._batches) for row in self._batches[key]]


def _typed(row: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """The row with strings in timestamp columns parsed: YAML and JSON have no timestamps."""
    times = {field.name for field in schema if pa.types.is_timestamp(field.type)}
    return {k: datetime.fromisoformat(v) if k in times and isinstance(v, str) else v for k, v in row.items()}


def encode(rows: Sequence[Mapping[str, Any] | bytes | str], form: Format, context: Context) -> list[bytes]:
    """Encode rows as records of a format. Bytes and strings stay as they are, so that a test can feed bad records."""
    mappings = [row for row in rows if isinstance(row, Mapping)]
    if form.kind() == "json":
        encoded = [json.dumps(row, default=str).encode() for row in mappings]
    else:
        names = list(dict.fromkeys(name for row in mappings for name in row))
        schema = form.record_schema(context)
        assert schema is not None, f"format {form.kind()} needs declared columns to encode rows"
        columns = pa.schema([schema.field(name) for name in names])
        table = pa.Table.from_pylist([_typed(row, columns) for row in mappings], schema=columns)
        encoder = form.encoder(context, columns)
        encoded = [v for batch in table.to_batches() for v in encoder.encode(batch).to_pylist()]
    queue = iter(encoded)
    return [next(queue) if isinstance(row, Mapping) else row.encode() if isinstance(row, str) else row for row in rows]
