"""Dead letters: records that could not be processed, kept with reason and position.

They are written by the tasks that meet them, into files named after the first record they hold. A batch that runs
again writes the same files again; a letter's id is made of its stream and position, so reading counts each once.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.files.state_files import StatePath, in_order
from headrace.engine.state.batch_clock import running_batch
from headrace.engine.state.locks import reading
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
        ("met_at", pa.timestamp("us", tz="UTC")),
        ("metadata", pa.string()),
        ("batch", pa.int64()),
    ]
)
"""`metadata` has the metadata columns that the flow uses, as JSON, so that the record can be replayed with them.
`batch` is the micro-batch that met it: until that is committed it may run again, and no longer find the record bad."""
_FLUSH_BYTES = 8 << 20


@dataclass
class LetterBox:
    """Collects the dead letters of one task. Pickled to executors while empty."""

    folder: StatePath
    flow: str
    stream: str
    generation: str
    keep_value: bool = True
    _letters: list[dict[str, Any]] = field(default_factory=list)
    _bytes: int = 0

    def add(
        self,
        reason: str,
        detail: str,
        position: dict[str, Any],
        value: bytes | None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
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
                "metadata": json.dumps(metadata, default=_json_value) if metadata else None,
            }
        )
        self._bytes += len(value or b"") + 300
        if self._bytes >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Make what was kept durable. Must have happened before the task ends."""
        if not self._letters:
            return
        batch = running_batch()
        series = self.generation if batch is None else f"{self.generation}-{batch:010}"
        name = f"{series}-{self._letters[0]['id']}.parquet"
        table = pa.Table.from_pylist([one | {"batch": batch} for one in self._letters], schema=SCHEMA)
        write_table(self.folder / self.flow / self.stream / name, table)
        self._letters = []
        self._bytes = 0


def _json_value(value: Any) -> str:
    """As Spark reads it from JSON: bytes in base64, times in ISO form."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


@contextmanager
def kept_files(folder: StatePath, flow: str | None = None) -> Iterator[list[StatePath]]:
    """The files of dead letters or late rows, of one flow or all; nobody merges them until the block ends."""
    flows = [folder / flow] if flow else in_order(one for one in folder.glob("*") if one.is_dir())
    with ExitStack() as held:
        for one in flows:
            held.enter_context(reading(one))
        # a hidden one is not finished
        yield in_order(file for one in flows for file in one.rglob("[!.]*.parquet"))


def forget_batch(folder: StatePath, flow: str, generation: str, batch: int) -> None:
    """Remove what a batch has put aside that is about to run again: by a changed project it may put aside less."""
    for file in (folder / flow).glob(f"*/{generation}-{batch:010}-*.parquet"):
        file.unlink(missing_ok=True)
    for file in (folder / flow).glob("*/merged-*.parquet"):
        table = read_tables([file], None)
        mine = pc.and_(pc.equal(table["generation"], generation), pc.equal(table["batch"], batch))
        others = table.filter(pc.invert(pc.fill_null(mine, False)))
        if others.num_rows < table.num_rows:
            write_table(file, others)


def read_letters(folder: StatePath, flow: str | None = None) -> pa.Table:
    """All dead letters below a folder, each once per flow, in no particular order."""
    with kept_files(folder, flow) as files:
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
