"""Wait until a flow meets a condition."""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from headrace.cli.terminal.completion import complete_flows
from headrace.cli.terminal.engines import flows_of, seconds_of
from headrace.cli.terminal.output import printer, usage_error
from headrace.cli.terminal.project_args import Json, ProjectTarget, project_options
from headrace.core.errors import Exit, ProjectError, did_you_mean
from headrace.engine.state.status_file import STATES, read_status

Holds = Callable[[dict[str, Any]], bool]

_LOOK_SECONDS = 0.2
_COMPARISON = re.compile(r"(lag|batches|rows_in|dead_letters)\s*(<=|>=|<|>|=)\s*(.+)")
_OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq}
_EXAMPLES = "e.g. state=running, lag<5s, lag<=100, batches>=3, caught-up"
_Flow = Annotated[
    list[str],
    typer.Argument(metavar="[PROJECT] FLOW", help="The flow, after its project.", autocompletion=complete_flows),
]


@project_options(_Flow)
def wait(
    target: ProjectTarget,
    for_: Annotated[str, typer.Option("--for", metavar="CONDITION", help=f"What to wait for, {_EXAMPLES}.")],
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="The maximum time to wait.")] = "2m",
    json: Json = False,
) -> None:
    """Wait until a flow of a running engine meets a condition.

    Conditions: state=NAME, lag<TIME or lag<RECORDS, batches>=N, rows_in>=N, dead_letters<=N, caught-up. An unknown
    value meets no condition. Exits with 124 after the timeout, and with 1 when the flow has failed meanwhile.
    """
    flows = target.flows
    if len(flows) != 1:
        raise usage_error("name exactly one flow to wait for")
    holds = condition(for_)
    state = target.state()
    deadline = time.monotonic() + seconds_of("--timeout", timeout)
    while True:
        reading = read_status(state)
        flow = next(iter(flows_of(reading.to_json(), flows)), None)
        if flow is not None and reading.freshness == "no-engine":
            flow = _without_engine(flow)
        if flow is not None and reading.freshness != "stale" and holds(flow):
            printer.document({"flow": flow["name"], "met": for_, "status": flow}) if json else None
            return
        _give_up_if_failed(flow, live=reading.freshness == "live")
        if time.monotonic() > deadline:
            raise ProjectError(
                "wait-timeout",
                f"flow '{flows[0]}' is not {for_} after {timeout}: {_describe(flow, reading.freshness)}",
                hint=f"see: headrace status {flows[0]}",
                exit_code=Exit.TIMEOUT,
            )
        time.sleep(_LOOK_SECONDS)


def _without_engine(flow: dict[str, Any]) -> dict[str, Any]:
    """Return the status that is valid without an engine: numbers of a previous engine do not count for the next."""
    unknown = dict.fromkeys(("lag", "batches", "rows_in", "caught_up"))
    return {**flow, **unknown, "state": "failed" if flow["state"] == "failed" else "stopped"}


def _give_up_if_failed(flow: dict[str, Any] | None, *, live: bool) -> None:
    if live and flow is not None and flow["state"] == "failed":
        error = flow["last_error"] or {"code": "flow-failed", "message": "it failed", "hint": None}
        raise ProjectError(
            "wait-failed", f"flow '{flow['name']}' has failed: {error['message']} [{error['code']}]", hint=error["hint"]
        )


def _describe(flow: dict[str, Any] | None, freshness: str) -> str:
    if flow is None or freshness != "live":
        return "no engine runs" if freshness == "no-engine" else "its engine does not report"
    lag = flow["lag"] or {"records": None, "s": None}
    return f"state {flow['state']}, {flow['batches']} batches, lag {lag['records']} records, {lag['s']} s"


def condition(text: str) -> Holds:
    """Parse a condition into a check of a flow's status. Raises a usage error."""
    text = text.strip()
    if text == "caught-up":
        return lambda flow: flow["caught_up"] is True
    if text.startswith("state="):
        return _state(text.removeprefix("state="))
    comparison = _COMPARISON.fullmatch(text)
    if comparison is None:
        raise usage_error(f"--for: '{text}' is not a condition", f"write {_EXAMPLES}")
    name, compare, value = comparison[1], _OPERATORS[comparison[2]], comparison[3].strip()
    if value.replace(",", "").isdecimal():
        number: float = int(value.replace(",", ""))
        return lambda flow: (have := _records(flow, name)) is not None and compare(have, number)
    if name != "lag":
        raise usage_error(f"--for: '{value}' is not a number of {name}", f"write {_EXAMPLES}")
    seconds = seconds_of("--for", value)
    return lambda flow: flow["lag"] is not None and flow["lag"]["s"] is not None and compare(flow["lag"]["s"], seconds)


def _state(name: str) -> Holds:
    if name not in STATES:
        raise usage_error(f"--for: state '{name}' does not exist", did_you_mean(name, STATES, "states"))
    return lambda flow: flow["state"] == name


def _records(flow: dict[str, Any], name: str) -> float | None:
    if name == "lag":
        return None if flow["lag"] is None else flow["lag"]["records"]
    value: float | None = flow[name]
    return value
