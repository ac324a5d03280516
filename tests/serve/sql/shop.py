"""A small shop whose endpoints and lake table are asked in SQL."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.core.endpoints import Endpoint, Op
from headrace.core.schema import from_ddl
from headrace.project.serving import Limits, ServeSpec, SqlLimits
from headrace.serve.base.settings import Settings
from headrace.serve.replica.pointers import Pointer, write_pointer
from headrace.store.endpoint.writer import StoreWriter

ORDERS = Endpoint(
    "orders",
    from_ddl(
        "id bigint, region string, amount decimal(12,2), rate double, at timestamp, day date, raw binary, "
        "tags array<string>, sizes map<int, decimal(4,1)>, buyer struct<name: string, since: date>"
    ),
    key=("id",),
)
REGIONS = Endpoint("regions", from_ddl("region string, name string"), key=("region",))
NONE = Endpoint("none", from_ddl("a bigint"), key=("a",))


def order(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "region": ("EU", "US", "AP")[number % 3],
        "amount": Decimal(number) + Decimal("0.10"),
        "rate": float("nan") if number == 4 else number / 2,
        "at": datetime(2026, 1, 1, 0, 0, number % 60, tzinfo=UTC),
        "day": date(2026, 1, 1 + number % 28),
        "raw": bytes([number % 256]),
        "tags": ["a", None],
        "sizes": [(1, Decimal("0.5"))],
        "buyer": {"name": f"b{number}", "since": None},
    }


def put(store: Path, endpoint: Endpoint, rows: list[dict[str, Any]]) -> None:
    """An endpoint with these rows, served."""
    folder = f"v{endpoint.version}-x"
    writer = StoreWriter.open(store / endpoint.name / folder, endpoint)
    changes = [{"__op": int(Op.UPSERT), "__old": None, **row} for row in rows]
    writer.apply(1, [pa.RecordBatch.from_pylist(changes, endpoint.changes)])
    writer.close()
    write_pointer(store / endpoint.name, Pointer(endpoint.version, {endpoint.version: folder}))


def shop(folder: Path, *, seconds: float = 10.0, memory: int = 256_000_000, rows: int = 10_000) -> Settings:
    """Twelve orders, two regions, and a lake table of 1,000 visits."""
    import deltalake

    put(folder / "store", ORDERS, [order(number) for number in range(1, 13)])
    put(folder / "store", REGIONS, [{"region": "EU", "name": "Europe"}, {"region": "US", "name": "America"}])
    visits = pa.table({"order_id": [number % 12 for number in range(1_000)], "place": ["x"] * 1_000})
    deltalake.write_deltalake(folder / "lake" / "visits", visits)
    limits = SqlLimits(time=timedelta(seconds=seconds), memory=memory, rows=rows)  # type: ignore[arg-type]
    return Settings(
        project="shop",
        root=folder,
        spec=ServeSpec(limits=Limits(sql=limits)),
        log=folder / "log",
        store=folder / "store",
        snapshots=folder / "snapshots",
        lakes={"visits": str(folder / "lake" / "visits"), "orders": str(folder / "lake" / "nothing")},
    )
