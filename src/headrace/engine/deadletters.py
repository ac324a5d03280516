"""Dead letters: records that could not be processed, kept with reason and position.

They are written by the tasks that meet them, into files named after the first record they hold. A batch that runs
again writes the same files again; a letter's id is made of its stream and position, so reading counts each once.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

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
        ("met_at", pa.timestamp("us", tz="UTC")),
    ]
)
_FLUSH_BYTES = 8 << 20


@dataclass
class LetterBox:
    """Collects the dead letters of one task. Pickled to executors while empty."""

    folder: str
    flow: str
    stream: str
    generation: str
    keep_value: bool = True
    _letters: list[dict[str, Any]] = field(default_factory=list)
    _bytes: int = 0

    def add(self, reason: str, detail: str, position: dict[str, Any], value: bytes | None) -> None:
        """Keep one record."""
        address = json.dumps(position, default=str)
        self._letters.append(
            {
                "id": hashlib.sha256(f"{self.stream}|{address}".encode()).hexdigest()[:24],
                "flow": self.flow,
                "stream": self.stream,
                "generation": self.generation,
                "reason": reason,
                "detail": detail,
                "position": address,
                "value": value if self.keep_value else None,
                "met_at": datetime.now(UTC),
            }
        )
        self._bytes += len(value or b"") + 300
        if self._bytes >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Make what was kept durable. Must have happened before the task ends."""
        if not self._letters:
            return
        folder = Path(self.folder) / self.flow / self.stream
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{self.generation}-{self._letters[0]['id']}.parquet"
        scratch = folder / f".{name}.{os.getpid()}"
        pq.write_table(pa.Table.from_pylist(self._letters, schema=SCHEMA), scratch)
        os.replace(scratch, folder / name)
        self._letters = []
        self._bytes = 0


def read_letters(folder: Path, flow: str | None = None) -> pa.Table:
    """All dead letters below a folder, each once per flow, in no particular order."""
    base = folder / flow if flow else folder
    files = sorted(str(file) for file in base.rglob("*.parquet")) if base.is_dir() else []
    if not files:
        return SCHEMA.empty_table()
    table = ds.dataset(files, schema=SCHEMA).to_table()
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
