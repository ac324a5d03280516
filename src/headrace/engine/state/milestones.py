"""Milestones of a batch and of a switch to a candidate generation, announced to observers.

A process without observers does nothing here. Spark's own commit has no milestone: the engine does not control it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Milestone = Literal["before_batch", "between_sinks", "after_sinks", "before_switch", "between_publishes", "published"]
"""The last three belong to a switch, whose batch number is 0."""
Observer = Callable[[Milestone, str, int], None]

_observers: list[Observer] = []


def observe(observer: Observer) -> None:
    """Call an observer with the milestone, the flow and the batch number, in the thread that reaches the milestone."""
    _observers.append(observer)


def reach(milestone: Milestone, flow: str, batch_id: int) -> None:
    for observer in _observers:
        observer(milestone, flow, batch_id)
