"""What steps that ask other services have counted, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from prometheus_client.core import Metric

from headrace.core.tallies.step_tally import LATENCIES, LATENCY, LATENCY_SUM, step_counts
from headrace.engine.observe import metric_specs as specs

_FAILURES = "failures_"
_COUNTERS = {
    "calls": specs.STEP_CALLS,
    "successes": specs.STEP_SUCCESSES,
    "timeouts": specs.STEP_TIMEOUTS,
    "retries": specs.STEP_RETRIES,
    "cache_hits": specs.STEP_CACHE_HITS,
    "rows_refused": specs.STEP_ROWS_REFUSED,
}


def step_families(flows: Collection[str]) -> Iterator[Metric]:
    """Counters and latencies by flow and step; they cover the tasks that have ended."""
    counts = {key: number for key, number in sorted(step_counts().items()) if key[0] in flows}
    for outcome, spec in _COUNTERS.items():
        family = spec.family()
        for (flow, step, counted), number in counts.items():
            if counted == outcome:
                family.add_metric([flow, step], number)
        yield family
    failures = specs.STEP_FAILURES.family()
    for (flow, step, counted), number in counts.items():
        if counted.startswith(_FAILURES):
            failures.add_metric([flow, step, counted.removeprefix(_FAILURES)], number)
    yield failures
    yield _latencies(counts)


def _latencies(counts: dict[tuple[str, str, str], int]) -> Metric:
    family = specs.STEP_LATENCY.family()
    for flow, step in dict.fromkeys((flow, step) for flow, step, counted in counts if counted == LATENCY_SUM):
        total = 0
        buckets = []
        for bound in (*map(str, LATENCIES), "+Inf"):
            total += counts.get((flow, step, f"{LATENCY}{bound}"), 0)
            buckets.append((bound, total))
        family.add_metric([flow, step], buckets=buckets, sum_value=counts[flow, step, LATENCY_SUM] / 1_000_000)
    return family
