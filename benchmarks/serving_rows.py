"""The rows of the serving benchmark, and the rate at which they are applied from a log to a store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from headrace.core.endpoints import OLD, OP, Endpoint, Op
from headrace.core.schema import from_ddl
from headrace.log.folder import LogFolder
from headrace.log.log import Log, Mark
from headrace.store.endpoint.writer import StoreWriter
from headrace.store.rows.row_json import RowJson

PER_GROUP = 20
PER_SEGMENT = 20_000
ENDPOINT = Endpoint(
    "items",
    from_ddl(
        "id bigint, name string, batch bigint, region string, rating double, price decimal(10,2), at timestamp, "
        "in_stock boolean"
    ),
    key=("id",),
    indexes=(("batch",), ("region", "rating")),
)
_REGIONS = ["EU", "US", "AP", "AF"]
_BEGIN = 1_767_225_600_000_000


def lines(rows: int) -> Iterator[tuple[int, bytes]]:
    """Yield keys and served rows, for the other servers."""
    encoder = RowJson(ENDPOINT.columns)
    for first in range(1, rows + 1, PER_SEGMENT):
        batch = changes(first, min(first + PER_SEGMENT, rows + 1), 0)
        yield from enumerate(encoder.rows(batch.select(ENDPOINT.columns.names)), first)


def changes(first: int, end: int, turn: int) -> pa.RecordBatch:
    """Return upserts of these rows. Each turn has other values in the name and in all indexed columns."""
    numbers = range(first, end)
    columns = {
        OP: [int(Op.UPSERT)] * len(numbers),
        OLD: [None] * len(numbers),
        "id": numbers,
        "name": [f"item number {n} of turn {turn}" for n in numbers],
        "batch": [(n - 1) // PER_GROUP + turn * 10_000_000 for n in numbers],
        "region": [_REGIONS[(n + turn) % len(_REGIONS)] for n in numbers],
        "rating": [(n * 7 + turn) % 1_000 / 10 for n in numbers],
        "price": [Decimal(n % 1_000_000).scaleb(-2) for n in numbers],
        "at": [_BEGIN + n * 1_000_000 for n in numbers],
        "in_stock": [n % 3 > 0 for n in numbers],
    }
    return pa.RecordBatch.from_pydict(columns, schema=ENDPOINT.changes)


def applier(folder: Path, rows: int) -> dict[str, float]:
    """Return changes per second from a log into a store, by one process: all rows, then updates of a fifth of them.

    The servers are filled from the log afterwards; the updates are in a separate log.
    """
    log = _written(folder / "log", rows, 0)
    again = _written(folder / "again", max(rows // 5, 1), 1)
    writer = StoreWriter.open(folder / "store", ENDPOINT)
    try:
        inserts = _applied(writer, log, 0, rows)
        updates = _applied(writer, again, log.end(), max(rows // 5, 1))
    finally:
        writer.close()
    return {
        "inserts_per_s": round(inserts[0]),
        "inserts_per_cpu_s": round(inserts[1]),
        "updates_per_s": round(updates[0]),
        "updates_per_cpu_s": round(updates[1]),
    }


def _written(root: Path, rows: int, turn: int) -> Log:
    log = LogFolder(root).define(ENDPOINT)
    for number, first in enumerate(range(1, rows + 1, PER_SEGMENT)):
        log.commit(Mark("bench/endpoint", "g1", number), [changes(first, min(first + PER_SEGMENT, rows + 1), turn)])
    return log


def _applied(writer: StoreWriter, log: Log, base: int, expected: int) -> tuple[float, float]:
    wall, cpu, applied = time.perf_counter(), time.process_time(), 0
    for segment in log.after(0, log.end()):
        applied += writer.apply(base + segment.position, log.changes(segment)).changes
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if applied != expected:
        raise SystemExit(f"{applied:,} changes had an effect instead of {expected:,}")
    return applied / wall, applied / cpu
