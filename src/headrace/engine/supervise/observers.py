"""Who is told when a flow has finished a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from headrace.plan.model import FlowPlan


class Observer(Protocol):
    """Told by the supervisor, never in the way of a batch; what it raises is noted, and the flow goes on."""

    def batch_done(self, flow: FlowPlan, progress: Mapping[str, Any]) -> None:
        """A batch is committed: Spark's progress report about it."""

    def close(self) -> None:
        """All flows have stopped."""
