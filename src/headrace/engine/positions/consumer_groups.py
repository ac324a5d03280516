"""Commits the positions of flows to Kafka consumer groups, so that Kafka tools show the lag of flows.

Spark commits no offsets to Kafka. A flow does not read these offsets either: its checkpoint alone holds its position.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.positions import Positions
from headrace.engine.positions.positions import PositionsByInput, committed_positions, input_positions
from headrace.engine.state.state import StateDir
from headrace.plan.model import FlowPlan

_LOG = logging.getLogger(__name__)
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_REPEAT_SECONDS = 3600.0
"""Kafka deletes the offsets of a group without members after a week, and a flow may be idle for longer."""


class GroupCommitter:
    """Observer that commits positions in a separate thread, so that an unavailable broker never delays a batch.

    Only the newest position of a flow is committed. A failed commit is retried until it succeeds, or until `close` has
    waited for `patience` seconds.
    """

    def __init__(self, project: str, context: Context, state: StateDir, patience: float = 10.0) -> None:
        self._project = project
        self._context = context
        self._state = state
        self._patience = patience
        self._flows: dict[str, FlowPlan] = {}
        self._inputs: dict[str, dict[str, Positions]] = {}
        self._waiting: set[str] = set()
        self._changed_plans: set[str] = set()
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._work, name="consumer-groups", daemon=True)
        self._thread.start()

    def batch_done(self, flow: FlowPlan, progress: Mapping[str, Any]) -> None:
        with self._changed:
            if self._flows.get(flow.name, flow) is not flow:
                self._changed_plans.add(flow.name)  # it may have other inputs now
            self._flows[flow.name] = flow
            self._waiting.add(flow.name)
            self._changed.notify()

    def close(self) -> None:
        """Commit the last positions, and end the thread."""
        with self._changed:
            self._deadline = time.monotonic() + self._patience
            self._changed.notify()
        self._thread.join(self._patience + 1.0)

    def _work(self) -> None:
        pause = _FIRST_PAUSE
        while (names := self._next()) is not None:
            failed = [name for name in names if not self._commit(name)]
            if not failed:
                pause = _FIRST_PAUSE
                continue
            with self._changed:
                self._waiting.update(failed)
                self._changed.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE) if self._deadline is None else 0.5
        for inputs in self._inputs.values():
            for known in inputs.values():
                known.close()

    def _next(self) -> list[str] | None:
        """Wait for flows to commit; None at the end."""
        with self._changed:
            while not self._waiting and self._deadline is None:
                if not self._changed.wait(_REPEAT_SECONDS):
                    self._waiting.update(self._flows)
            over = self._deadline is not None and time.monotonic() > self._deadline
            names, self._waiting = sorted(self._waiting), set()
            return None if over or not names else names

    def _commit(self, name: str) -> bool:
        """False when the commit has to be tried again."""
        generation = self._state.generations(name).current()
        if generation is None:
            return True
        if name in self._changed_plans:
            self._changed_plans.discard(name)
            self._close_inputs(name)
        if name not in self._inputs:
            self._inputs[name] = input_positions(self._flows[name], self._context)
        try:
            publish_positions(
                self._project, name, self._inputs[name], committed_positions(self._inputs[name], generation)
            )
        except ProjectError as error:
            _LOG.warning("the consumer group of flow %s is not up to date: %s", name, error.message)
            # a client that has lost its coordinator does not find it again, even after the broker is back
            self._close_inputs(name)
            return False
        except OSError as error:
            _LOG.warning("the checkpoint of flow %s cannot be read: %s", name, error)
            return False
        return True

    def _close_inputs(self, name: str) -> None:
        for known in self._inputs.pop(name, {}).values():
            known.close()


def publish_positions(project: str, flow: str, inputs: Mapping[str, Positions], at: PositionsByInput) -> list[str]:
    """Commit positions to the consumer groups of the inputs that have one; returns the names of the groups."""
    groups = []
    for name, position in at.items():
        group = inputs[name].group(project, flow)
        if group is not None and position is not None:
            inputs[name].publish(group, position)
            groups.append(group)
    return list(dict.fromkeys(groups))
