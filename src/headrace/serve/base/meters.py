"""The metrics of a node's processes, and their form at `/metrics`.

Each process counts its own requests and writes its numbers to a file every second; the process that answers `/metrics`
adds up all files. The file of an ended process stays until the node restarts, so that no counter ever decreases.
"""

from __future__ import annotations

import json
import os
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from headrace.core.files.state_files import write_atomically
from headrace.core.tallies.metrics import MetricSet

_FOLDER = "meters"
_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_STATES = ("ready", "hydrating", "failed")

SERVE = MetricSet("Serve nodes", "Each serve node exposes the sum over its processes, and its endpoints.")
_REQUESTS = SERVE.counter(
    "headrace_serve_requests", "Requests that were answered.", "surface", "route", "endpoint", "status"
)
_RATE_LIMITED = SERVE.counter("headrace_serve_rate_limited", "Requests over a limit.", "surface")
_REQUEST_SECONDS = SERVE.histogram("headrace_serve_request_seconds", "Time to answer a request.", "surface", "route")
_SUBSCRIBERS = SERVE.gauge("headrace_serve_subscribers", "Live subscriptions.")
_ENDPOINT_STATE = SERVE.gauge("headrace_endpoint_state", "1 for the state it is in.", "endpoint", "state")
_ENDPOINT_ROWS = SERVE.gauge("headrace_endpoint_rows", "Rows of the version that is served.", "endpoint")


class Meters:
    """The metrics of one process of a node."""

    def __init__(self, store: Path | None = None) -> None:
        self._requests: Counter[tuple[str, str, str, int]] = Counter()
        self._times: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * (len(_BOUNDS) + 2))
        self._subscribers = 0
        self._changed = False
        self._folder = None if store is None else store / _FOLDER
        self._name = f"{os.getpid()}-{time.time_ns()}.json"

    def count(self, surface: str, route: str, endpoint: str, status: int, seconds: float) -> None:
        self._requests[surface, route, endpoint, status] += 1
        times = self._times[surface, route]
        times[bisect_left(_BOUNDS, seconds)] += 1
        times[-1] += seconds
        self._changed = True

    def subscribers(self, more: int) -> None:
        """Add to the number of live subscriptions; negative when some ended."""
        self._subscribers += more
        self._changed = True

    def write(self) -> None:
        """Write the metrics for the other processes."""
        if self._folder is not None and self._changed:
            self._changed = False
            write_atomically(self._folder / self._name, json.dumps(self._document()).encode(), durable=False)

    def text(self, endpoints: Mapping[str, Mapping[str, Any]]) -> bytes:
        """The metrics of all processes and of the endpoints, in the format of Prometheus."""
        self._changed = True
        self.write()
        registry = CollectorRegistry()
        registry.register(_Page(self._all(), endpoints))
        return generate_latest(registry)

    def _document(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "requests": [[*labels, number] for labels, number in self._requests.items()],
            "times": [[*labels, numbers] for labels, numbers in self._times.items()],
            "subscribers": self._subscribers,
        }

    def _all(self) -> list[dict[str, Any]]:
        if self._folder is None:
            return [self._document()]
        return [json.loads(file.read_bytes()) for file in sorted(self._folder.glob("[0-9]*.json"))]


def forget(store: Path) -> None:
    """Remove the metrics of earlier processes, before a node starts its own."""
    for file in (store / _FOLDER).glob("*.json"):
        file.unlink(missing_ok=True)


class _Page(Collector):
    def __init__(self, documents: list[dict[str, Any]], endpoints: Mapping[str, Mapping[str, Any]]) -> None:
        self._documents = documents
        self._endpoints = endpoints

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield self._times()
        running = [document for document in self._documents if _is_running(document["pid"])]
        subscribers = _SUBSCRIBERS.family()
        subscribers.add_metric([], sum(document["subscribers"] for document in running))
        yield subscribers
        yield from self._about_endpoints()

    def _requests(self) -> Iterator[Metric]:
        total: Counter[tuple[str, ...]] = Counter()
        for document in self._documents:
            for *labels, number in document["requests"]:
                total[tuple(map(str, labels))] += number
        answered, limited = _REQUESTS.family(), _RATE_LIMITED.family()
        refused: Counter[str] = Counter()
        for labels, number in sorted(total.items()):
            answered.add_metric(labels, number)
            refused[labels[0]] += number if labels[3] == "429" else 0
        for surface, number in sorted(refused.items()):
            limited.add_metric([surface], number)
        yield answered
        yield limited

    def _times(self) -> Metric:
        total: defaultdict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0] * (len(_BOUNDS) + 2))
        for document in self._documents:
            for *labels, numbers in document["times"]:
                sums = total[tuple(labels)]
                sums[:] = [a + b for a, b in zip(sums, numbers, strict=True)]
        histogram = _REQUEST_SECONDS.family()
        for labels, numbers in sorted(total.items()):
            histogram.add_metric(labels, list(_cumulated(numbers[:-1])), sum_value=numbers[-1])
        return histogram

    def _about_endpoints(self) -> Iterator[Metric]:
        states, rows = _ENDPOINT_STATE.family(), _ENDPOINT_ROWS.family()
        for name, status in sorted(self._endpoints.items()):
            for state in _STATES:
                states.add_metric([name, state], float(status.get("state") == state))
            if isinstance(status.get("rows"), int):
                rows.add_metric([name], status["rows"])
        yield states
        yield rows


def _cumulated(numbers: list[float]) -> Iterator[tuple[str, float]]:
    total = 0.0
    for bound, number in zip([*map(str, _BOUNDS), "+Inf"], numbers, strict=True):
        total += number
        yield bound, total


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
