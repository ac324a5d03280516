"""`python -m benchmarks.store`: changes applied to a store and rows read by key, per second of CPU time.

Rows have eight columns and two secondary indexes. They are inserted into an empty store first; then they are updated at
random, so that each update removes old index entries. The figures are of one process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.endpoints import Endpoint, Op
from headrace.core.schema import from_ddl
from headrace.store.endpoint.reader import StoreReader
from headrace.store.endpoint.writer import StoreWriter

ORDERS = Endpoint(
    "orders",
    from_ddl(
        "id bigint, customer string, status string, amount decimal(12, 2), weight double, at timestamp, "
        "paid boolean, note string"
    ),
    key=("id",),
    indexes=(("customer",), ("status", "at")),
)
STATUSES = ["new", "paid", "packed", "sent", "returned"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.store", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--updates", type=int, default=500_000)
    parser.add_argument("--batch", type=int, default=25_000)
    parser.add_argument("--gets", type=int, default=200_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(run(Path(scratch), options), indent=2))


def run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    writer = StoreWriter.open(folder, ORDERS)
    random_rows = np.random.default_rng(7)
    inserts = [np.arange(start, start + options.batch) for start in range(0, options.rows, options.batch)]
    shuffled = random_rows.permutation(options.rows)
    scattered = [shuffled[start : start + options.batch] for start in range(0, options.rows, options.batch)]
    updates = [random_rows.integers(0, options.rows, options.batch) for _ in range(options.updates // options.batch)]
    result: dict[str, Any] = {"rows": options.rows, "batch": options.batch, "cpus": os.cpu_count()}
    result["inserts_in_order"] = applied(writer, [changes(ids, 0) for ids in inserts])
    result["updates"] = applied(writer, [changes(ids, turn + 1) for turn, ids in enumerate(updates)])
    result["updates_that_change_nothing"] = applied(writer, [changes(updates[-1], len(updates))] * 4)
    result["megabytes"] = round((folder / "data.mdb").stat().st_size / 1e6)
    result["verify"] = measured(writer.verify, options.rows)
    reader = StoreReader.open(folder)
    result["gets"] = measured(lambda: get(reader, options), options.gets)
    reader.close()
    writer.close()
    random_store = StoreWriter.open(folder / "scattered", ORDERS)
    result["inserts_in_random_order"] = applied(random_store, [changes(ids, 0) for ids in scattered])
    random_store.close()
    return result


def changes(ids: Any, turn: int) -> pa.RecordBatch:
    count = len(ids)
    customers = (ids * 7 + turn) % 50_000
    columns = {
        "__op": pa.array([int(Op.UPSERT)] * count, pa.int8()),
        "__old": pa.nulls(count, ORDERS.changes.field("__old").type),
        "id": pa.array(ids, pa.int64()),
        "customer": pa.array([f"customer-{number:06}" for number in customers.tolist()]),
        "status": pa.array([STATUSES[(number + turn) % 5] for number in ids.tolist()]),
        "amount": pa.array(ids % 100_000, pa.int32()).cast(pa.decimal128(12, 2)),
        "weight": pa.array(ids / 7.0),
        "at": pa.array(1_760_000_000_000_000 + ids * 1_000 + turn, pa.timestamp("us", tz="UTC")),
        "paid": pa.array(ids % 2 == 0),
        "note": pa.array([f"order {number}, changed {turn} times" for number in ids.tolist()]),
    }
    return pa.RecordBatch.from_pydict(columns, ORDERS.changes)


def applied(writer: StoreWriter, batches: list[pa.RecordBatch]) -> dict[str, float]:
    def work() -> None:
        for batch in batches:
            writer.apply(writer.position + 1, [batch])

    return measured(work, sum(batch.num_rows for batch in batches))


def get(reader: StoreReader, options: argparse.Namespace) -> None:
    draw = random.Random(7)  # noqa: S311
    for _ in range(options.gets):
        with reader.transaction() as view:
            assert view.get((draw.randrange(options.rows),)) is not None


def measured(work: Callable[[], None], rows: int) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"seconds": round(wall, 2), "rows_per_second": round(rows / wall), "rows_per_cpu_second": round(rows / cpu)}


if __name__ == "__main__":
    main()
