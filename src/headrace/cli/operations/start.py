"""Start flows that were stopped or have failed."""

from __future__ import annotations

import time

from headrace.cli.operations._flow_orders import FlowOrders, Flows, Timeout, no_engine, print_states
from headrace.cli.terminal.engines import seconds_of
from headrace.cli.terminal.output import printer, usage_error
from headrace.cli.terminal.project_args import Json, ProjectTarget, project_options
from headrace.engine.state.orders import give_order, last_order


@project_options(Flows)
def start(
    target: ProjectTarget,
    timeout: Timeout = "60s",
    json: Json = False,
) -> None:
    """Start flows of a running engine that were stopped with `headrace stop FLOW` or have failed.

    They continue from their positions. Without an engine, stopped flows run with the next one.
    """
    flows = target.flows
    if not flows:
        raise usage_error("name the flows to start", "to start an engine: headrace run")
    state = target.state()
    deadline = time.monotonic() + seconds_of("--timeout", timeout)
    if state.holder() is not None:
        print_states(FlowOrders(state, deadline, timeout).start(flows), json)
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
