"""How a flow is stopped: after a batch, not in the middle of one."""

from __future__ import annotations

import time
from dataclasses import replace

from headrace.engine.flows.flow import FlowStarter
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.flow_run import FlowRun

_LOOK_SECONDS = 0.002
# a flow whose broker is away will not finish its batch
_PATIENCE_WHEN_DEGRADED = 5.0


def stop_flow(run: FlowRun, starter: FlowStarter, deadline: float) -> None:
    """Stop a flow's query when its running batch is committed, at the deadline at the latest.

    Spark can only be interrupted. Its own status says nothing about the moment between two batches when they follow one
    another without a pause; the checkpoint does: after the commit of a batch Spark asks the sources what there is next,
    and only then writes down the next batch. When that moment is missed after all, the batch that was cut off is run
    alone.
    """
    query = run.query
    assert query is not None
    if run.state == "degraded":
        deadline = min(deadline, time.monotonic() + _PATIENCE_WHEN_DEGRADED)
    # a real-time batch lasts for minutes, and its rows are written already
    patient = run.plan.spec.mode != "realtime"
    while patient and query.isActive and _in_flight(starter.state, run.plan.name) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)  # Spark tells nobody: its files are all there is to see
    query.stop()
    if patient and time.monotonic() < deadline and _in_flight(starter.state, run.plan.name):
        run.query = replace(starter, one_batch=True).start(run.plan)
        run.query.awaitTermination(max(1, round(deadline - time.monotonic())))
        run.query.stop()


def count_on(run: FlowRun, starter: FlowStarter) -> None:
    """Let a flow whose query has ended count on from the last batch that it did."""
    done = starter.state.current(run.plan.name).checkpoint.committed()
    run.go_on_after(-1 if done is None else done.batch_id)


def _in_flight(state: StateDir, flow: str) -> bool:
    try:
        generation = state.generations(flow).current()
        return generation is not None and generation.checkpoint.in_flight()
    except OSError:
        return False  # the folder is away: there is nothing to wait for
