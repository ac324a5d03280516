"""The Parquet files to which a task writes the records that it sets aside: dead letters and late rows."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar

import pyarrow as pa

from headrace.core.files.state_files import StatePath, in_order
from headrace.engine.state.locks import reading
from headrace.engine.state.parquet_files import write_table

_FLUSH_BYTES = 8 << 20
# an estimate of all columns but the record itself
_ROW_BYTES = 300


@dataclass
class TaskWriter(ABC):
    """Buffers the rows of one task and writes them to files of one stream. Pickled to executors while empty.

    A batch that runs again must write the same files again, so a file name depends only on the batch and its rows.
    """

    schema: ClassVar[pa.Schema]

    folder: StatePath
    flow: str
    stream: str
    generation: str
    _rows: list[dict[str, Any]] = field(default_factory=list, kw_only=True)
    _bytes: int = field(default=0, kw_only=True)

    @abstractmethod
    def next_file(self) -> tuple[str, int | None]:
        """The name of the next file, without suffix, and the batch of its rows."""

    def flush(self) -> None:
        """Write the buffered rows. Must be called before the task ends."""
        if not self._rows:
            return
        name, batch = self.next_file()
        table = pa.Table.from_pylist([row | {"batch": batch} for row in self._rows], schema=self.schema)
        write_table(self.folder / self.flow / self.stream / f"{name}.parquet", table)
        self._rows = []
        self._bytes = 0

    def _append(self, address: str, row: dict[str, Any], size: int) -> None:
        """Buffer a row. Its id is derived from the stream and the address, so that readers can drop duplicates."""
        common = {
            "id": hashlib.sha256(f"{self.stream}|{address}".encode()).hexdigest()[:24],
            "flow": self.flow,
            "stream": self.stream,
            "generation": self.generation,
            "met_at": datetime.now(UTC),
        }
        self._rows.append(common | row)
        self._bytes += size + _ROW_BYTES
        if self._bytes >= _FLUSH_BYTES:
            self.flush()


@contextmanager
def locked_files(folder: StatePath, flow: str | None = None) -> Iterator[list[StatePath]]:
    """The files of dead letters or late rows, of one flow or all. Files are not merged until the block ends."""
    flows = [folder / flow] if flow else in_order(path for path in folder.glob("*") if path.is_dir())
    with ExitStack() as locks:
        for flow_folder in flows:
            locks.enter_context(reading(flow_folder))
        # a hidden file is incomplete
        yield in_order(file for flow_folder in flows for file in flow_folder.rglob("[!.]*.parquet"))
