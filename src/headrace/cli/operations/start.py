"""`headrace start`: let flows of a running engine go on that were stopped or have failed."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from headrace.cli.operations._flow_orders import Clerk, no_engine, say
from headrace.cli.terminal.completion import complete_flows
from headrace.cli.terminal.engines import seconds_of, state_of
from headrace.cli.terminal.output import printer, usage_error
from headrace.cli.terminal.project_args import Json, Overrides, Profile, ProjectOption, split

Flows = Annotated[
    list[str],
    typer.Argument(metavar="[PROJECT] FLOW…", help="The flows, after their project.", autocompletion=complete_flows),
]
Timeout = Annotated[str, typer.Option("--timeout", metavar="TIME", help="How long to wait until it is done.")]


def start(
    names: Flows,
    project: ProjectOption = None,
    profile: Profile = None,
    overrides: Overrides = None,
    timeout: Timeout = "60s",
    json: Json = False,
) -> None:
    """Start flows of a running engine that were stopped with `headrace stop FLOW` or have failed.

    They go on from where they are. Without an engine, flows that were stopped will run with the next one.
    """
    from headrace.engine.state.orders import give_order, last_order

    path, flows = split(names, project)
    if not flows:
        raise usage_error("name the flows to start", "to start an engine: headrace run")
    state = state_of(path, profile, overrides, flows)
    deadline = time.monotonic() + seconds_of("--timeout", timeout)
    if state.holder() is not None:
        say(Clerk(state, deadline, timeout).start(flows), json)
        return
    orders = {name: last_order(state, name) for name in flows}
    if not all(order is not None and order.want == "stopped" for order in orders.values()):
        raise no_engine()
    for name in flows:
        give_order(state, name, "running")
    if json:
        printer.document({"flows": [{"name": name, "state": None, "since": None, "stop": None} for name in flows]})
    else:
        printer.note(f"no engine runs; the next one will run {', '.join(flows)}")


def restart(
    names: Flows,
    project: ProjectOption = None,
    profile: Profile = None,
    overrides: Overrides = None,
    timeout: Timeout = "60s",
    json: Json = False,
) -> None:
    """Stop flows of a running engine after their batch and start them again, also those that have failed."""
    path, flows = split(names, project)
    if not flows:
        raise usage_error("name the flows to restart", "the engine itself: headrace stop, then headrace run")
    state = state_of(path, profile, overrides, flows)
    clerk = Clerk(state, time.monotonic() + seconds_of("--timeout", timeout), timeout)
    say(clerk.restart(flows), json)
