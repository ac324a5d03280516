"""Late rows: decoded rows that arrived after their windows were closed, stored like dead letters.

The task that meets a late row writes it, into a file named after generation, batch and task. A batch that runs again
writes the same files again. The id of a row is derived from its stream and position. Where a source has no positions,
it is derived from the row's place in the batch, which stays the same as long as Spark splits the batch alike.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, ClassVar

import pyarrow as pa

from headrace.core.files.state_files import StatePath, in_order
from headrace.core.schema import TIMESTAMP
from headrace.engine.letters.task_rows import TaskWriter
from headrace.engine.state.batch_clock import BatchTimes
from headrace.engine.state.parquet_files import read_tables

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("flow", pa.string()),
        ("stream", pa.string()),
        ("generation", pa.string()),
        ("batch", pa.int64()),
        ("event_time", TIMESTAMP),
        ("watermark", TIMESTAMP),
        ("position", pa.string()),
        ("row", pa.string()),
        ("met_at", TIMESTAMP),
    ]
)


@dataclass
class LateRowWriter(TaskWriter):
    """Writes the late rows of one task."""

    schema: ClassVar[pa.Schema] = SCHEMA

    _count: int = 0
    _files: int = 0
    _batch: int | None = None
    _series: str = ""

    def add(
        self, rows: pa.RecordBatch, column: str, positions: Sequence[dict[str, Any] | None], at: BatchTimes
    ) -> None:
        """Add rows; `column` is their event time."""
        self._batch = at.batch_id
        self._series = f"{self.generation}-{at.batch_id:010}-{at.task:05}"
        times = rows.column(column).cast(TIMESTAMP).cast(pa.int64()).to_pylist()
        for time, text, position in zip(times, json_texts(rows), positions, strict=True):
            address = None if position is None else json.dumps(position, default=str)
            row = {"event_time": time, "watermark": at.watermark, "position": address, "row": text}
            self._append(address or f"{self._series}-{self._count}", row, len(text))
            self._count += 1

    def next_file(self) -> tuple[str, int | None]:
        self._files += 1
        return f"{self._series}-{self._files - 1:03}", self._batch


def json_texts(rows: pa.RecordBatch) -> list[str]:
    """Rows as JSON: times in ISO form, bytes as text if they are UTF-8, else in base64.

    Python has no times before year 1 and after 9999; a batch with such a time has microseconds since 1970 instead.
    """
    try:
        values = rows.to_pylist()
    except (OverflowError, ValueError):
        kinds = [pa.int64() if pa.types.is_timestamp(field.type) else field.type for field in rows.schema]
        columns = [column.cast(kind) for column, kind in zip(rows.columns, kinds, strict=True)]
        values = pa.RecordBatch.from_arrays(columns, names=rows.schema.names).to_pylist()
    return [json.dumps(row, default=_json_value, ensure_ascii=False) for row in values]


def _json_value(value: Any) -> Any:
    match value:
        case datetime() | date():
            return value.isoformat()
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return base64.b64encode(value).decode()
    return str(value)


def read_late_rows(folder: StatePath, flow: str | None = None) -> pa.Table:
    """All late rows below a folder, each once per flow and generation, in no particular order."""
    base = folder / flow if flow else folder
    files = in_order(base.rglob("*.parquet")) if base.is_dir() else []
    if not files:
        return SCHEMA.empty_table()
    table = read_tables(files, SCHEMA)
    numbered = table.append_column("_place", pa.array(range(table.num_rows), pa.int64()))
    first = numbered.group_by(["flow", "generation", "id"], use_threads=False).aggregate([("_place", "min")])
    return table if first.num_rows == table.num_rows else table.take(first["_place_min"])
