"""Show what each flow reads, keeps, writes and guarantees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.projects._generation_changes import changes_of, require_safe
from headrace.cli.terminal.output import printer, usage_error
from headrace.cli.terminal.project_args import Json, Names, ProjectTarget, project_options
from headrace.core.lazy import lazy_modules
from headrace.engine.state.state import StateDir

if TYPE_CHECKING:
    from rich.tree import Tree

    from headrace.engine.state import schemas
    from headrace.plan import explain, planner
else:
    schemas, explain, planner = lazy_modules(
        "headrace.engine.state.schemas", "headrace.plan.explain", "headrace.plan.planner"
    )

_PACE = {"batch": "once", "realtime": "in real time"}


@project_options(Names)
def plan(
    target: ProjectTarget,
    dot: Annotated[bool, typer.Option("--dot", help="Print a Graphviz graph.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 5 when a flow cannot continue from its position.")
    ] = False,
    json: Json = False,
) -> None:
    """Show what each flow reads, keeps, writes and guarantees, and whether it can continue after a change.

    `run` executes the same plan. This command starts nothing and connects to no service.
    """
    if dot and json:
        raise usage_error("--dot and --json exclude each other", "leave one of them out")

    loaded, flows = target.load(), target.flows
    state = StateDir.of(loaded.context)
    plan_ = planner.make_plan(loaded, flows, lambda name, _spec: schemas.stored_schema(state, name))
    changes = changes_of(loaded, state, plan_)
    verdicts = {name: change.to_json() for name, change in changes.items()}
    if json:
        printer.document(explain.to_json(plan_, verdicts))
    elif dot:
        printer.data(explain.to_dot(plan_))
    elif printer.on_terminal():
        for flow in printer.clean(explain.to_json(plan_, verdicts))["flows"]:
            printer.render(flow_tree(flow))
    else:
        printer.data("\n".join(explain.to_text(plan_, verdicts)))
    if check:
        require_safe(loaded, list(changes.values()))


def flow_tree(flow: dict[str, Any]) -> Tree:
    """Return one flow of a plan's JSON as a tree for the terminal."""
    from rich.text import Text
    from rich.tree import Tree

    pace = _PACE.get(flow["mode"], f"every {flow['trigger']}")
    tree = Tree(Text.assemble(("flow ", "dim"), (flow["name"], "bold"), f"  {pace}, ", (flow["guarantee"], "green")))
    if flow["description"]:
        tree.add(Text(flow["description"], style="italic"))
    reads = tree.add(Text("reads", style="dim"))
    for flow_input in flow["inputs"]:
        _add_input(reads, flow_input)
    tree.add(Text.assemble(("keeps ", "dim"), ", ".join(flow["state"]) or "no state"))
    tree.add(Text.assemble(("gives ", "dim"), ", ".join(flow["columns"])))
    writes = tree.add(Text("writes", style="dim"))
    for sink in flow["sinks"]:
        writes.add(Text.assemble((sink["label"], "cyan"), f"  {sink['guarantee']}"))
    if flow["change"] is not None and flow["change"]["generation"] is not None:
        _add_change(tree, flow["change"])
    return tree


_STYLES = {"new_generation": "yellow", "refused": "red"}


def _add_change(tree: Tree, change: dict[str, Any]) -> None:
    from rich.text import Text

    branch = tree.add(Text(explain.change_summary(change), style=_STYLES.get(change["verdict"], "green")))
    for reason in change["reasons"]:
        branch.add(Text(reason))


def _add_input(tree: Tree, flow_input: dict[str, Any]) -> None:
    from rich.text import Text

    if flow_input["kind"] == "flow":
        branch = tree.add(Text.assemble((flow_input["name"], "bold"), f"  flow, {flow_input['through']}"))
        for inner in flow_input.get("inputs", []):
            _add_input(branch, inner)
        return
    form = f", {flow_input['format']}" if flow_input["format"] else ""
    branch = tree.add(Text.assemble((flow_input["name"], "bold"), f"  {flow_input['source']['label']}{form}"))
    branch.add(
        "all columns"
        if flow_input["columns"] is None
        else Text(f"columns {', '.join(flow_input['columns']) or 'none'}")
    )
    if flow_input["backfill"]:
        branch.add(
            Text(f"first the history in {flow_input['backfill']['label']}, up to {flow_input['backfill']['seam']}")
        )
    if flow_input["filters"]:
        branch.add(Text(f"only rows where {' and '.join(flow_input['filters'])}"))
    if flow_input["event_time"]:
        branch.add(Text(f"event time {flow_input['event_time']}, waits {flow_input['watermark']} for late records"))
