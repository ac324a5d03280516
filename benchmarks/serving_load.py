"""The load generators wrk, ghz and redis-benchmark, and the cost of the servers under load."""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.serving_rows import ENDPOINT, PER_GROUP
from headrace.testing.services.service import program_dir

if TYPE_CHECKING:
    from benchmarks.serving_servers import Node, Redis

_GHZ = "github.com/bojand/ghz/cmd/ghz@latest"
_HOW = {
    "wrk": "apt-get install wrk",
    "redis": "apt-get install redis-server redis-tools",
    "go": "install Go 1.25 or later (go.dev/doc/install)",
    "ghz": f"GOBIN={program_dir()} go install {_GHZ}, or leave out gRPC with --no-grpc",
}
_PROGRAMS = {"redis": ("redis-server", "redis-benchmark"), "go": ("go",), "wrk": ("wrk",), "ghz": ("ghz",)}
_PLACES = os.pathsep.join(
    [os.environ.get("PATH", ""), "/usr/local/go/bin", str(program_dir()), str(Path.home() / "go/bin")]
)
_UNITS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}

_GET = """\
math.randomseed(os.time())
request = function() return wrk.format("GET", "/{name}/" .. math.random(1, {rows})) end
"""
_QUERY = """\
math.randomseed(os.time())
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
request = function()
  local body = '{{"$filter":{{"batch":' .. math.random(0, {groups}) .. '}},"$limit":{limit}}}'
  return wrk.format(nil, "/{name}/query", nil, body)
end
"""


def require(needed: Iterable[str]) -> None:
    """Exit with the missing program and how to install it."""
    missing = [name for name in sorted(needed) if any(_find(program) is None for program in _PROGRAMS[name])]
    if missing:
        raise SystemExit("\n".join(f"{name} is missing: {_HOW[name]}" for name in missing))


def go() -> str:
    return str(_find("go"))


def _find(program: str) -> str | None:
    return shutil.which(program, path=_PLACES)


def fetch(url: str, document: Any = None) -> bytes:
    body = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
        return bytes(response.read())


def gets(
    url: str, processes: Sequence[psutil.Process], options: argparse.Namespace, seconds: float
) -> dict[str, float]:
    """Request rows by random keys."""
    return _wrk(_GET.format(name=ENDPOINT.name, rows=options.rows), url, processes, options, seconds)


def queries(
    url: str, processes: Sequence[psutil.Process], options: argparse.Namespace, seconds: float
) -> dict[str, float]:
    """Query twenty rows by random values of an indexed column."""
    groups = max(options.rows // PER_GROUP - 1, 0)
    script = _QUERY.format(name=ENDPOINT.name, groups=groups, limit=PER_GROUP)
    return _wrk(script, url, processes, options, seconds)


def _wrk(
    script: str, url: str, processes: Sequence[psutil.Process], options: argparse.Namespace, seconds: float
) -> dict[str, float]:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        connections = str(options.connections)
        command = [
            str(_find("wrk")),
            "-t1",
            "-c",
            connections,
            "-d",
            f"{max(1, round(seconds))}s",
            "--latency",
            "-s",
            file.name,
            url,
        ]
        return _metered(processes, lambda: parse_wrk(_output(command)))


def parse_wrk(text: str) -> dict[str, float]:
    """Parse the output of wrk. A response other than 2xx is an error."""
    for trouble in ("Non-2xx", "Socket errors"):
        line = next((line.strip() for line in text.splitlines() if trouble in line), None)
        if line is not None:
            raise SystemExit(f"wrk: {line}")
    latencies = {
        f"p{number}_ms": float(value) * _UNITS[unit]
        for number, value, unit in re.findall(r"^\s+(50|99)%\s+([\d.]+)(us|ms|s|m)\s*$", text, re.MULTILINE)
    }
    total = re.search(r"(\d+) requests in ([\d.]+)(us|ms|s|m)", text)
    if total is None or len(latencies) != 2:
        raise SystemExit(f"wrk printed something unexpected:\n{text}")
    requests = float(total[1])
    return {"requests": requests, "per_s": requests / (float(total[2]) * _UNITS[total[3]] / 1000), **latencies}


def redis_gets(redis: Redis, options: argparse.Namespace, seconds: float) -> dict[str, float]:
    """Request the same rows from Redis. The tool takes a number of requests, so its rate is measured first."""
    pace = _redis(redis, options, 20_000)
    return _metered(redis.processes, lambda: _redis(redis, options, max(20_000, round(pace["per_s"] * seconds))))


def _redis(redis: Redis, options: argparse.Namespace, requests: int) -> dict[str, float]:
    command = [str(_find("redis-benchmark")), "-p", str(redis.port), "-c", str(options.connections),
               "-n", str(requests), "-r", str(options.rows), "--csv", "GET", "key:__rand_int__"]  # fmt: skip
    (row,) = csv.DictReader(_output(command).splitlines())
    return {
        "requests": float(requests),
        "per_s": float(row["rps"]),
        "p50_ms": float(row["p50_latency_ms"]),
        "p99_ms": float(row["p99_latency_ms"]),
    }


def grpc_gets(node: Node, options: argparse.Namespace, seconds: float, *, typed: bool) -> dict[str, float]:
    """Request rows by random keys over gRPC: from the endpoint's typed service, or from the common one."""
    key = f'"{{{{randomInt 1 {options.rows}}}}}"'
    name = ENDPOINT.name
    call = f"headrace.endpoints.{name}.{name.capitalize()}Service/Get" if typed else "headrace.v1.CommonService/Get"
    data = f'{{"id": {key}}}' if typed else f'{{"endpoint": "{name}", "key": [{{"int_value": {key}}}]}}'
    command = [str(_find("ghz")), "--insecure", "--call", call, "-d", data, "-c", str(options.connections),
               "--connections", "4", "-z", f"{max(1, round(seconds))}s", "--duration-stop", "wait", "-O", "json",
               node.grpc_address]  # fmt: skip
    return _metered(node.grpc, lambda: parse_ghz(_output(command)))


def parse_ghz(text: str) -> dict[str, float]:
    """Parse the output of ghz. A failed call is an error."""
    report = json.loads(text)
    failed = {status: count for status, count in report["statusCodeDistribution"].items() if status != "OK"}
    if failed or not report["count"]:
        raise SystemExit(f"ghz: {failed or 'no call was made'}: {report.get('errorDistribution')}")
    latencies = {one["percentage"]: one["latency"] / 1e6 for one in report["latencyDistribution"]}
    return {
        "requests": float(report["count"]),
        "per_s": report["rps"],
        "p50_ms": latencies[50],
        "p99_ms": latencies[99],
    }


def _output(command: Sequence[str]) -> str:
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise SystemExit(f"{command[0]} failed: {completed.stderr.strip() or completed.stdout.strip()}")
    return completed.stdout


def _metered(processes: Sequence[psutil.Process], ask: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Add the cost of the server's processes per request."""
    before, began = _cpu(processes), time.perf_counter()
    figures = ask()
    took, cpu = time.perf_counter() - began, _cpu(processes) - before
    requests = figures.pop("requests")
    return {
        **figures,
        "per_cpu_s": requests / max(cpu, 0.01),
        "cpu": cpu / took,
        "load": os.getloadavg()[0],
    }


def _cpu(processes: Sequence[psutil.Process]) -> float:
    times = [one.cpu_times() for one in processes]
    return sum(one.user + one.system for one in times)
