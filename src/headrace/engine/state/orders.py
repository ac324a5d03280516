"""Orders to stop or start single flows of a running engine.

An order is a small file in the state folder: it needs no open port, only write permission. It is valid until the next
order, also for engines that are started later.
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
# on an object store, each check is one request per flow
_STORE_SECONDS = 5.0


@dataclass(frozen=True)
class FlowOrder:
    """The wanted state of a flow, who ordered it and when."""

    want: Want
    by: str
    at: str


def give_order(state: StateDir, flow: str, want: Want) -> FlowOrder:
    """Write an order for the engine of this state folder."""
    order = FlowOrder(want, _user(), utc_now("microseconds"))
    try:
        write_atomically(_file(state, flow), json.dumps(asdict(order)).encode())
    except OSError as error:
        raise ProjectError(
            "state-unwritable",
            f"the state folder {state.root} cannot be written: {error.strerror}",
            hint="run this command as the user of the engine",
        ) from error
    return order


def last_order(state: StateDir, flow: str) -> FlowOrder | None:
    try:
        return FlowOrder(**json.loads(_file(state, flow).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


class Orders:
    """Finds new orders. A folder that cannot be read has none: no flow starts because a disk is unavailable."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._seen: dict[str, FlowOrder] = {}
        self._pause = _STORE_SECONDS if isinstance(state.root, ObjectPath) else 0.0
        self._due = 0.0

    def news(self, flows: Iterable[str]) -> dict[str, FlowOrder]:
        """The orders that are new since the last call, by flow."""
        if time.monotonic() < self._due:
            return {}
        self._due = time.monotonic() + self._pause
        orders = {flow: order for flow in flows if (order := last_order(self._state, flow)) is not None}
        new = {flow: order for flow, order in orders.items() if self._seen.get(flow) != order}
        self._seen |= new
        return new


def _file(state: StateDir, flow: str) -> StatePath:
    return state.root / "orders" / f"{flow}.json"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container the user may have no name
        return f"user {os.getuid()}"
