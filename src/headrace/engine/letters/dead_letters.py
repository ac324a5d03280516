"""Dead letters: records that could not be processed, with reason and position.

The task that meets a bad record writes it, into a file named after the first record of the file. A batch that runs
again writes the same files again. The id of a dead letter is derived from its stream and position, so that readers
count each once.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.files.state_files import StatePath
from headrace.core.schema import TIMESTAMP
from headrace.engine.letters.task_rows import TaskWriter, locked_files
from headrace.engine.state.batch_clock import running_batch
from headrace.engine.state.parquet_files import read_tables, write_table

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("flow", pa.string()),
        ("stream", pa.string()),
        ("generation", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("position", pa.string()),
        ("value", pa.binary()),
        ("met_at", TIMESTAMP),
        ("metadata", pa.string()),
        ("batch", pa.int64()),
    ]
)
"""`metadata` has the metadata columns that the flow uses, as JSON, so that a replay has them too. `batch` is the
micro-batch that met the record: until it is committed it may run again, and may then process the record."""


@dataclass
class DeadLetterWriter(TaskWriter):
    """Writes the dead letters of one task."""

    schema: ClassVar[pa.Schema] = SCHEMA

    keep_value: bool = True

    def add(
        self,
        reason: str,
        detail: str,
        position: dict[str, Any],
        value: bytes | None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        address = json.dumps(position, default=str)
        row = {
            "reason": reason,
            "detail": detail,
            "position": address,
            "value": value if self.keep_value else None,
            "metadata": json.dumps(metadata, default=_json_value) if metadata else None,
        }
        self._append(address, row, len(value or b""))

    def next_file(self) -> tuple[str, int | None]:
        batch = running_batch()
        series = self.generation if batch is None else f"{self.generation}-{batch:010}"
        return f"{series}-{self._rows[0]['id']}", batch


def _json_value(value: Any) -> str:
    """The form that Spark reads from JSON: bytes in base64, times in ISO form."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def forget_batch(folder: StatePath, flow: str, generation: str, batch: int) -> None:
    """Remove the dead letters of a batch that is about to run again: with a changed project it may have fewer."""
    for file in (folder / flow).glob(f"*/{generation}-{batch:010}-*.parquet"):
        file.unlink(missing_ok=True)
    for file in (folder / flow).glob("*/merged-*.parquet"):
        table = read_tables([file], None)
        of_batch = pc.and_(pc.equal(table["generation"], generation), pc.equal(table["batch"], batch))
        others = table.filter(pc.invert(pc.fill_null(of_batch, False)))
        if others.num_rows < table.num_rows:
            write_table(file, others)


def read_dead_letters(folder: StatePath, flow: str | None = None) -> pa.Table:
    """All dead letters below a folder, each once per flow, in no particular order."""
    with locked_files(folder, flow) as files:
        table = read_tables(files, SCHEMA) if files else SCHEMA.empty_table()
    keys = table.group_by(["flow", "id"], use_threads=False).aggregate([("met_at", "min")])
    if keys.num_rows == table.num_rows:
        return table
    seen: set[tuple[str, str]] = set()
    first = []
    for index, pair in enumerate(zip(table["flow"].to_pylist(), table["id"].to_pylist(), strict=True)):
        if pair not in seen:
            seen.add(pair)
            first.append(index)
    return table.take(first)
