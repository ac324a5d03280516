"""Orders to single flows of a running engine, and waiting until they are carried out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.terminal.completion import complete_flows
from headrace.cli.terminal.output import printer
from headrace.core.errors import Exit, ProjectError, did_you_mean
from headrace.engine.state.orders import give_order
from headrace.engine.state.status_file import read_status

if TYPE_CHECKING:
    from headrace.engine.state.orders import FlowOrder, Want
    from headrace.engine.state.state import StateDir

Flows = Annotated[
    list[str],
    typer.Argument(metavar="[PROJECT] FLOW…", help="The flows, after their project.", autocompletion=complete_flows),
]
Timeout = Annotated[str, typer.Option("--timeout", metavar="TIME", help="How long to wait until it is done.")]
Flow = dict[str, Any]
"""One flow of a status."""

_LOOK_SECONDS = 0.1
_ENDED = ("stopped", "failed")


@dataclass(frozen=True)
class FlowOrders:
    """Sends orders to the engine and waits for them until a deadline."""

    state: StateDir
    deadline: float
    patience: str

    def flows(self, names: Sequence[str]) -> dict[str, Flow]:
        """The status of these flows. Waits while the engine has not reported yet."""
        while (reading := read_status(self.state)).freshness == "stale":
            self._wait("the engine does not report: it is paused, overloaded or still starting")
        if reading.freshness == "no-engine":
            raise no_engine()
        known = {flow["name"]: flow for flow in reading.to_json()["flow_list"]}
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
        """Stop these flows. Refuses those that are stopped already."""
        for name, flow in self.flows(names).items():
            if flow["state"] == "stopped":
                request = flow.get("stop")
                reason = f", requested by {request['by']} at {request['at']}" if request else ", because it is done"
                raise ProjectError(
                    "already-stopped",
                    f"flow '{name}' is stopped{reason}",
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
        orders = {name: give_order(self.state, name, want) for name in names}
        while waiting := [name for name, flow in self.flows(names).items() if not done(flow, orders[name])]:
            self._wait(f"flow '{waiting[0]}' is not {want} yet; the order stands")
        return list(self.flows(names).values())

    def _wait(self, why: str) -> None:
        if time.monotonic() > self.deadline:
            hint = "wait longer with --timeout; headrace status shows its state"
            raise ProjectError("order-timeout", f"{why} ({self.patience})", hint=hint, exit_code=Exit.TIMEOUT)
        time.sleep(_LOOK_SECONDS)  # the engine reports through its status file


def _has_stopped(flow: Flow, order: FlowOrder) -> bool:
    return flow["state"] == "stopped" and (flow.get("stop") or {}).get("at") == order.at


def _has_started(flow: Flow, order: FlowOrder) -> bool:
    """Also true for a flow that failed or finished again since the order."""
    return flow.get("stop") is None and (flow["state"] not in _ENDED or flow["since"] > order.at)


def no_engine() -> ProjectError:
    hint = "headrace run starts one; headrace status shows what is known"
    return ProjectError("no-engine", "no engine runs this project", hint=hint, exit_code=Exit.NOT_FOUND)


def print_states(flows: Sequence[Flow], json: bool) -> None:
    """Print the states of the flows; a failed flow is an error."""
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
