"""`python -m benchmarks.views`: a batch of changes of a view, compared with a full Spark query, for growing tables.

Orders are joined with customers and summed by region. Every change is an update of an order; in the second workload one
in a hundred moves a customer to another region instead, which needs a scan of the orders. The full query runs as often
as there are batches of one size, after as many warm-up runs; both figures are medians. The result is compared with
Spark's own result at the end of every workload.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.meter import Meter
from headrace.core.schema import from_ddl, to_ddl
from headrace.core.tables import WEIGHT, TableShape
from headrace.engine.spark.session import start_session
from headrace.project.model import SparkSpec
from headrace.views.compile.normalise import normalise
from headrace.views.maintain.incremental_view import IncrementalView, TableDelta
from headrace.views.maintain.state import ViewState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CUSTOMERS, REGIONS = 100_000, 20
TABLES = {
    "orders": TableShape(from_ddl("id bigint, customer bigint, amount decimal(10,2), status string"), ("id",)),
    "customers": TableShape(from_ddl("id bigint, region string, name string"), ("id",)),
}
SQL = """SELECT c.region, count(*) AS orders, sum(o.amount) AS revenue, avg(o.amount) AS mean
FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.region"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.views", description=__doc__)
    parser.add_argument("--orders", type=int, nargs="*", default=[1_000_000, 4_000_000])
    parser.add_argument("--changes", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--warm-ups", type=int, default=5)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--memory", default="2g", help="of Spark's process")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        spark = start_session(SparkSpec(master="local[2]", memory=options.memory), "benchmark", Path(scratch) / "spark")
        meter = Meter()
        load = os.getloadavg()[0]
        results = [measured(spark, Path(scratch), orders, options) for orders in options.orders]
        meter.close()
        spark.stop()
    report = {
        "cpus": os.cpu_count(),
        "load_before": round(load, 1),
        "peak_mb": round(meter.peak_mb),
        "results": results,
    }
    print(json.dumps(report, indent=2))


class Tables:
    """Tables in the form of a log: a base, and the changes since."""

    def __init__(self, spark: SparkSession, folder: Path, orders: int) -> None:
        self._spark, self._folder = spark, folder
        self._random = np.random.default_rng(7)
        self.rows = {"orders": _orders(np.arange(orders), self._random), "customers": _customers(np.arange(CUSTOMERS))}
        self._files: dict[str, list[str]] = {"orders": [], "customers": []}
        self._count = 0

    def everything(self) -> dict[str, TableDelta]:
        return {name: self._input(name, [_weighted(rows, 1)]) for name, rows in self.rows.items()}

    def changed(self, changes: int, moved: int) -> dict[str, TableDelta]:
        old = self.rows["orders"]
        places = np.sort(self._random.choice(old.num_rows, changes - moved, replace=False))
        updates = {"orders": self._update("orders", places, _orders(places, self._random))}
        places = np.sort(self._random.choice(CUSTOMERS, moved, replace=False))
        regions = self._random.integers(0, REGIONS, moved)
        updates["customers"] = self._update("customers", places, _customers(places, regions)) if moved else []
        return {name: self._input(name, parts) for name, parts in updates.items()}

    def _update(self, name: str, places: Any, new: pa.Table) -> list[pa.Table]:
        old = self.rows[name].take(pa.array(places))
        mask = np.zeros(self.rows[name].num_rows, bool)
        mask[places] = True
        columns = [
            pc.replace_with_mask(column.combine_chunks(), pa.array(mask), new.column(n).combine_chunks())
            for n, column in enumerate(self.rows[name].columns)
        ]
        self.rows[name] = pa.table(columns, schema=self.rows[name].schema)
        return [_weighted(old, -1), _weighted(new, 1)]

    def _input(self, name: str, parts: list[pa.Table]) -> TableDelta:
        files = list(self._files[name])

        def old() -> DataFrame:
            return self._read(name, files)

        if not parts:
            return TableDelta(None, old, 0, self.rows[name].num_rows, tuple(files))
        self._count += 1
        file = self._folder / f"{name}-{self._count}.parquet"
        table = pa.concat_tables(parts)
        pq.write_table(table, file)
        self._files[name].append(str(file))
        return TableDelta(self._read(name, [str(file)]), old, table.num_rows, self.rows[name].num_rows, tuple(files))

    def _read(self, name: str, files: list[str]) -> DataFrame:
        ddl = to_ddl(TABLES[name].weighted)
        return self._spark.read.schema(ddl).parquet(*files) if files else self._spark.createDataFrame([], ddl)

    def whole(self) -> None:
        """Register plain tables, for Spark's own result."""
        for name, rows in self.rows.items():
            file = self._folder / f"whole-{name}.parquet"
            pq.write_table(rows, file)
            self._spark.read.parquet(str(file)).createOrReplaceTempView(name)


