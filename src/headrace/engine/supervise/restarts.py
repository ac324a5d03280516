"""Decides whether and when a flow is started again after a failure.

| cause of the failure | what happens |
|---|---|
| the flow itself | it has failed, without a restart |
| outside the flow (a broker, a disk) | it is restarted as often as needed, with growing pauses |
| unknown | it is restarted as often as the project's restart budget allows |

In a run until caught up every failure is final, because the result must be known. Only a lost executor is restarted: it
is a machine that was too busy to start a process in time, and it uses the budget.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque

from headrace.core.errors import ProjectError
from headrace.core.runtime.backoff import Backoff
from headrace.engine.spark.failures import fault_of
from headrace.engine.supervise.flow_run import FlowRun, PendingRestart
from headrace.project.model import RestartSpec


class Restarts:
    """The restart policy of one run of the engine."""

    def __init__(self, policy: RestartSpec, *, until_caught_up: bool) -> None:
        self._policy = policy
        self._until_caught_up = until_caught_up
        self._failures: defaultdict[str, deque[float]] = defaultdict(deque)

    def after(self, run: FlowRun, error: ProjectError) -> PendingRestart | None:
        """The restart after a failure; None when the failure is final."""
        fault = fault_of(error, has_run=run.has_run)
        if fault == "own" or (self._until_caught_up and error.code != "executor-lost"):
            return None
        attempts = run.pending_restart.attempts + 1 if run.pending_restart else 0
        first, longest = self._policy.backoff.total_seconds(), self._policy.max_backoff.total_seconds()
        pause = Backoff(first, longest, jitter=(0.8, 1.2)).pause(attempts)
        is_external = fault == "outside" and not self._until_caught_up
        return PendingRestart(error, is_external, attempts, time.monotonic() + pause)

    def use_budget(self, flow: str) -> bool:
        """Count one more failure of unknown cause; False when the budget is used up."""
        now, failures = time.monotonic(), self._failures[flow]
        while failures and failures[0] < now - self._policy.within.total_seconds():
            failures.popleft()
        if len(failures) >= self._policy.budget:
            return False
        failures.append(now)
        return True

    def forget(self, flow: str) -> None:
        """Give a flow its full budget again."""
        self._failures.pop(flow, None)
