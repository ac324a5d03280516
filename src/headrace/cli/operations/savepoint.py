"""Create, list and delete savepoints of stopped flows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from headrace.cli.terminal.confirm import confirm
from headrace.cli.terminal.output import printer, usage_error
from headrace.cli.terminal.positions_output import DryRun, Yes, aligned, known_flow, known_flows, one_flow
from headrace.cli.terminal.project_args import Json, Names, OneFlow, ProjectTarget, project_options
from headrace.core.runtime.lazy import lazy_modules

if TYPE_CHECKING:
    from headrace.engine.positions import rewind
    from headrace.engine.positions import savepoints as position_savepoints
    from headrace.plan import planner
else:
    rewind, position_savepoints, planner = lazy_modules(
        "headrace.engine.positions.rewind", "headrace.engine.positions.savepoints", "headrace.plan.planner"
    )

app = typer.Typer(help=__doc__, no_args_is_help=True, rich_markup_mode=None)


@app.command()
@project_options(OneFlow)
def create(
    target: ProjectTarget,
    json: Json = False,
) -> None:
    """Create a savepoint of a stopped flow: FLOW, then an optional NAME (the time otherwise)."""
    (loaded, state), names = target.open(), target.flows
    name = names[1] if len(names) == 2 else None
    flow_name = one_flow(names[:1] if len(names) == 2 else names, "savepoint create")
    flow = planner.make_plan(loaded, (flow_name,)).flow(flow_name)
    with rewind.while_stopped(state, flow.name):
        savepoint = position_savepoints.Savepoints(state, flow.name).create(flow, loaded.context, name)
    if json:
        printer.document(asdict(savepoint.info))
    else:
        printer.data(savepoint.info.name)
        printer.note(f"return to it with: headrace rewind {flow.name} --to {savepoint.info.name}")


@app.command("list")
@project_options(Names)
def list_(
    target: ProjectTarget,
    json: Json = False,
) -> None:
    """List the savepoints of all flows, or of those named."""
    (loaded, state), flows = target.open(), target.flows
    chosen = known_flows(loaded, flows)
    notes = [savepoint.info for flow in chosen for savepoint in position_savepoints.Savepoints(state, flow).all()]
    if json:
        printer.document([asdict(note) for note in notes])
        return
    rows = [["flow", "name", "created", "batch", "generation"]]
    rows += [[note.flow, note.name, note.created_at, str(note.batch), note.generation] for note in notes]
    for line in aligned(rows) if notes else ["no savepoints"]:
        printer.data(line)


@app.command()
@project_options(Names)
def delete(
    target: ProjectTarget,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete a savepoint: FLOW, then NAME."""
    (loaded, state), names = target.open(), target.flows
    flow, name = _flow_and_name(names)
    known_flow(loaded, flow)
    savepoints = position_savepoints.Savepoints(state, flow)
    savepoints.require(name)
    if not dry_run:
        confirm(f"Delete savepoint '{name}' of flow '{flow}'?", yes)
        savepoints.delete(name)
    if json:
        printer.document({"flow": flow, "name": name, "done": not dry_run})
    else:
        printer.note(f"savepoint '{name}' of flow '{flow}' {'would be' if dry_run else 'is'} deleted")


def _flow_and_name(names: Sequence[str]) -> tuple[str, str]:
    if len(names) != 2:
        raise usage_error(
            "savepoint delete takes a flow and the name of a savepoint", "headrace savepoint delete FLOW NAME"
        )
    return names[0], names[1]
