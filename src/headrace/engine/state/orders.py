"""What people ask of single flows of a running engine: to stop, and to start again.

An order is a small file in the state folder, so it needs no open port, works for whoever may write there, and holds
until the next order, also for engines that are started later.
"""

from __future__ import annotations

import getpass
import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from headrace.core.errors import ProjectError
from headrace.core.files.objects import ObjectPath
from headrace.core.files.state_files import StatePath, write_atomically
from headrace.engine.state.state import StateDir
from headrace.engine.state.utc import utc_now

Want = Literal["stopped", "running"]
# each look at an object store is a request per flow
_STORE_SECONDS = 5.0


@dataclass(frozen=True)
class FlowOrder:
    """What a flow is wanted to be, who said so and when."""

    want: Want
    by: str
    at: str


def give_order(state: StateDir, flow: str, want: Want) -> FlowOrder:
    """Leave an order for the engine of this state folder."""
    order = FlowOrder(want, _who(), utc_now("microseconds"))
    try:
        write_atomically(_file(state, flow), json.dumps(asdict(order)).encode())
    except OSError as error:
        raise ProjectError(
            "state-unwritable",
            f"the state folder {state.root} cannot be written: {error.strerror}",
            hint="run this as the user whose engine it is",
        ) from error
    return order


def last_order(state: StateDir, flow: str) -> FlowOrder | None:
    """The order that holds for a flow, if there ever was one."""
    try:
        return FlowOrder(**json.loads(_file(state, flow).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


class Orders:
    """Looks for new orders. A folder that cannot be read has no news: nothing starts because a disk is away."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._taken: dict[str, FlowOrder] = {}
        self._pause = _STORE_SECONDS if isinstance(state.root, ObjectPath) else 0.0
        self._due = 0.0

    def news(self, flows: Iterable[str]) -> dict[str, FlowOrder]:
        """The orders that were not there at the last look, by flow."""
        if time.monotonic() < self._due:
            return {}
        self._due = time.monotonic() + self._pause
        found = {flow: order for flow in flows if (order := last_order(self._state, flow)) is not None}
        new = {flow: order for flow, order in found.items() if self._taken.get(flow) != order}
        self._taken |= new
        return new


def _file(state: StateDir, flow: str) -> StatePath:
    return state.root / "orders" / f"{flow}.json"


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may know no name for its user
        return f"user {os.getuid()}"
