"""Stops flows after a batch, not in the middle of one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace.engine.flows.flow import FlowStarter
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.flow_run import FlowRun

_POLL_SECONDS = 0.002
# a flow whose broker is unavailable will not finish its batch
_SECONDS_WHEN_DEGRADED = 5.0
_SECONDS_AFTER_DEADLINE = 10.0


def stop_flow(run: FlowRun, starter: FlowStarter, deadline: float) -> None:
    """Stop a flow's query when its running batch is committed, at the deadline at the latest.

    Spark can only interrupt a query, and its status does not show the moment between two batches that follow each other
    without a pause. The checkpoint does: after the commit of a batch Spark queries the sources, and only then writes
    the next batch to the offset log. If that moment is missed, the interrupted batch is run again alone.
    """
    query = run.query
    assert query is not None
    if run.state == "degraded":
        deadline = min(deadline, time.monotonic() + _SECONDS_WHEN_DEGRADED)
    # a real-time batch lasts for minutes, and its rows are written already
    waits = run.plan.spec.mode != "realtime"
    while waits and query.isActive and _in_flight(starter.state, run.plan.name) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)  # Spark has no event for this: only its files show it
    query.stop()
    if waits and time.monotonic() < deadline and _in_flight(starter.state, run.plan.name):
        run.query = replace(starter, one_batch=True).start(run.plan)
        run.query.awaitTermination(max(1, round(deadline - time.monotonic())))
        run.query.stop()


def stop_in_parallel(runs: Sequence[FlowRun], stop: Callable[[FlowRun], None], deadline: float) -> None:
    """Call `stop` for every active flow, each in its own thread."""
    active = [run for run in runs if run.query is not None and run.query.isActive]
    threads = [threading.Thread(target=stop, args=(run,), daemon=True) for run in active]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()) + _SECONDS_AFTER_DEADLINE)


def resume_counting(run: FlowRun, starter: FlowStarter) -> None:
    """After its query has ended, count the batches of a flow from its last committed one."""
    done = starter.state.current(run.plan.name).checkpoint.committed()
    run.resume_after(-1 if done is None else done.batch_id)


def _in_flight(state: StateDir, flow: str) -> bool:
    try:
        generation = state.generations(flow).current()
        return generation is not None and generation.checkpoint.in_flight()
    except OSError:
        return False  # the state folder is unavailable: there is nothing to wait for
