"""A source and a sink that are lists, for tests of flows without any service."""

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
    """Records that a test feeds in; what is fed in one call arrives in one batch.

    Order: as fed. Replays: the records stay in a folder, so a restarted flow goes on where it was.
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
        """What was fed."""
        return "a list"

    def feed(self, records: Sequence[bytes | None]) -> None:
        """Add a batch of records."""
        folder = Path(self.folder)
        offsets = range(self._fed, self._fed + len(records))
        table = pa.table([pa.array(records, pa.binary()), pa.array(offsets, pa.int64())], schema=_SCHEMA)
        self._fed += len(records)
        self._files += 1
        scratch = folder / f".{self._files:06}.parquet"
        pq.write_table(table, scratch)
        # Spark takes files in the order of their times, which may fall into one millisecond
        moment = time.time() + self._files / 100
        os.utime(scratch, (moment, moment))
        os.replace(scratch, folder / f"{self._files:06}.parquet")

    def read(self, spark: SparkSession, context: ReadContext) -> DataFrame:
        """The fed records, one feed per batch."""
        schema = "value binary, _offset bigint"
        if context.streaming:
            reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
            return reader.parquet(self.folder)
        return spark.read.schema(schema).parquet(self.folder)


class ListSink(HoldsView, ReadsAllRows):
    """Keeps every batch in a list, once, also when a batch runs again. Of a view it keeps the changes, as `__op` and
    `__old` tell them. Memory is the only limit."""

    type: Literal["list"] = "list"
    _batches: dict[tuple[str, int], list[dict[str, Any]]] = PrivateAttr(default_factory=dict)

    @property
    def guarantee(self) -> Delivery:
        """A batch that runs again replaces itself."""
        return "exactly_once"

    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        """Keep the rows of one batch."""
        self._batches[(batch.generation, batch.batch_id)] = rows.toArrow().to_pylist()

    def write_changes(self, changes: DataFrame, key: Sequence[str], batch: Batch) -> None:
        """Keep the changes of one batch."""
        self.write_batch(changes, batch)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows so far, in the order of their batches."""
        return [row for key in sorted(self._batches) for row in self._batches[key]]


def _typed(row: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """The row with texts in columns of times made times: YAML and JSON have no others."""
    times = {field.name for field in schema if pa.types.is_timestamp(field.type)}
    return {k: datetime.fromisoformat(v) if k in times and isinstance(v, str) else v for k, v in row.items()}


def encode(rows: Sequence[Mapping[str, Any] | bytes | str], form: Format, context: Context) -> list[bytes]:
    """Rows as records of a format. Bytes and text are taken as they are, so that a test can feed bad records."""
    given = [row for row in rows if isinstance(row, Mapping)]
    if form.kind() == "json":
        made = [json.dumps(row, default=str).encode() for row in given]
    else:
        names = list(dict.fromkeys(name for row in given for name in row))
        schema = form.record_schema(context)
        assert schema is not None, f"format {form.kind()} must know its columns to be fed rows"
        wanted = pa.schema([schema.field(name) for name in names])
        table = pa.Table.from_pylist([_typed(row, wanted) for row in given], schema=wanted)
        encoder = form.encoder(context, wanted)
        made = [v for batch in table.to_batches() for v in encoder.encode(batch).to_pylist()]
    queue = iter(made)
    return [next(queue) if isinstance(row, Mapping) else row.encode() if isinstance(row, str) else row for row in rows]
