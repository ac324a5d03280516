"""Rows per CPU second of the processors on JSON documents of 1 kB, counting the JVM and all Python processes.

`python -m benchmarks.documents [--rows N] [--json]`. The first lines are reading and an empty Python stage, which are
part of all others.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.meter import Meter
from headrace.core.context import Context
from headrace.core.processor import FlowLakeTable, Processor, StepContext
from headrace.engine.inputs.processing import StepDeadLetters
from headrace.engine.letters.dead_letters import DeadLetterWriter
from headrace.engine.spark.session import start_session
from headrace.processors.document import Document
from headrace.processors.explode import Explode
from headrace.processors.json_schema import JsonSchema
from headrace.processors.route import RouteStep
from headrace.project.model import SparkSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMAS = Path(__file__).parent.parent / "apps" / "telemetry" / "schemas" / "telemetry" / "3.0"
IN_A_BATCH = 20
EVENT: dict[str, Any] = {
    "eid": "AUDIT", "ets": 1579564974098, "ver": "3.0", "mid": "LP.AUDIT.@", "syncts": 1579564974098.5,
    "actor": {"id": "b7470841-7451-43db-b5c7-2dcf4f8d3b23", "type": "User"},
    "context": {"channel": "0126825293972439041", "env": "content-service", "sid": "82e41d87-e33f-4269-aeae-d5",
                "did": "1b17c32bad61eb9e33df281eecc727590d739b2b",
                "pdata": {"id": "dev.learning.service", "pid": "learning-service", "ver": "2.6.0"},
                "rollup": {"l1": "01285019302823526477", "l2": "0128501930282352648"},
                "cdata": [{"id": "f6cd37d2", "type": "Request"}, {"id": "do_31270597860728832", "type": "Content"}]},
    "object": {"id": "do_31249064359802470412856", "ver": "1", "type": "Content", "rollup": {"l1": "do_312470"}},
    "edata": {"state": "Live", "prevstate": "Draft", "props": ["name", "status", "versionKey", "lastUpdatedOn", "size"],
              "duration": 46},
    "flags": {"ex_processed": True}, "tags": ["portal", "0126825293972439041", "class 8", "mathematics"],
    "@timestamp": "2020-01-21T00:02:54.098Z",
}  # fmt: skip


@dataclass(frozen=True)
class Alone:
    """A folder, for processors that need nothing else of their project."""

    context: Context

    def lake_table(self, flow: str) -> FlowLakeTable:
        raise NotImplementedError

    def written_out(self, sql: str) -> str:
        return sql


STEPS: dict[str, Processor] = {
    "document": Document.model_validate(
        {"set": {"flags.checked": {"column": "checked"}, "type": {"value": "events"}, "edata.n": {"column": "n"}}}
    ),
    "document, numbers: double": Document(numbers="double"),
    "json_schema": JsonSchema.model_validate({"schemas": str(SCHEMAS), "schema": "lower(eid) || '.json'", "draft": 4}),
    "route, 2 of 3": RouteStep.model_validate(
        {
            "routes": [
                {"to": "a"},
                {"to": "b", "when": "n % 2 = 0"},
                {"to": "c", "when": "n % 2 = 1 AND eid <> 'LOG'"},
            ],
            "otherwise": "d",
        }
    ),
}


def events(spark: SparkSession, rows: int) -> DataFrame:
    before, after = json.dumps(EVENT, separators=(",", ":")).split("@", 1)
    parts = f"concat('{before}', id, '{after}')"
    return spark.sql(
        f"SELECT {parts} AS value, 'AUDIT' AS eid, id AS n, id % 2 = 0 AS checked FROM range(0, {rows}, 1, 2)"
    )


def batches(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    one = F.array_repeat(F.col("value"), IN_A_BATCH)
    return rows.where(f"n % {IN_A_BATCH} = 0").select(
        F.concat(F.lit('{"id":"x","events":['), F.array_join(one, ","), F.lit("]}")).alias("value")
    )


def rate(meter: Meter, make: Callable[[], DataFrame], rows: int, repeats: int = 3) -> dict[str, Any]:
    """Return the best of some runs, after a warm-up run."""
    best = float("inf")
    for number in range(repeats + 1):
        began = meter.cpu_seconds()
        make().write.format("noop").mode("overwrite").save()
        if number:
            best = min(best, meter.cpu_seconds() - began)
    return {"rows_per_cpu_s": round(rows / best), "us_per_row": round(1e6 * best / rows, 2)}


def measure(spark: SparkSession, rows: int, folder: Path) -> list[dict[str, Any]]:
    around = Alone(Context(folder, str(folder)))
    letters = StepDeadLetters(DeadLetterWriter(folder / "letters", "bench", "step", "g"))
    at = StepContext(around.context, "bench", "step", letters, streaming=False)
    documents = events(spark, rows).cache()
    whole = batches(documents).cache()
    size = documents.selectExpr("avg(length(value))").first()
    assert size is not None
    works: dict[str, Callable[[], DataFrame]] = {
        "reading": lambda: documents,
        "a Python stage": lambda: documents.mapInArrow(lambda batches_: batches_, documents.schema),
        "explode": lambda: Explode(path="events").apply(whole, at),
        "explode by from_json": lambda: whole.selectExpr("explode(from_json(value, 'events array<string>').events)"),
    }
    for name, step in STEPS.items():
        works[name] = partial(step.bound(around).apply, documents, at)
    meter = Meter()
    try:
        return [{"step": name, "bytes": round(size[0])} | rate(meter, make, rows) for name, make in works.items()]
    finally:
        meter.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.documents", description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        spark = start_session(SparkSpec(master="local[2]"), "documents", Path(scratch) / "logs")
        figures = measure(spark, options.rows, Path(scratch))
        spark.stop()
    load = os.getloadavg()[0]
    if options.json:
        print(json.dumps({"rows": options.rows, "cpus": os.cpu_count(), "load": round(load, 1), "results": figures}))
        return
    for line in figures:
        print(f"{line['step']:28} {line['rows_per_cpu_s']:>10,} rows per CPU second, {line['us_per_row']:>6} µs each")
    print(f"{options.rows:,} documents of {figures[0]['bytes']:,} bytes; load {load:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
