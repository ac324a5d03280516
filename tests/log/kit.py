"""What tests of logs share: an endpoint and its changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from headrace.core.endpoints import OLD, OP, Endpoint, Op
from headrace.core.files.state_files import StatePath
from headrace.core.schema import from_ddl
from headrace.log.log import Log

ORDERS = Endpoint("orders", from_ddl("id bigint, state string"), key=("id",))


def changes(*rows: tuple[int, str], op: Op = Op.UPSERT, endpoint: Endpoint = ORDERS) -> pa.RecordBatch:
    """A batch that sets these rows."""
    found = [{OP: int(op), OLD: None, "id": number, "state": state} for number, state in rows]
    return pa.RecordBatch.from_pylist(found, schema=endpoint.changes)


def held(log: Log, position: int = 0) -> list[list[tuple[Any, ...]]]:
    """The rows of each segment after a position."""
    return [rows_of(log.changes(segment)) for segment in log.after(position, 1000)]


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return [(row["id"], row["state"]) for batch in batches for row in batch.to_pylist()]


def only(files: Sequence[StatePath]) -> StatePath:
    (one,) = files
    return one
