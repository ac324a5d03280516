"""What steps that ask other services have counted, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

from headrace.core.tallies.step_tally import LATENCIES, LATENCY, LATENCY_SUM, step_counts

_FAILURES = "failures_"
_COUNTERS = {
    "calls": ("headrace_step_calls", "Requests made by a step."),
    "successes": ("headrace_step_successes", "Questions of a step that were answered."),
    "timeouts": ("headrace_step_timeouts", "Questions of a step that were not answered in time."),
    "retries": ("headrace_step_retries", "Questions of a step that were asked again."),
    "cache_hits": ("headrace_step_cache_hits", "Questions of a step that were answered before."),
    "rows_refused": ("headrace_step_rows_refused", "Rows of a step that got no answer: dead letters or nulls."),
}


def step_families(flows: Collection[str]) -> Iterator[Any]:
    """Counters and latencies by flow and step; they cover the tasks that have ended."""
    counts = {key: number for key, number in sorted(step_counts().items()) if key[0] in flows}
    for outcome, (name, help_text) in _COUNTERS.items():
        family = CounterMetricFamily(name, help_text, labels=["flow", "step"])
        for (flow, step, counted), number in counts.items():
            if counted == outcome:
                family.add_metric([flow, step], number)
        yield family
    failures = CounterMetricFamily(
        "headrace_step_failures", "Questions of a step that were refused, by class.", labels=["flow", "step", "class"]
    )
    for (flow, step, counted), number in counts.items():
        if counted.startswith(_FAILURES):
            failures.add_metric([flow, step, counted.removeprefix(_FAILURES)], number)
    yield failures
    yield _latencies(counts)


def _latencies(counts: dict[tuple[str, str, str], int]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(
        "headrace_step_latency_seconds", "How long requests of a step took.", labels=["flow", "step"]
    )
    for flow, step in dict.fromkeys((flow, step) for flow, step, counted in counts if counted == LATENCY_SUM):
        total = 0
        buckets = []
        for bound in (*map(str, LATENCIES), "+Inf"):
            total += counts.get((flow, step, f"{LATENCY}{bound}"), 0)
            buckets.append((bound, total))
        family.add_metric([flow, step], buckets=buckets, sum_value=counts[flow, step, LATENCY_SUM] / 1_000_000)
    return family
