"""Stop an engine, or some of its flows, after the running batches."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.operations._flow_orders import FlowOrders, print_states
from headrace.cli.terminal.engines import seconds_of
from headrace.cli.terminal.output import printer
from headrace.cli.terminal.project_args import Json, Names, ProjectTarget, project_options
from headrace.core.errors import Exit, ProjectError

if TYPE_CHECKING:
    from headrace.engine.state.state import StateDir

_LOOK_SECONDS = 0.05


@project_options(Names)
def stop(
    target: ProjectTarget,
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="How long to wait for its end.")] = "60s",
    json: Json = False,
) -> None:
    """Stop the engine that runs a project, or only the flows that are named, and wait until that is done.

    Running batches are finished first (see `run --stop-timeout`). Without an engine it does nothing. A stopped flow
    stays stopped, also in later engines, until `headrace start FLOW`; the other flows continue.
    """
    state, flows = target.state(), target.flows
    deadline = time.monotonic() + seconds_of("--timeout", timeout)
    if flows:
        print_states(FlowOrders(state, deadline, timeout).stop(flows), json)
        return
    _stop_engine(state, deadline, timeout, json)


def _stop_engine(state: StateDir, deadline: float, timeout: str, json: bool) -> None:
    pid = _pid(state)
    if pid is None:
        _say(json, None, "no engine runs")
        return
    while pid == 0 and time.monotonic() < deadline:  # it has only just taken the folder
        time.sleep(_LOOK_SECONDS)
        pid = _pid(state) or 0
    if pid:
        _terminate(pid)
    while _pid(state) == pid:
        if time.monotonic() > deadline:
            raise ProjectError(
                "stop-timeout",
                f"the engine (pid {pid}) has not ended after {timeout}",
                hint=f"wait longer with --timeout, or kill -9 {pid}: the next start then repeats its running batch",
                exit_code=Exit.TIMEOUT,
            )
        time.sleep(_LOOK_SECONDS)
    _say(json, pid, f"engine {pid} has stopped")


def _pid(state: StateDir) -> int | None:
    """The process of the engine, None when none runs."""
    holder = state.holder()
    if holder is not None and holder.host:
        raise ProjectError(
            "engine-elsewhere",
            f"the engine runs on another machine: {holder}",
            hint=f"stop it there: headrace stop, or kill {holder.pid}",
            exit_code=Exit.CONFLICT,
        )
    return None if holder is None else holder.pid


def _terminate(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return  # it ended by itself
    except PermissionError as error:
        hint = "stop it as that user"
        raise ProjectError("not-permitted", f"process {pid} belongs to another user", hint=hint) from error


def _say(json: bool, pid: int | None, text: str) -> None:
    if json:
        printer.document({"stopped": pid is not None, "pid": pid})
    else:
        printer.note(text)
