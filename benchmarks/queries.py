"""Queries on a store, without a server: `python -m benchmarks.queries [ROWS]` prints the duration of each kind."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from headrace.core.endpoints import OLD, OP, Endpoint, Op
from headrace.core.schema import from_ddl
from headrace.store.endpoint.reader import StoreReader
from headrace.store.endpoint.writer import StoreWriter
from headrace.store.query.query import parse_query

ENDPOINT = Endpoint(
    "orders",
    from_ddl(
        "id bigint, region string, amount double, customer bigint, status string, note string, at timestamp,"
        " paid boolean"
    ),
    key=("id",),
    indexes=(("region", "amount"), ("customer",)),
    text=("note",),
)
REGIONS = 50
STATES = ["open", "paid", "sent"]
BATCH, BOUND, SECONDS = 20_000, 100_000, 1.0
QUERIES: dict[str, dict[str, Any]] = {
    "20 rows by an index": {"$filter": {"customer": 77}, "$limit": 20},
    "20 rows by an index, in its order": {
        "$filter": {"region": "region 7", "amount": {"$gte": 100}},
        "$order_by": {"amount": "desc"},
        "$limit": 20,
    },
    "20 rows by an index, checked": {"$filter": {"region": "region 7", "paid": True}, "$limit": 20},
    "20 rows by a word": {"$filter": {"note": {"$contains": "w77"}}, "$limit": 20},
    "20 rows by key": {"$filter": {"id": {"$gt": 5000}}, "$limit": 20},
    "20 first of 100 sorted": {"$filter": {"customer": 77}, "$order_by": {"amount": "asc"}, "$limit": 20},
    "10,000 rows checked": {"$filter": {"amount": {"$lt": 0}, "id": {"$lt": 10_000}}, "$limit": 20},
}


def rows(count: int) -> pa.RecordBatch:
    """Return rows of eight columns, the same in every run."""
    numbers = range(count)
    columns: dict[str, list[Any]] = {
        "id": list(numbers),
        "region": [f"region {n % REGIONS}" for n in numbers],
        "amount": [(n * 7919 % 100_003) / 100 for n in numbers],
        "customer": [n % (count // 100 or 1) for n in numbers],
        "status": [STATES[n % 3] for n in numbers],
        "note": [f"order with w{n % 1_000} and w{n % 77}" for n in numbers],
        "at": [1_780_000_000_000_000 + n for n in numbers],
        "paid": [n % 2 == 0 for n in numbers],
    }
    columns[OP], columns[OLD] = [int(Op.UPSERT)] * count, [None] * count
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in ENDPOINT.changes if field.name != OLD]
    arrays.insert(1, pa.array(columns[OLD], ENDPOINT.changes.field(OLD).type))
    return pa.RecordBatch.from_arrays(arrays, schema=ENDPOINT.changes)


def measured(reader: StoreReader, document: dict[str, Any]) -> dict[str, Any]:
    """Return the duration of a query, from the document to the page, and of its count."""

    def ask() -> int:
        with reader.transaction() as view:
            return len(view.query(parse_query(document, ENDPOINT, page=1_000), BOUND).rows)

    def parse() -> None:
        parse_query(document, ENDPOINT, page=1_000)

    page = ask()
    return {"rows": page, "microseconds": _micros(ask), "of which parsing": _micros(parse)}


def _micros(call: Any) -> float:
    begin, calls = time.process_time(), 0
    while time.process_time() - begin < SECONDS:
        call()
        calls += 1
    return round((time.process_time() - begin) / calls * 1e6, 1)


def main(count: int) -> None:
    """Fill a store, query it, print JSON."""
    with TemporaryDirectory() as folder:
        writer = StoreWriter.open(Path(folder), ENDPOINT)
        whole = rows(count)
        for position, at in enumerate(range(0, count, BATCH), 1):
            writer.apply(position, [whole.slice(at, BATCH)])
        reader = StoreReader.open(Path(folder))
        figures = {name: measured(reader, document) for name, document in QUERIES.items()}
        print(json.dumps({"rows": count, "CPU time per query": figures}, indent=2))
        reader.close()
        writer.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
