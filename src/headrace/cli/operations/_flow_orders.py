"""Orders to single flows of a running engine, and waiting until they are carried out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.cli.terminal.output import printer
from headrace.core.errors import Exit, ProjectError, did_you_mean

if TYPE_CHECKING:
    from headrace.engine.state.orders import FlowOrder, Want
    from headrace.engine.state.state import StateDir

Flow = dict[str, Any]
"""One flow of a status."""

_LOOK_SECONDS = 0.1
_ENDED = ("stopped", "failed")


@dataclass(frozen=True)
class Clerk:
    """Passes orders on and waits for them, never longer than until its deadline."""

    state: StateDir
    deadline: float
    patience: str

    def flows(self, names: Sequence[str]) -> dict[str, Flow]:
        """What the engine says about these flows; it may only just have begun to say something."""
        from headrace.engine.state.status_file import read_status

        while (seen := read_status(self.state)).freshness == "stale":
            self._wait("the engine says nothing: it is paused, overloaded or still starting")
        if seen.freshness == "no-engine":
            raise no_engine()
        known = {flow["name"]: flow for flow in seen.to_json()["flow_list"]}
        for name in names:
            if name not in known:
                raise ProjectError(
                    "flow-not-run",
                    f"the engine does not run flow '{name}' by itself",
                    hint=did_you_mean(name, known, "it runs"),
                    exit_code=Exit.NOT_FOUND,
                )
        return {name: known[name] for name in names}

    def stop(self, names: Sequence[str]) -> list[Flow]:
        """Stop these flows, none of which is stopped already."""
        for name, flow in self.flows(names).items():
            if flow["state"] == "stopped":
                asked = flow.get("stop")
                who = f", asked for by {asked['by']} at {asked['at']}" if asked else ", as it is done"
                raise ProjectError(
                    "already-stopped",
                    f"flow '{name}' is stopped{who}",
                    hint=f"headrace start {name}",
                    exit_code=Exit.CONFLICT,
                )
        return self._order(names, "stopped", _has_stopped)

    def start(self, names: Sequence[str]) -> list[Flow]:
        """Start these flows, which are stopped or have failed."""
        for name, flow in self.flows(names).items():
            if flow["state"] not in _ENDED and flow.get("stop") is None:
                raise ProjectError(
                    "already-running",
                    f"flow '{name}' is {flow['state']}",
                    hint=f"headrace status {name}",
                    exit_code=Exit.CONFLICT,
                )
        return self._order(names, "running", _has_started)

    def restart(self, names: Sequence[str]) -> list[Flow]:
        """Stop those that have not ended, then start all."""
        running = [name for name, flow in self.flows(names).items() if flow["state"] not in _ENDED]
        if running:
            self.stop(running)
        return self.start(names)

    def _order(self, names: Sequence[str], want: Want, done: Callable[[Flow, FlowOrder], bool]) -> list[Flow]:
        from headrace.engine.state.orders import give_order

        orders = {name: give_order(self.state, name, want) for name in names}
        while waiting := [name for name, flow in self.flows(names).items() if not done(flow, orders[name])]:
            self._wait(f"flow '{waiting[0]}' is not {want} yet; the order stands")
        return list(self.flows(names).values())

    def _wait(self, why: str) -> None:
        if time.monotonic() > self.deadline:
            hint = "wait longer with --timeout; headrace status says how it is"
            raise ProjectError("order-timeout", f"{why} ({self.patience})", hint=hint, exit_code=Exit.TIMEOUT)
        time.sleep(_LOOK_SECONDS)  # the engine tells by its status file


def _has_stopped(flow: Flow, order: FlowOrder) -> bool:
    return flow["state"] == "stopped" and (flow.get("stop") or {}).get("at") == order.at


def _has_started(flow: Flow, order: FlowOrder) -> bool:
    """Also one that failed, or was done, again since."""
    return flow.get("stop") is None and (flow["state"] not in _ENDED or flow["since"] > order.at)


def no_engine() -> ProjectError:
    """There is nobody to give orders to."""
    hint = "headrace run starts one; headrace status shows what is known"
    return ProjectError("no-engine", "no engine runs this project", hint=hint, exit_code=Exit.NOT_FOUND)


def say(flows: Sequence[Flow], json: bool) -> None:
    """What became of the flows; a failure is an error."""
    if json:
        printer.document(
            {"flows": [{key: flow.get(key) for key in ("name", "state", "since", "stop")} for flow in flows]}
        )
    else:
        for flow in flows:
            printer.note(f"{flow['name']} is {flow['state']}")
    for flow in flows:
        if flow["state"] == "failed":
            error = flow["last_error"] or {"code": "flow-failed", "message": "it failed"}
            raise ProjectError(
                "start-failed", f"flow '{flow['name']}' has failed again: {error['message']} [{error['code']}]"
            )
