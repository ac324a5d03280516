"""When flows with a schedule are due. Stored in the state folder, so that a missed run is made up for, once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from headrace.core.files.state_files import StatePath, write_atomically
from headrace.engine.state.state import StateDir
from headrace.plan.model import FlowPlan

_LAST, _SINCE = "last", "since"


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Timetable:
    """The schedules of the flows of one engine. If they are not `followed`, every flow runs now, once."""

    state: StateDir
    followed: bool = True
    clock: Callable[[], datetime] = _now
    _known: dict[str, dict[str, str]] = field(default_factory=dict)
    _began: dict[str, datetime] = field(default_factory=dict)

    def holds(self, flow: FlowPlan) -> bool:
        """Whether a flow runs by its schedule."""
        return self.followed and flow.spec.schedule is not None

    def is_due(self, flow: FlowPlan) -> bool:
        return not self.holds(flow) or self._next(flow) <= self.clock()

    def begins(self, flow: FlowPlan) -> None:
        self._began[flow.name] = self.clock()

    def ends(self, flow: FlowPlan) -> None:
        """Record the end of a run, successful or not. The next run is the next scheduled time after its start."""
        if flow.spec.schedule is None:
            return
        last = self._began.get(flow.name, self.clock())
        known = self._known[flow.name] = {**self._of(flow), _LAST: last.isoformat()}
        write_atomically(self._file(flow), json.dumps(known).encode())

    def describe(self, flow: FlowPlan) -> dict[str, Any] | None:
        """The schedule of a flow for the status document."""
        schedule = flow.spec.schedule
        if schedule is None:
            return None
        due = self._next(flow).isoformat() if self.followed else None
        return {"cron": schedule.cron, "zone": schedule.zone, "last": self._of(flow).get(_LAST), "next": due}

    def _next(self, flow: FlowPlan) -> datetime:
        schedule, known = flow.spec.schedule, self._of(flow)
        assert schedule is not None
        return schedule.after(datetime.fromisoformat(known.get(_LAST, known[_SINCE])))

    def _of(self, flow: FlowPlan) -> dict[str, str]:
        """When the flow was first seen, and when it last ran."""
        if flow.name not in self._known:
            try:
                known = json.loads(self._file(flow).read_bytes())
            except FileNotFoundError:
                known = {_SINCE: self.clock().isoformat()}
                if self.followed:
                    write_atomically(self._file(flow), json.dumps(known).encode())
            self._known[flow.name] = known
        return self._known[flow.name]

    def _file(self, flow: FlowPlan) -> StatePath:
        return self.state.root / "schedules" / f"{flow.name}.json"
