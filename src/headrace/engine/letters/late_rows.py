"""Late rows: decoded rows that came when their windows were closed, kept beside the dead letters.

They are written by the tasks that meet them, into files named after generation, batch and task. A batch that runs
again writes the same files again. A row's id is made of its stream and position; where a source has no positions, of
its place in the batch, which is the same again as long as Spark splits the batch alike.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa

from headrace.core.files.state_files import StatePath, in_order
from headrace.core.schema import TIMESTAMP
from headrace.engine.state.batch_clock import BatchTimes
from headrace.engine.state.parquet_files import read_tables, write_table

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
_FLUSH_BYTES = 8 << 20


@dataclass
class LateBox:
    """Collects the late rows of one task. Pickled to executors while empty."""

    folder: StatePath
    flow: str
    stream: str
    generation: str
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _bytes: int = 0
    _seen: int = 0
    _parts: int = 0
    _name: str = ""

    def add(
        self, rows: pa.RecordBatch, column: str, positions: Sequence[dict[str, Any] | None], at: BatchTimes
    ) -> None:
        """Keep rows; `column` is their event time."""
        self._name = f"{self.generation}-{at.batch_id:010}-{at.task:05}"
        times = rows.column(column).cast(TIMESTAMP).cast(pa.int64()).to_pylist()
        for time, text, position in zip(times, json_texts(rows), positions, strict=True):
            address = None if position is None else json.dumps(position, default=str)
            self._rows.append(
                {
                    "id": _id(self.stream, address or f"{self._name}-{self._seen}"),
                    "flow": self.flow,
                    "stream": self.stream,
                    "generation": self.generation,
                    "batch": at.batch_id,
                    "event_time": time,
                    "watermark": at.watermark,
                    "position": address,
                    "row": text,
                    "met_at": datetime.now(UTC),
                }
            )
            self._seen += 1
            self._bytes += len(text) + 300
            if self._bytes >= _FLUSH_BYTES:
                self.flush()

    def flush(self) -> None:
        """Make what was kept durable. Must have happened before the task ends."""
        if not self._rows:
            return
        name = f"{self._name}-{self._parts:03}.parquet"
        table = pa.Table.from_pylist(self._rows, schema=SCHEMA)
        write_table(self.folder / self.flow / self.stream / name, table)
        self._rows = []
        self._bytes = 0
        self._parts += 1


def _id(stream: str, address: str) -> str:
    return hashlib.sha256(f"{stream}|{address}".encode()).hexdigest()[:24]


def json_texts(rows: pa.RecordBatch) -> list[str]:
    """Rows as JSON: times in ISO form, bytes as text where they are text, else in base64.

    Python has no times before year 1 and after 9999; where there are such, times are microseconds since 1970.
    """
    try:
        found = rows.to_pylist()
    except (OverflowError, ValueError):
        kinds = [pa.int64() if pa.types.is_timestamp(field.type) else field.type for field in rows.schema]
        columns = [column.cast(kind) for column, kind in zip(rows.columns, kinds, strict=True)]
        found = pa.RecordBatch.from_arrays(columns, names=rows.schema.names).to_pylist()
    return [json.dumps(row, default=_plain, ensure_ascii=False) for row in found]


def _plain(value: Any) -> Any:
    match value:
        case datetime() | date():
            return value.isoformat()
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return base64.b64encode(value).decode()
    return str(value)


def read_late(folder: StatePath, flow: str | None = None) -> pa.Table:
    """All late rows below a folder, each once per flow and generation, in no particular order."""
    base = folder / flow if flow else folder
    files = in_order(base.rglob("*.parquet")) if base.is_dir() else []
    if not files:
        return SCHEMA.empty_table()
    table = read_tables(files, SCHEMA)
    numbered = table.append_column("_place", pa.array(range(table.num_rows), pa.int64()))
    first = numbered.group_by(["flow", "generation", "id"], use_threads=False).aggregate([("_place", "min")])
    return table if first.num_rows == table.num_rows else table.take(first["_place_min"])
