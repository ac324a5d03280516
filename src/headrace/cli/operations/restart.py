"""Stop flows and start them again."""

from __future__ import annotations

import time

from headrace.cli.operations._flow_orders import FlowOrders, Flows, Timeout, print_states
from headrace.cli.terminal.engines import seconds_of
from headrace.cli.terminal.output import usage_error
from headrace.cli.terminal.project_args import Json, ProjectTarget, project_options


@project_options(Flows)
def restart(
    target: ProjectTarget,
    timeout: Timeout = "60s",
    json: Json = False,
) -> None:
    """Stop flows of a running engine after their batch and start them again, also those that have failed."""
    flows = target.flows
    if not flows:
        raise usage_error("name the flows to restart", "the engine itself: headrace stop, then headrace run")
    state = target.state()
    orders = FlowOrders(state, time.monotonic() + seconds_of("--timeout", timeout), timeout)
    print_states(orders.restart(flows), json)