def measured(spark: SparkSession, scratch: Path, orders: int, options: argparse.Namespace) -> dict[str, Any]:
    folder = scratch / str(orders)
    folder.mkdir()
    session = spark.newSession()
    tables = Tables(session, folder, orders)
    view = IncrementalView(session, normalise(SQL, TABLES), TABLES, ViewState(folder / "state"))
    result: Counter[tuple[Any, ...]] = Counter()
    numbers = iter(range(1_000_000))
    first = _batch(view, next(numbers), tables.everything(), result)
    figures: dict[str, Any] = {"orders": orders, "first_batch_seconds": round(first, 2)}
    for share, suffix in ((0.0, ""), (0.01, "_some_of_customers")):
        for changes in options.changes:
            times = [
                _batch(view, next(numbers), tables.changed(changes, int(changes * share)), result)
                for _ in range(options.warm_ups + options.batches)
            ]
            middle = statistics.median(times[options.warm_ups :])
            figures[f"{changes}_changes{suffix}"] = {
                "seconds": round(middle, 3),
                "slowest": round(max(times[options.warm_ups :]), 3),
                "changes_per_second": round(changes / middle),
            }
        figures[f"recompute_seconds{suffix}"] = _recompute(session, tables, result, options)
    figures["kept"] = {name: held.rows for name, held in view.state.sizes().items()}
    return figures


def _batch(
    view: IncrementalView, number: int, inputs: dict[str, TableDelta], result: Counter[tuple[Any, ...]]
) -> float:
    begun = time.perf_counter()
    rows = view.apply(number, inputs).rows()
    seconds = time.perf_counter() - begun
    for *row, weight in rows:
        result[tuple(row)] += weight
    return seconds


def _recompute(
    spark: SparkSession, tables: Tables, result: Counter[tuple[Any, ...]], options: argparse.Namespace
) -> float:
    """Return the duration of the full query; its result must equal the maintained one."""
    tables.whole()
    times = []
    for _ in range(options.warm_ups + options.batches):
        begun = time.perf_counter()
        rows = [tuple(row) for row in spark.sql(SQL).collect()]
        times.append(time.perf_counter() - begun)
    assert Counter(rows) == +result, "what was kept is not what Spark says"
    return round(statistics.median(times[options.warm_ups :]), 3)


def _orders(ids: Any, random: Any) -> pa.Table:
    cents = random.integers(1, 1_000_000, len(ids))
    columns = [
        pa.array(ids, pa.int64()),
        pa.array(random.integers(0, CUSTOMERS, len(ids)), pa.int64()),
        pa.array(cents / 100.0).cast(pa.decimal128(10, 2)),
        pa.array(np.array(["new", "paid", "sent"])[cents % 3]),
    ]
    return pa.table(columns, schema=TABLES["orders"].columns)


def _customers(ids: Any, regions: Any = None) -> pa.Table:
    numbers = (ids % REGIONS if regions is None else regions).tolist()
    columns = [
        pa.array(ids, pa.int64()),
        pa.array([f"region {n}" for n in numbers]),
        pa.array([f"name {n}" for n in ids.tolist()]),
    ]
    return pa.table(columns, schema=TABLES["customers"].columns)


def _weighted(rows: pa.Table, weight: int) -> pa.Table:
    return rows.append_column(pa.field(WEIGHT, pa.int64()), pa.array(np.full(rows.num_rows, weight), pa.int64()))


if __name__ == "__main__":
    main()
