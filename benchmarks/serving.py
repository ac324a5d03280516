"""The performance of endpoints: `make bench-serve`.

One row by its key over REST, compared with a minimal Go server (net/http and bbolt) and Redis, alternating in one run;
twenty rows by a secondary index; one row over gRPC; and the rate of changes from a log into a store with two secondary
indexes. CPU seconds are those of the server processes, so that other load matters little. The load generators (wrk,
ghz, redis-benchmark) share the processors.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import serving_load as load
from benchmarks import serving_servers as servers
from benchmarks.serving_rows import ENDPOINT, PER_GROUP, applier, lines

TARGETS = {
    "get_vs_go": (0.5, "GET by key per CPU second, of the Go server's"),
    "query_per_s": (2_000, "queries per second, 20 rows each"),
    "inserts_per_s": (30_000, "inserts per second"),
    "updates_per_s": (30_000, "updates per second, all index entries replaced"),
    "grpc_vs_rest": (0.3, "gRPC get per CPU second, of GET's"),
}


def main() -> None:
    options = _options()
    needed = {"wrk", "go", *(() if options.no_redis else ("redis",)), *(() if options.no_grpc else ("ghz",))}
    load.require(needed)
    # SIGTERM also ends the servers
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        report = measured(Path(name), options)
    print(table(report))
    if not options.no_save:
        file = Path(__file__).parent / "results" / f"serving-{time.strftime('%Y-%m-%d')}.json"
        file.write_text(json.dumps(report, indent=2) + "\n")
        note(f"saved {file}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.serving", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="of all measurements in turn; the median counts")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--workers", type=int, default=1, help="API and gRPC processes")
    parser.add_argument("--no-redis", action="store_true", help="leave out Redis")
    parser.add_argument("--no-grpc", action="store_true", help="leave out gRPC, which needs ghz")
    parser.add_argument("--no-save", action="store_true", help="do not write benchmarks/results/serving-DATE.json")
    return parser.parse_args()


def measured(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    note(f"changes of {options.rows:,} rows through a log into a store")
    applied = applier(folder / "applier", options.rows)
    with ExitStack() as stack:
        note("filling the servers")
        node = stack.enter_context(servers.Node(folder / "node", folder / "applier" / "log", options))
        go = stack.enter_context(servers.Go(folder / "go", options.rows))
        redis = None if options.no_redis else stack.enter_context(servers.Redis(folder / "redis", options.rows))
        check(node, go, options.rows)
        rounds = [_round(node, go, redis, options, number) for number in range(options.rounds)]
    medians = {name: _median([one[name] for one in rounds]) for name in rounds[0]}
    return {
        "rows": options.rows,
        "row_bytes": len(next(lines(1))[1]),
        "connections": options.connections,
        "workers": options.workers,
        "cpus": os.cpu_count(),
        "applier": applied,
        "measured": medians,
        "rounds": rounds,
        "targets": _targets(medians, applied),
    }


def check(node: servers.Node, go: servers.Go, rows: int) -> None:
    """Check that all servers return the same row, so that the same work is compared."""
    key = rows // 2
    ours, theirs = load.fetch(f"{node.url}/{ENDPOINT.name}/{key}"), load.fetch(f"{go.url}/{ENDPOINT.name}/{key}")
    if json.loads(ours) != json.loads(theirs):
        raise SystemExit(f"headrace and the Go server give different rows: {ours!r} and {theirs!r}")
    page = load.fetch(f"{node.url}/{ENDPOINT.name}/query", {"$filter": {"batch": 1}, "$limit": PER_GROUP})
    if len(json.loads(page)) != PER_GROUP:
        raise SystemExit(f"a query gives {len(json.loads(page))} rows instead of {PER_GROUP}")


def _round(
    node: servers.Node, go: servers.Go, redis: servers.Redis | None, options: argparse.Namespace, number: int
) -> dict[str, dict[str, float]]:
    """Measure the servers alternately, so that other load does not always affect the same one."""
    asks: dict[str, Callable[[float], dict[str, float]]] = {
        "get": lambda seconds: load.gets(node.url, node.api, options, seconds),
        "get_go": lambda seconds: load.gets(go.url, go.processes, options, seconds),
        "query": lambda seconds: load.queries(node.url, node.api, options, seconds),
    }
    if redis is not None:
        asks["get_redis"] = lambda seconds: load.redis_gets(redis, options, seconds)
    if not options.no_grpc:
        asks["grpc_get"] = lambda seconds: load.grpc_gets(node, options, seconds, typed=True)
        asks["grpc_get_common"] = lambda seconds: load.grpc_gets(node, options, seconds, typed=False)
    figures = {}
    for name, ask in asks.items():
        if number == 0:
            ask(min(2.0, options.seconds))
        note(f"round {number + 1}: {name}")
        figures[name] = ask(options.seconds)
    return figures


def _median(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(one[name] for one in rounds), 3) for name in rounds[0]}


def _targets(figures: dict[str, dict[str, float]], applied: dict[str, float]) -> dict[str, dict[str, Any]]:
    values = {
        "get_vs_go": figures["get"]["per_cpu_s"] / figures["get_go"]["per_cpu_s"],
        "query_per_s": figures["query"]["per_s"],
        "inserts_per_s": applied["inserts_per_s"],
        "updates_per_s": applied["updates_per_s"],
    }
    if "grpc_get" in figures:
        values["grpc_vs_rest"] = figures["grpc_get"]["per_cpu_s"] / figures["get"]["per_cpu_s"]
    return {
        name: {"what": description, "wanted": target, "found": round(values[name], 2), "met": values[name] >= target}
        for name, (target, description) in TARGETS.items()
        if name in values
    }


def table(report: dict[str, Any]) -> str:
    applied = report["applier"]
    lines = [
        f"{report['rows']:,} rows of {report['row_bytes']} bytes, {report['connections']} connections, "
        f"{report['workers']} worker(s), {report['cpus']} CPUs; medians of {len(report['rounds'])} rounds",
        "",
        "| asked | per second | per CPU second | p50 ms | p99 ms | CPU | load |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {name} | {one['per_s']:,.0f} | {one['per_cpu_s']:,.0f} | {one['p50_ms']:.2f} | {one['p99_ms']:.2f} | "
        f"{one['cpu']:.2f} | {one['load']:.1f} |"
        for name, one in report["measured"].items()
    ]
    lines += [
        "",
        "| changes into a store | per second | per CPU second |",
        "|---|--:|--:|",
        f"| inserts | {applied['inserts_per_s']:,.0f} | {applied['inserts_per_cpu_s']:,.0f} |",
        f"| updates | {applied['updates_per_s']:,.0f} | {applied['updates_per_cpu_s']:,.0f} |",
        "",
        "| target | wanted | found | |",
        "|---|--:|--:|---|",
    ]
    lines += [
        f"| {one['what']} | {one['wanted']:,} | {one['found']:,} | {'met' if one['met'] else 'not met'} |"
        for one in report["targets"].values()
    ]
    return "\n".join(lines)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
