"""`python -m benchmarks.view_latency`: the latency from a commit in PostgreSQL to the endpoint over REST.

It uses a real server and `headrace run`, with one update at a time. The endpoint is polled until it returns the updated
result. The first updates are a warm-up and not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psycopg

from headrace.testing.services import Postgres

_SETUP = (
    "CREATE TABLE customers (id bigint PRIMARY KEY, region text)",
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, amount numeric(12,2), note text)",
    "INSERT INTO customers SELECT n, 'region ' || (n % 10) FROM generate_series(1, 10000) n",
)
_FILL = "INSERT INTO orders SELECT n, 1 + n % 10000, (n % 100) + 0.5, 'x' FROM generate_series(1, {}) n"
_SQL = "SELECT region, sum(amount) AS total, count(*) AS orders FROM orders o JOIN customers c ON o.customer = c.id"
_PROJECT = """
project: shop
tables:
  orders: {{source: {{type: postgres, url: "{url}", table: orders}}}}
  customers: {{source: {{type: postgres, url: "{url}", table: customers}}}}
flows:
  revenue:
    sql: {sql} GROUP BY region
    trigger: 200ms
    sinks: [endpoint]
serve: {{port: {port}, grpc_port: null}}
http: {{port: 0}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.view_latency", description=__doc__)
    parser.add_argument("--orders", type=int, default=500_000)
    parser.add_argument("--warm-ups", type=int, default=15)
    parser.add_argument("--updates", type=int, default=40)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with Postgres() as server, tempfile.TemporaryDirectory() as folder:
        url = f"postgresql://postgres@{server.address}/postgres"
        with psycopg.connect(url, autocommit=True) as database:
            for statement in (*_SETUP, _FILL.format(options.orders)):
                database.execute(statement.encode())
            port = _free_port()
            (Path(folder) / "headrace.yaml").write_text(_PROJECT.format(url=url, port=port, sql=_SQL))
            with (Path(folder) / "out").open("wb") as out:
                run = subprocess.Popen([sys.executable, "-m", "headrace", "run", folder], stdout=out, stderr=out)
            try:
                times = measured(database, f"http://127.0.0.1:{port}/revenue", options, run)
            finally:
                run.send_signal(signal.SIGINT)
                run.wait(120)
    report = {
        "load_before": round(load, 1),
        "orders": options.orders,
        "updates": len(times),
        "p50_seconds": round(statistics.median(times), 2),
        "p90_seconds": round(statistics.quantiles(times, n=10)[-1], 2),
        "longest_seconds": round(max(times), 2),
    }
    print(json.dumps(report, indent=2))


def measured(
    database: psycopg.Connection[Any], url: str, options: argparse.Namespace, run: subprocess.Popen[bytes]
) -> list[float]:
    with httpx.Client() as client:
        _await(lambda: _served(client, url), _truth(database), 600, run)
        times = []
        for number in range(options.warm_ups + options.updates):
            database.execute("UPDATE orders SET amount = amount + 1 WHERE id = %s", (number + 1,))
            begun = time.perf_counter()
            _await(lambda: _served(client, url), _truth(database), 60, run)
            times.append(time.perf_counter() - begun)
    return times[options.warm_ups :]


def _truth(database: psycopg.Connection[Any]) -> dict[str, str]:
    return {row[0]: str(row[1]) for row in database.execute(f"{_SQL} GROUP BY region".encode()).fetchall()}


def _served(client: httpx.Client, url: str) -> dict[str, str] | None:
    try:
        answer = client.get(url)
    except httpx.TransportError:
        return None
    return {row["region"]: row["total"] for row in answer.json()} if answer.status_code == 200 else None


def _await(fetch: Any, expected: dict[str, str], seconds: float, run: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + seconds
    while fetch() != expected:
        if run.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"the endpoint does not say what the database says after {seconds:.0f} s")
        time.sleep(0.01)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    main()
