"""The interface of everything that is notified when a flow has finished a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from headrace.plan.model import FlowPlan


class Observer(Protocol):
    """Called in a separate thread, so it never blocks a batch. What it raises is noted, and the flow continues."""

    def batch_done(self, flow: FlowPlan, progress: Mapping[str, Any]) -> None:
        """A batch is committed; `progress` is Spark's report about it."""

    def close(self) -> None:
        """All flows have stopped."""
